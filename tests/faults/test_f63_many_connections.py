"""Fault 63: more connections than a server has room for: it tells how it does within a second, and recovers.

A new connection takes the place of the one that has waited longest for its client. Where all are busy, a reserve
answers `/health` and `/metrics`, and everything else with 503.
"""

import asyncio
import json
import re
import resource
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx2
import psutil
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from evolvent.serve.connections import ConnectionLimits, ConnectionTable, fit_descriptors
from evolvent.serve.launch import launch_server
from evolvent.serve.protocol import make_server_config
from tests.bench.small_policies import small_policy
from tests.serve.served import serving, until
from tests.serve.small_policy import policy_server

STARTS = (
    b"",
    b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nX-",
    b"POST /v1/sessions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 900\r\n\r\n{",
    b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
)


def address_of(url):
    host, _, port = url.partition("//")[2].partition("/")[0].partition(":")
    return host, int(port)


def flooded(descriptors, count, rounds, *, policy=None):
    """A server with few descriptors while `count` connections are held; how it did.

    Args:
        policy: folder of a policy that is served; None: a world is.
    """
    program = f'ulimit -n {descriptors} && exec "$@"'
    served = ["crafting"] if policy is None else ["--policy", str(policy)]
    command = ["sh", "-c", program, "sh", sys.executable, "-m", "evolvent.cli.main", "serve", *served, "--port", "0"]
    with launch_server(command, ready_s=300) as server:
        process, held, waits = psutil.Process(server.process.pid), [], []
        with httpx2.Client(base_url=server.url, trust_env=False, timeout=60) as client:
            assert client.get("/health").status_code == 200
        before = process.memory_info().rss
        probe = httpx2.Client(base_url=server.url, trust_env=False, timeout=60)
        try:
            for number in range(count * rounds):
                connection = socket.socket()
                connection.setblocking(False)
                connection.connect_ex(address_of(server.url))
                held.append(connection)
                if len(held) > count:
                    held.pop(0).close()
                if number % 50 == 49:
                    for started in held[-50:]:
                        with suppress(OSError):  # the server has ended it, or has not accepted it yet
                            started.send(STARTS[len(waits) % len(STARTS)])
                    began = time.monotonic()
                    assert probe.get("/health", headers={"connection": "close"}).status_code == 200
                    waits.append(time.monotonic() - began)
            peak = process.memory_info().rss
        finally:
            probe.close()
            for connection in held:
                connection.close()
        with httpx2.Client(base_url=server.url, trust_env=False, timeout=60) as client:
            made = ask_for_work(client, policy)
            metrics = client.get("/metrics").text
            until(lambda: process.num_fds() < 40, 30)
        spent = process.cpu_times().user + process.cpu_times().system
    return made.status_code, max(waits), peak - before, server.output, metrics, spent


def ask_for_work(client, policy):
    """What the server is for: a session, or a reply."""
    if policy is None:
        return client.post("/v1/sessions", json={"world": "crafting", "task": a_task(client)})
    asked = {"model": Path(policy).name, "messages": [{"role": "user", "content": "go"}], "max_tokens": 2}
    return client.post("/v1/chat/completions", json=asked)


def a_task(client):
    panel = client.get("/v1/worlds/crafting/tasks", params={"split": "train", "tier": "seen"}).json()["tasks"]
    return panel[0]["id"]


def test_a_flood_of_connections_beside_few_descriptors():
    status, slowest, growth, output, metrics, _ = flooded(256, 300, 1)
    assert status == 201 and growth < 32 << 20
    assert slowest < 10  # seconds; a bound on being deaf, not a measurement
    assert len(output) < 10_000 and "Traceback" not in output
    assert int(re.search(r'connections_refused_total\{reason="total"\} (\d+)', metrics)[1]) > 100


@pytest.mark.long
@pytest.mark.parametrize("kind", ["worlds", "policy"])
def test_1500_connections_beside_1024_descriptors(tmp_path, kind):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < 2000 and hard < 2000:
        pytest.skip("this process may not open 2,000 files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2000), hard))
    policy = None if kind == "worlds" else tmp_path / "model"
    if policy is not None:
        small_policy().save(policy)
    status, slowest, growth, output, _, spent = flooded(1024, 1500, 3, policy=policy)
    assert status == (201 if policy is None else 200) and slowest < 1.0 and growth < 64 << 20 and spent < 60
    assert len(output) < 10_000 and "Traceback" not in output


FEW = ConnectionLimits(max_connections=3, max_per_address=3, reserve=2)


def test_the_reserve_tells_how_the_server_does_and_refuses_the_rest():
    with (
        serving(connections=ConnectionTable(FEW)) as server,
        server.client() as client,
        ExitStack() as opened,
    ):
        busy = [opened.enter_context(connect(server.socket_url, proxy=None)) for _ in range(3)]
        for _ in range(3):
            told = client.get("/health")
            assert told.status_code == 200 and told.headers["connection"] == "close"
        assert 'evolvent_connections_refused_total{reason="total"}' in client.get("/metrics").text
        refused = client.post("/v1/sessions", json={"world": "echo"})
        assert refused.status_code == 503 and refused.json()["kind"] == "AtCapacity"
        assert refused.headers["retry-after"] == "1"
        with pytest.raises(InvalidStatus) as caught, connect(server.socket_url, proxy=None):
            pass
        assert caught.value.response.status_code == 503
        for open_socket in busy:
            open_socket.send(json.dumps({"request_id": 1, "op": "ping"}))
            assert json.loads(open_socket.recv(timeout=60))["request_id"] == 1
            open_socket.close()
        until(lambda: client.get("/v1/worlds").status_code == 200)


def test_a_full_policy_server_refuses_in_openais_form():
    with policy_server(small_policy(), connections=ConnectionTable(FEW)) as server:

        async def fill():
            for _ in range(3):
                busy = Busy()
                server.table.admit(busy, None)
                server.table.note_request(busy)

        asyncio.run_coroutine_threadsafe(fill(), server.loop).result(20)
        root = server.url.removesuffix("/v1")
        assert httpx2.get(f"{root}/health", trust_env=False, timeout=60).status_code == 200
        refused = httpx2.get(f"{server.url}/models", trust_env=False, timeout=60)
        assert refused.status_code == 503 and refused.json()["error"]["message"]


class Busy:
    deadline = None
    aborted = expired = False

    def expire(self):
        self.expired = True

    def check_writing(self, now):
        pass

    def abort(self):
        self.aborted = True


def in_loop(function):
    async def run():
        function()

    asyncio.run(run())


def test_one_address_does_not_take_the_place_of_another():
    def check():
        table = ConnectionTable(ConnectionLimits(max_connections=10, max_per_address=3))
        first, other = [Busy() for _ in range(5)], Busy()
        assert table.admit(other, "192.0.2.1")
        assert all(table.admit(connection, "192.0.2.2") for connection in first)
        assert [connection.aborted for connection in first] == [True, True, False, False, False]
        assert not other.aborted and table.num_open == 4
        for connection in first[2:]:
            table.note_request(connection)
        assert not table.admit(Busy(), "192.0.2.2"), "all of this address are busy"
        assert table.admit(Busy(), "192.0.2.3")

    in_loop(check)


def test_those_that_never_asked_make_room_before_those_that_wait_for_the_next_request():
    def check():
        table = ConnectionTable(ConnectionLimits(max_connections=3, max_per_address=9))
        idle, arriving, fresh = Busy(), Busy(), Busy()
        for connection in (arriving, idle, fresh):
            table.admit(connection, None)
        table.note_arriving(arriving)
        table.note_idle(idle)
        ended = []
        for _ in range(3):
            newcomer = Busy()
            assert table.admit(newcomer, None)
            table.note_request(newcomer)
            ended.append([connection.aborted for connection in (fresh, idle, arriving)])
        assert ended == [[True, False, False], [True, True, False], [True, True, True]]

    in_loop(check)


def test_the_limits_fit_the_descriptors_of_the_process():
    code = (
        "import resource\n"
        "from evolvent.serve.connections import ConnectionLimits, fit_descriptors\n"
        "print(fit_descriptors(ConnectionLimits()).max_connections, resource.getrlimit(resource.RLIMIT_NOFILE)[0])"
    )
    for hard, expected in ((1024, range(700, 1024)), (4096, range(2048, 2049))):
        script = f'ulimit -Sn 256 && ulimit -Hn {hard} && exec "$@"'
        command = ["sh", "-c", script, "sh", sys.executable, "-c", code]
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        connections, soft = map(int, output.split())
        assert connections in expected and soft > connections
    assert fit_descriptors(ConnectionLimits(max_connections=16)).max_connections == 16


def test_every_server_of_the_package_listens_through_the_same_limits():
    source = Path(make_server_config.__code__.co_filename).parents[1]
    makers = {
        path.name for path in source.rglob("*.py") if re.search(r"uvicorn\.(Config|run|Server\()", path.read_text())
    }
    assert makers == {"protocol.py"}
