"""Many clients at one mount: nobody reads another's answer, a full server says so, nothing is left behind."""

from __future__ import annotations

import asyncio
import gc
import threading
import time

import httpx2
import pytest

from evolvent.errors import ConfigError, SessionGone
from evolvent.serve.agentgym.dialects import get_dialect
from evolvent.serve.agentgym.face import AgentGymDialect, AgentGymMount
from evolvent.serve.catalogue import TaskIndex
from evolvent.serve.local import LocalHost
from evolvent.web import Access
from tests.serve.agentgym_support import Echo, serving

TEXTCRAFT = {"echo": ("echo", "textcraft")}


def post(http, base, path, **body):
    return http.post(f"{base}/{path}", json=body)


@pytest.mark.parametrize("blocking", [False, True], ids=["loop", "threads"])
def test_64_clients_hammer_and_nobody_hears_another(blocking):
    wrong = []

    def client(base, number, http):
        for turn in range(3):
            session = post(http, base, "create").json()["id"]
            task = post(http, base, "reset", id=session, data_idx=number % 12).json()["observation"].split()[-1]
            for step in range(4):
                word = f"say {number}-{turn}-{step}"
                told = post(http, base, "step", id=session, action=word).json()
                if told["observation"] != f"heard {word} of {task}":
                    wrong.append((word, told))
            closed = post(http, base, "close", id=session).json(), post(http, base, "close", id=session).json()
            if closed != (True, False):
                wrong.append(closed)

    with (
        serving({"echo": Echo(blocking=blocking)}, TEXTCRAFT) as server,
        httpx2.Client(trust_env=False, timeout=60, limits=httpx2.Limits(max_connections=16)) as http,
    ):
        threads = [threading.Thread(target=client, args=(server.mount("echo"), n, http)) for n in range(64)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        status = server.host.status()
        assert wrong == [] and status.sessions == {"echo": 0}
        assert (status.created, status.steps) == (192, 768)


@pytest.mark.parametrize("dialect", ["textcraft", "sqlgym", "weather", "webarena"])
def test_a_full_server_says_so_and_never_hands_out_anothers_session(dialect):
    with serving({"echo": Echo()}, {"echo": ("echo", dialect)}, capacity=8) as server:
        base, key = server.mount("echo"), get_dialect(dialect).session_key
        with httpx2.Client(trust_env=False, timeout=60) as http:
            made = [post(http, base, "create", id=0).json() for _ in range(8)]
            numbers = {one[key] if isinstance(one, dict) else one for one in made}
            assert len(numbers) == 8
            for _ in range(3):
                full = post(http, base, "create", id=0)
                assert (full.status_code, full.json()["kind"]) == (503, "AtCapacity")
                assert int(full.headers["retry-after"]) >= 1
            post(http, base, "close", **{key: numbers.pop()})
            assert post(http, base, "create", id=0).status_code == 200


def test_idle_sessions_are_given_back():
    with serving({"echo": Echo()}, TEXTCRAFT, idle_s=2) as server, httpx2.Client(trust_env=False, timeout=60) as http:
        base = server.mount("echo")
        kept, left = (post(http, base, "create").json()["id"] for _ in range(2))
        deadline = time.monotonic() + 60
        while server.host.status().sessions["echo"] > 1 and time.monotonic() < deadline:
            assert http.get(f"{base}/observation?id={kept}").status_code == 200  # looking renews the lease
            time.sleep(0.05)
        assert post(http, base, "step", id=kept, action="say x").status_code == 200
        assert post(http, base, "step", id=left, action="say x").json()["kind"] == "SessionGone"
        assert post(http, base, "close", id=left).json() is False


def test_a_token_is_asked_for_and_goes_as_a_password_too():
    access = Access(token="0123456789abcdef")
    with (
        serving({"echo": Echo()}, TEXTCRAFT, access=access) as server,
        httpx2.Client(trust_env=False, timeout=60) as http,
    ):
        base = server.mount("echo")
        assert post(http, base, "create").status_code == 403
        login = base.replace("http://", "http://any:0123456789abcdef@")  # all that a released client can be given
        assert post(http, login, "create").status_code == 200
        assert http.post(f"{base}/create", headers={"authorization": "Bearer 0123456789abcdef"}).status_code == 200


def test_a_thousand_sessions_leave_nothing():
    async def play():
        worlds = {"echo": Echo()}
        async with LocalHost(worlds, capacity=16) as host:
            desk = AgentGymMount(host, TaskIndex(worlds), world="echo", dialect=get_dialect("textcraft"))

            async def one(close):
                number = (await desk.create({}))["id"]
                await desk.reset({"id": number, "data_idx": 1})
                await desk.step({"id": number, "action": "say x"})
                if close:
                    assert await desk.close({"id": number}) is True
                return number

            await one(True)
            gc.collect()
            before, threads = len(gc.get_objects()), threading.active_count()
            for _ in range(1000):
                await one(True)
            gc.collect()
            assert len(gc.get_objects()) - before < 200 and threading.active_count() == threads
            assert host.status().sessions == {"echo": 0} and desk._plays == {}
            for _ in range(400):  # clients that never close: their sessions are reaped, the desk forgets them
                number = await one(False)
                await host.close(str(number))
            assert len(desk._plays) <= 2 * 16 + 64
            with pytest.raises(SessionGone):
                await desk.step({"id": number, "action": "say x"})
            assert number not in desk._plays

    asyncio.run(play())


def test_steps_of_one_session_at_once_are_all_answered():
    async def play():
        worlds = {"echo": Echo(blocking=True)}
        async with LocalHost(worlds) as host:
            desk = AgentGymMount(host, TaskIndex(worlds), world="echo", dialect=get_dialect("babyai"))
            number = (await desk.create({}))["id"]
            await desk.reset({"id": number, "data_idx": 0})
            actions = ["give .25", "give .25", "end .25", "give .25"]
            told = await asyncio.gather(*(desk.step({"id": number, "action": action}) for action in actions))
            assert [one["score"] for one in told] == [0.25, 0.5, 0.75, 0.75]
            assert told[3] == {**told[2], "ended": True}

    asyncio.run(play())


def test_what_a_world_did_not_score_is_an_error_and_not_0():
    class Unscored(Echo):
        def make(self, task):
            env = super().make(task)
            step = env.step
            env.step = lambda action: (step(action)[0], None, False, False, {})
            return env

    with (
        serving({"echo": Unscored()}, {"echo": ("echo", "sqlgym")}) as server,
        httpx2.Client(trust_env=False, timeout=60) as http,
    ):
        base = server.mount("echo")
        number = post(http, base, "create").json()
        post(http, base, "reset", env_idx=number, item_id=0)
        told = post(http, base, "step", env_idx=number, action="x")
        assert told.status_code == 500 and "did not score" in told.json()["message"]
        again = post(http, base, "step", env_idx=number, action="x")  # the released client tries again: without effect
        assert again.status_code == 404
        assert server.host.status().sessions == {"echo": 0} and server.host.status().steps == 1


def test_a_reset_that_fails_leaves_the_session_open():
    with serving({"echo": Echo()}, TEXTCRAFT) as server, httpx2.Client(trust_env=False, timeout=60) as http:
        base = server.mount("echo")
        number = post(http, base, "create").json()["id"]
        assert post(http, base, "reset", id=number, data_idx=-1).status_code == 404
        assert post(http, base, "reset", id=number, data_idx=99).status_code == 404
        assert post(http, base, "reset", id=number, data_idx="one").status_code == 422
        assert post(http, base, "reset", id=number, data_idx=1).status_code == 200


def test_mounts_that_cannot_be_are_refused_all_at_once():
    worlds = {"echo": Echo()}
    mounts = {"a": ("eco", "textcraft"), "b": ("echo", "textcrat"), "c/d": ("echo", "maze")}
    with pytest.raises(ConfigError) as caught:
        AgentGymDialect(mounts).routes(LocalHost(worlds), TaskIndex(worlds))
    told = str(caught.value)
    assert "did you mean 'echo'" in told and "did you mean 'textcraft'" in told and "'c/d'" in told


def test_worlds_without_a_dialect_have_no_mount_by_default():
    worlds = {"echo": Echo(), "wordle": Echo("wordle")}
    assert AgentGymDialect().mounts(LocalHost(worlds)) == {"wordle": ("wordle", "wordle")}
