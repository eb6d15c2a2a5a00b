"""Fault 6: more clients than sessions are turned away with 503, come back, and all finish; none shares a session."""

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.serve.served import begin, serving, small_worlds


class Ledger:
    """Who holds which session now; two holders of one are a fault."""

    def __init__(self):
        self.lock, self.held, self.most, self.shared = threading.Lock(), set(), 0, []

    def take(self, session):
        with self.lock:
            if session in self.held:
                self.shared.append(session)
            self.held.add(session)
            self.most = max(self.most, len(self.held))

    def give(self, session):
        with self.lock:
            self.held.discard(session)


@pytest.mark.parametrize("workers", [0, 2])
def test_fifty_sessions_through_two_places(workers):
    from evolvent.serve.pool.host import PooledHost

    host = PooledHost(small_worlds(), small_worlds, [], workers=workers, capacity=2) if workers else None
    ledger, refused = Ledger(), []

    with serving(host=host, capacity=2) if host is None else serving(host=host) as server, server.client() as client:
        task = client.get("/v1/worlds/echo/tasks?split=train&tier=seen").json()["tasks"][0]["id"]

        def play(number):
            rng, until = random.Random(number), time.monotonic() + 50
            while True:
                answer = client.post("/v1/sessions", json={"world": "echo", "task": task})
                if answer.status_code == 201:
                    break
                assert answer.status_code == 503 and time.monotonic() < until
                row = answer.json()
                assert row["kind"] == "AtCapacity" and row["retry_after_s"] > 0
                assert int(answer.headers["retry-after"]) >= 1
                refused.append(number)
                time.sleep(rng.uniform(0.01, 0.1))
            session = answer.json()["session"]
            ledger.take(session)
            told = [
                client.post(f"/v1/sessions/{session}/step", json={"step": step, "action": str(number)}).json()
                for step in range(3)
            ]
            ledger.give(session)
            client.delete(f"/v1/sessions/{session}")
            return [row["observation"] for row in told]

        with ThreadPoolExecutor(50) as threads:
            results = list(threads.map(play, range(50)))
        assert results == [[f"{step + 1}: {number}" for step in range(3)] for number in range(50)]
        assert refused and not ledger.shared and ledger.most <= 2
        assert client.get("/health").json()["sessions"]["echo"] == 0


def test_the_ninth_of_eight_is_an_error_and_never_somebody_elses_session():
    with serving(capacity=8) as server, server.client() as client:
        sessions = [begin(client) for _ in range(8)]
        task = client.get("/v1/worlds/echo/tasks?split=train&tier=seen").json()["tasks"][0]["id"]
        full = client.post("/v1/sessions", json={"world": "echo", "task": task})
        assert full.status_code == 503 and "session" not in full.json() and "8 of 8" in full.json()["message"]
        for number, session in enumerate(sessions):
            told = client.post(f"/v1/sessions/{session}/step", json={"action": str(number)}).json()["observation"]
            assert told == f"1: {number}"
        client.delete(f"/v1/sessions/{sessions[3]}")
        assert client.post("/v1/sessions", json={"world": "echo", "task": task}).status_code == 201
