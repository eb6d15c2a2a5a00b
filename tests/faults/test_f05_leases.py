"""Fault 5: what a client that died left open is given back when its lease ends; closing twice is harmless."""

import subprocess
import sys
import threading
import time

from tests.serve.served import begin, serving, small_worlds, until

CLIENT = """
import os, sys, httpx2
client = httpx2.Client(base_url=sys.argv[1], trust_env=False, verify=False)
for world in ("echo", "sleepy", "crafting"):
    task = client.get(f"/v1/worlds/{world}/tasks?split=train&tier=seen").json()["tasks"][0]["id"]
    for _ in range(3):
        client.post("/v1/sessions", json={"world": world, "task": task}).raise_for_status()
print(client.get("/health").json()["sessions"], flush=True)  # now: when this process has ended, leases may have too
os._exit(9)
"""


def test_a_client_that_died_holds_its_sessions_no_longer_than_their_lease():
    worlds = small_worlds()
    with serving(worlds, idle_s=1.0) as server, server.client() as client:
        died = subprocess.run([sys.executable, "-c", CLIENT, server.url], capture_output=True, text=True, timeout=60)
        assert died.returncode == 9 and died.stdout == "{'echo': 3, 'sleepy': 3, 'crafting': 3}\n"
        until(lambda: client.get("/health").json()["sessions"] == {"echo": 0, "sleepy": 0, "crafting": 0})
        until(lambda: worlds["sleepy"].closed == 3)


def test_a_session_in_use_is_not_reaped():
    with serving(idle_s=2.0) as server, server.client() as client:
        used, seen, idle = begin(client), begin(client), begin(client)
        for number in range(18):
            time.sleep(0.15)
            assert client.post(f"/v1/sessions/{used}/step", json={"step": number, "action": "a"}).status_code == 200
            assert client.get(f"/v1/sessions/{seen}").status_code == 200
        assert client.get("/health").json()["sessions"]["echo"] == 2
        gone = client.post(f"/v1/sessions/{idle}/step", json={"action": "a"})
        assert (gone.status_code, gone.json()["kind"]) == (404, "SessionGone")


def test_a_session_that_works_longer_than_its_lease_is_not_reaped():
    worlds = small_worlds(["sleepy"])
    with serving(worlds, idle_s=0.5) as server, server.client() as client:
        session = begin(client, "sleepy")
        threading.Timer(1.5, worlds["sleepy"].release.set).start()
        answer = client.post(f"/v1/sessions/{session}/step", json={"action": "sleep"})
        assert answer.json()["observation"] == "1: sleep"


def test_closing_is_idempotent():
    with serving() as server, server.client() as client:
        session = begin(client)
        told = [client.delete(f"/v1/sessions/{session}") for _ in range(3)]
        assert [answer.status_code for answer in told] == [200] * 3
        assert [answer.json()["closed"] for answer in told] == [True, False, False]
        assert client.delete("/v1/sessions/never-there").json() == {"closed": False}
        assert client.get("/health").json()["sessions"]["echo"] == 0
