"""Fault 7: a world that hangs delays no other; its step times out, its session is lost, its place is free again."""

import asyncio
import threading

import pytest

from evolvent.errors import EnvLost, SessionGone, StepTimeout
from evolvent.serve.calls import CallRunner
from evolvent.serve.local import LocalHost, WorldDeadlines
from tests.serve.served import Sleepy, begin, serving, small_worlds, until


def hang(url_client, session, told):
    told.append(url_client.post(f"/v1/sessions/{session}/step", json={"action": "sleep"}))


def test_seven_others_go_on_while_one_hangs():
    """No clock: the one that hangs is released only after all steps of the others have been answered."""
    worlds = small_worlds()
    with serving(worlds, limits=WorldDeadlines(30, 30)) as server, server.client() as client:
        stuck, told = begin(client, "sleepy"), []
        others = [
            begin(client, world) for world in ("echo", "sleepy", "crafting", "echo", "sleepy", "echo", "crafting")
        ]
        thread = threading.Thread(target=hang, args=(client, stuck, told))
        thread.start()
        until(lambda: worlds["sleepy"].running == 1)
        for step in range(10):
            for session in others:
                answer = client.post(f"/v1/sessions/{session}/step", json={"step": step, "action": "inventory"})
                assert answer.status_code == 200
            batch = [{"session": session, "step": step, "action": "inventory"} for session in others]
            assert all("error" not in row for row in client.post("/v1/steps", json={"steps": batch}).json()["results"])
        assert not told
        worlds["sleepy"].release.set()
        thread.join(20)
        assert told[0].json()["observation"] == "1: sleep"


def test_a_step_past_its_deadline_loses_its_session_and_nothing_else():
    worlds = small_worlds(["sleepy"])
    with serving(worlds, capacity=1, limits=WorldDeadlines(5, 0.2)) as server, server.client() as client:
        session = begin(client, "sleepy")
        late = client.post(f"/v1/sessions/{session}/step", json={"step": 0, "action": "sleep"})
        assert (late.status_code, late.json()["kind"]) == (504, "StepTimeout")
        again = client.post(f"/v1/sessions/{session}/step", json={"step": 0, "action": "sleep"})
        assert (again.status_code, again.json()["kind"]) == (410, "EnvLost")
        assert client.get("/health").json()["sessions"] == {"sleepy": 0}
        fresh = begin(client, "sleepy")
        assert client.post(f"/v1/sessions/{fresh}/step", json={"action": "a"}).json()["observation"] == "1: a"
        worlds["sleepy"].release.set()
        until(lambda: worlds["sleepy"].closed == 1)  # the thread that hung closed what it held


class SlowStart(Sleepy):
    """Hangs in reset, as often as it is told to."""

    hangs = True

    def play(self, spec):
        if self.hangs:
            self.release.wait(60)
        yield from super().play(spec)


def test_a_reset_past_its_deadline():
    world = SlowStart()

    async def ask():
        async with LocalHost({"sleepy": world}, limits=WorldDeadlines(0.2, 5)) as host:
            task = world.tasks("train", "seen")[0]
            session = await host.create("sleepy")
            with pytest.raises(StepTimeout):
                await host.reset(session, task)
            with pytest.raises(EnvLost):
                await host.reset(session, task)
            world.hangs = False
            fresh = await host.create("sleepy")
            await host.reset(fresh, task)
            world.release.set()
            while world.closed < 1:
                await asyncio.sleep(0.01)
            assert (await host.step(fresh, "a")).observation == "1: a"

    asyncio.run(ask())
    assert world.closed == 2


def test_a_step_whose_caller_left_is_not_taken_twice():
    """The step runs on; whoever asks again is told that the session is lost, not given a second step."""
    world = Sleepy()

    async def ask():
        async with LocalHost({"sleepy": world}, limits=WorldDeadlines(5, 30)) as host:
            session = await host.create("sleepy")
            await host.reset(session, world.tasks("train", "seen")[0])
            asked = asyncio.create_task(host.step(session, "sleep", step=0))
            while not world.running:
                await asyncio.sleep(0.01)
            asked.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asked
            with pytest.raises(EnvLost):
                await host.step(session, "sleep", step=0)
            world.release.set()

    asyncio.run(ask())


def test_a_session_closed_while_others_wait_for_their_turn():
    world = Sleepy()

    async def ask():
        async with LocalHost({"sleepy": world}, limits=WorldDeadlines(5, 30)) as host:
            session = await host.create("sleepy")
            await host.reset(session, world.tasks("train", "seen")[0])
            steps = [asyncio.create_task(host.step(session, "wait", step=number)) for number in range(2)]
            await asyncio.sleep(0)
            closing = asyncio.create_task(host.close(session))
            await asyncio.sleep(0)
            late = asyncio.create_task(host.step(session, "wait", step=2))
            assert [(await step).observation for step in steps] == ["1: wait", "2: wait"]
            assert await closing
            with pytest.raises(SessionGone):
                await late

    asyncio.run(ask())


def test_with_too_many_hanging_calls_no_more_are_begun():
    release = threading.Event()

    async def ask():
        calls = CallRunner(2, hung=3)
        for _ in range(3):
            with pytest.raises(StepTimeout):
                await calls.run(lambda: release.wait(60), 0.05)
        assert calls.leaked == 3
        with pytest.raises(Exception, match="too many world calls are stuck") as caught:
            await calls.run(lambda: 1, 1)
        assert type(caught.value).__name__ == "AtCapacity"
        release.set()
        while calls.leaked:
            await asyncio.sleep(0.01)
        assert await asyncio.gather(*(calls.run(lambda n=n: n, 5) for n in range(20))) == list(range(20))
        await calls.close(1)

    asyncio.run(ask())
    assert not [thread for thread in threading.enumerate() if thread.name == "evolvent-call" and not thread.daemon]
