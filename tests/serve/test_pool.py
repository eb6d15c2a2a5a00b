"""Sessions in worker processes: the same answers as in one process, and what happens when a process dies."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time

import psutil
import pytest

from evolvent.errors import (
    AtCapacity,
    ConfigError,
    EnvLost,
    InvalidAction,
    SessionGone,
    StepTimeout,
    WorldError,
    WrongStep,
)
from evolvent.serve.host import ResetResult, StepRequest, StepResult
from evolvent.serve.local import LocalHost, WorldDeadlines
from evolvent.serve.pool.host import PooledHost
from evolvent.serve.wire import EpisodeEnded, NotFound
from tests.serve.served import QUICK, Echo, begin, serving, small_worlds, until


class Stuck(Echo):
    """Says that it is quick, and hangs."""

    name = "stuck"

    def play(self, spec):
        yield "begin"
        threading.Event().wait()


def stuck_worlds(names):
    return {"stuck": Stuck(), "echo": Echo()}


def failing_worlds(names):
    raise OSError("no such dump")


def leaving_worlds(names):
    os._exit(3)


def pool(workers=2, **more):
    return PooledHost(small_worlds(), small_worlds, ["echo", "sleepy", "crafting"], workers=workers, **more)


def first(world):
    return world.tasks("train", "seen")[0]


async def played(host):
    """Everything that a host can be asked, and all that it answers; errors by their class and expectation."""
    told = []

    async def ask(work):
        try:
            answer = await work
        except (WorldError, ConfigError) as error:
            answer = (type(error).__name__, error.expected)
        told.append(answer)
        return answer

    for name in ("echo", "sleepy", "crafting"):
        task = first(host.worlds[name])
        session = await host.create(name)
        await ask(host.step(session, "early"))
        await ask(host.reset(session, task, seed=1))
        for action, number in (
            ("a", 0),
            ("a", 0),
            ("b", 0),
            ("b", None),
            ("c", 7),
            ("x\0", None),
            ("\ud800", 2),
            ("quit", 2),
        ):
            await ask(host.step(session, action, step=number))
        await ask(host.reset(session, first(host.worlds["echo"] if name != "echo" else host.worlds["crafting"])))
        await ask(host.reset(session, task))
        items = [
            StepRequest(session, "a"),
            StepRequest("none", "b"),
            StepRequest(session, "c", 4),
            StepRequest(session, "d", 1),
        ]
        for answer in await host.steps(items):
            told.append(answer if isinstance(answer, StepResult) else (type(answer).__name__, answer.expected))
        look = await host.look(session)
        told.append((look.world, look.state, look.task, look.observation, dict(look.info), look.rewards, look.step))
        told.append((await host.close(session), await host.close(session)))
        await ask(host.look("none"))
    await ask(host.create("nowhere"))
    status = host.status()
    told.append((dict(status.sessions), status.created, status.steps))
    return told


def test_a_pool_answers_as_one_process_does():
    async def compare():
        async with LocalHost(small_worlds()) as local, pool(workers=2) as pooled:
            here, there = await played(local), await played(pooled)
            assert len(here) == len(there) > 50
            for one, other in zip(here, there, strict=True):
                assert _plain(one) == _plain(other)

    asyncio.run(compare())


def _plain(answer):
    """Lists and tuples of infos are the same in JSON."""
    if isinstance(answer, StepResult):
        return (answer.observation, answer.reward, answer.is_done, answer.step, _plain(dict(answer.info)))
    if isinstance(answer, ResetResult):
        return (answer.observation, _plain(dict(answer.info)))
    if isinstance(answer, dict):
        return {key: _plain(value) for key, value in answer.items()}
    return [_plain(part) for part in answer] if isinstance(answer, (list, tuple)) else answer


def test_typed_errors_come_back_as_they_were():
    async def ask():
        async with pool(workers=1, limits=QUICK) as host:
            task = first(host.worlds["sleepy"])
            session = await host.create("sleepy", short=True)
            assert 0 < int(session) < 2**31
            with pytest.raises(EpisodeEnded):
                await host.step(session, "a")
            await host.reset(session, task)
            with pytest.raises(WrongStep) as wrong:
                await host.step(session, "a", step=4)
            assert wrong.value.expected == 0
            with pytest.raises(InvalidAction):
                await host.step(session, "\0")
            with pytest.raises(StepTimeout):
                await host.step(session, "sleep")
            with pytest.raises(EnvLost, match="lost"):
                await host.step(session, "a")
            assert host.status().sessions["sleepy"] == 0 and not await host.close(session)
            with pytest.raises(NotFound, match="did you mean 'echo'"):
                await host.create("ecko")

    asyncio.run(ask())


def test_sessions_spread_over_the_workers_and_are_counted_once():
    async def ask():
        async with pool(workers=2, capacity=6, idle_s=0.3) as host:
            sessions = await asyncio.gather(*(host.create("echo") for _ in range(6)))
            assert sorted(len(worker.sessions) for worker in host._workers) == [3, 3]
            with pytest.raises(AtCapacity):
                await host.create("echo")
            while host.status().sessions["echo"]:
                await asyncio.sleep(0.05)
            with pytest.raises(SessionGone):
                await host.look(sessions[0])
            await host.create("echo")

    asyncio.run(ask())


def test_a_killed_worker_takes_its_sessions_along_and_no_others():
    with serving(host=pool(workers=2)) as server, server.client() as client:
        sessions = [begin(client) for _ in range(8)]
        for session in sessions:
            client.post(f"/v1/sessions/{session}/step", json={"step": 0, "action": "a"})
        victim = server.host.pids[0]
        os.kill(victim, signal.SIGKILL)
        until(lambda: client.get("/health").json()["restarts"] == 1)
        results = client.post("/v1/steps", json={"steps": [{"session": s, "step": 1, "action": "b"} for s in sessions]})
        rows = results.json()["results"]
        lost = [row["error"] for row in rows if "error" in row]
        assert len(lost) == 4 and {error["kind"] for error in lost} == {"EnvLost"}
        assert all(str(victim) in error["message"] for error in lost)
        assert [row["observation"] for row in rows if "error" not in row] == ["2: b"] * 4
        health = client.get("/health").json()
        assert health["sessions"]["echo"] == 4 and health["steps"] == 12
        fresh = [begin(client) for _ in range(4)]
        assert client.get("/health").json()["sessions"]["echo"] == 8
        for session in fresh:
            assert client.post(f"/v1/sessions/{session}/step", json={"action": "a"}).json()["observation"] == "1: a"
        assert len(server.host.pids) == 2 and victim not in server.host.pids


def test_requests_that_wait_when_a_worker_dies_are_answered():
    with serving(host=pool(workers=1, limits=WorldDeadlines(5.0, 30.0))) as server, server.client() as client:
        session = begin(client, "sleepy")
        told = []
        thread = threading.Thread(
            target=lambda: told.append(client.post(f"/v1/sessions/{session}/step", json={"action": "sleep"}))
        )
        thread.start()
        time.sleep(0.3)
        os.kill(server.host.pids[0], signal.SIGKILL)
        thread.join(20)
        assert (told[0].status_code, told[0].json()["kind"]) == (410, "EnvLost")


def test_nothing_is_left_after_a_clean_end():
    with serving(host=pool(workers=2)) as server, server.client() as client:
        pids = server.host.pids
        begin(client, "sleepy")
        assert len(pids) == 2 and all(map(psutil.pid_exists, pids))
    assert not any(map(psutil.pid_exists, pids))
    assert [child for child in psutil.Process().children() if "serve.worker" in " ".join(child.cmdline())] == []


def test_workers_end_when_the_process_in_front_is_killed():
    program = (
        "import asyncio\nfrom tests.serve.test_pool import pool\n"
        "async def main():\n    async with pool() as host:\n        print(*host.pids, flush=True)\n"
        "        await asyncio.sleep(60)\nasyncio.run(main())"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as front:
        pids = [int(word) for word in front.stdout.readline().split()]
        assert len(pids) == 2
        front.kill()
    until(lambda: not any(map(_runs, pids)), 20)


def _runs(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_worker_that_hangs_is_killed_and_replaced(monkeypatch):
    monkeypatch.setattr("evolvent.serve.pool.host._MIN_SILENCE_S", 1.5)
    host = PooledHost(stuck_worlds([]), stuck_worlds, [], workers=1, limits=WorldDeadlines(1.0, 1.0))

    async def ask():
        async with host:
            session = await host.create("stuck")
            await host.reset(session, first(host.worlds["stuck"]))
            with pytest.raises(EnvLost):
                await host.step(session, "a")
            while not host.pids:
                await asyncio.sleep(0.05)
            assert host.status().restarts == 1
            await host.create("echo")

    asyncio.run(ask())


@pytest.mark.parametrize(
    ("factory", "kind", "words"),
    [(failing_worlds, WorldError, "no such dump"), (leaving_worlds, WorldError, "before it was ready")],
)
def test_worlds_that_cannot_be_built_stop_the_start(factory, kind, words):
    async def ask():
        async with PooledHost(small_worlds(), factory, [], workers=2):
            pass

    with pytest.raises(kind, match=words):
        asyncio.run(ask())
    assert [child for child in psutil.Process().children() if "serve.worker" in " ".join(child.cmdline())] == []


def test_a_factory_that_no_other_process_can_import_is_refused():
    with pytest.raises(ConfigError, match="top level of a module"):
        PooledHost(small_worlds(), lambda names: small_worlds(), [])
    with pytest.raises(ConfigError, match="workers"):
        PooledHost(small_worlds(), small_worlds, [], workers=0)
