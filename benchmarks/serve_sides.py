"""The same episodes through every door of a server: what is played, how each side asks, what a right answer is.

All sides play the same scripts: `lines` sessions at once, each the plans of experts one after another. Sessions are
begun before a measurement and not in it, so that a step is a step everywhere; what a reset costs is told by itself.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from random import Random
from typing import Any, Protocol

from benchmarks.serve_clients import FreshLines, HttpLines, Played, SocketLines
from evolvent.serve.remote.world import RemoteWorld
from evolvent.serve.wire import to_json
from evolvent.trajectory import Task, sample_seed
from evolvent.worlds.base import SPLITS, Env, World

LEAST = 4  # steps of a plan that is played
SIDE_BY_SIDE = 32  # resets at once
_dumps = json.JSONEncoder(separators=(",", ":")).encode


@dataclass(frozen=True, slots=True)
class Episode:
    """A task, its number at an AgentGym server, the expert's actions, and what each is answered."""

    task: Task
    index: int
    actions: tuple[str, ...]
    replies: tuple[tuple[str, float, bool, Any], ...]  # observation, reward, whether it ends, info


Scripts = Sequence[Sequence[Episode]]  # the episodes of each line


@dataclass(frozen=True, slots=True)
class Turn:
    """One step that is asked for, and its right answer."""

    session: Any
    number: int
    action: str
    reply: tuple[str, float, bool, Any]


def episodes(world: World, *, seed: int, most: int = 1200) -> list[Episode]:
    """Expert episodes of four steps or more, of all train panels, played in process; in an order of their own."""
    indexed = [task for split in SPLITS for tier in world.tiers for task in world.tasks(split, tier)]
    found = []
    for index, task in enumerate(indexed):
        plan = world.expert(task) if task.split == "train" else None
        if plan is not None and len(plan) >= LEAST:
            found.append((index, task, tuple(plan)))
    Random(sample_seed("serve", world.name, seed)).shuffle(found)
    return [Episode(task, index, plan, _replies(world, task, plan)) for index, task, plan in found[:most]]


def _replies(world: World, task: Task, plan: Iterable[str]) -> tuple[tuple[str, float, bool, Any], ...]:
    env = world.make(task)
    env.reset()
    replies = []
    for action in plan:
        observation, reward, terminated, truncated, info = env.step(action)
        replies.append((str(observation), float(reward or 0), terminated or truncated, to_json(info)))
    env.close()
    return tuple(replies)


def deal(found: Sequence[Episode], lines: int, steps: int) -> Scripts:
    """Episodes for so many lines, each of at least so many steps; beyond the last episode they begin anew."""
    place, scripts = 0, []
    for _ in range(lines):
        line: list[Episode] = []
        while sum(len(one.actions) for one in line) < steps:
            line.append(found[place % len(found)])
            place += 1
        scripts.append(line)
    return scripts


def turns(scripts: Scripts, sessions: Sequence[Sequence[Any]], steps: int) -> list[list[Turn]]:
    """The steps of every line, exactly so many."""
    made = []
    for line, held in zip(scripts, sessions, strict=True):
        all_of_line = [
            Turn(session, number, action, reply)
            for one, session in zip(line, held, strict=True)
            for number, (action, reply) in enumerate(zip(one.actions, one.replies, strict=True))
        ]
        made.append(all_of_line[:steps])
    return made


class Side(Protocol):
    """One way to play."""

    async def ready(self, scripts: Scripts, steps: int) -> int:
        """Begin all episodes; how many resets that were."""
        ...

    async def play(self, part: slice) -> Played:
        """Take these steps of every line; parts come in their order, once after `ready`."""
        ...

    def wrong(self, part: slice, played: Played) -> int:
        """How many answers were errors, or not what the world says in process."""
        ...

    async def close(self) -> None: ...


class InProcess:
    """No server: the environments of this process, one after another."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._work: list[list[Turn]] = []

    async def ready(self, scripts: Scripts, steps: int) -> int:
        def begun(one: Episode) -> Env:
            env = self._world.make(one.task)
            env.reset()
            return env

        self._work = turns(scripts, [[begun(one) for one in line] for line in scripts], steps)
        return sum(map(len, scripts))

    async def play(self, part: slice) -> Played:
        played = Played([], [[] for _ in self._work])
        for now in zip(*_parts(self._work, part), strict=True):
            for line, turn in enumerate(now):
                began = time.perf_counter()
                answer = turn.session.step(turn.action)
                played.latencies.append(time.perf_counter() - began)
                played.answers[line].append(answer)
        return played

    def wrong(self, part: slice, played: Played) -> int:
        return _wrong_of_envs(_parts(self._work, part), played)

    async def close(self) -> None:
        self._work = []


def _wrong_of_envs(work: Sequence[Sequence[Turn]], played: Played) -> int:
    both = zip(_flat(work), _flat(played.answers), strict=True)
    return sum((one[0], one[1], one[2] or one[3]) != turn.reply[:3] for turn, one in both)


class Native:
    """The native dialect: `sessions` are kept between measurements and begun again over one WebSocket.

    Args:
        door: "ws", one socket, a message a step; "ws_batch", one socket, a message for a step of every session;
            "post", a request a step on connections that stay open; "post_new", on a new connection each; "batch",
            `POST /v1/steps`, a request for a step of every session.
    """

    def __init__(self, url: str, world: World, *, door: str) -> None:
        self._world, self._door = world, door
        self._setup = SocketLines(url)
        self._socket = SocketLines(url)
        self._http: HttpLines | FreshLines = FreshLines(url) if door.endswith("new") else HttpLines(url)
        self._sessions: list[list[str]] = []
        self._work: list[list[Turn]] = []

    async def ready(self, scripts: Scripts, steps: int) -> int:
        await self._setup.open(1)
        asked = [(one.task.id, None) for line in scripts for one in line]
        if self._sessions:
            asked = [(one[0], session) for one, session in zip(asked, _flat(self._sessions), strict=True)]
        parts = [asked[place::SIDE_BY_SIDE] for place in range(SIDE_BY_SIDE)]
        answers = (await self._setup.play(parts, self._begin)).answers
        names = [answers[place % SIDE_BY_SIDE][place // SIDE_BY_SIDE]["session"] for place in range(len(asked))]
        self._sessions = _parted(names, scripts)
        self._work = turns(scripts, self._sessions, steps)
        await (self._socket if self._door.startswith("ws") else self._http).open(
            1 if self._door.endswith("batch") else len(scripts)
        )
        return len(asked)

    async def play(self, part: slice) -> Played:
        work = _parts(self._work, part)
        if self._door == "ws":
            return await self._socket.play(work, _ws_step)
        if self._door.startswith("post"):
            return await self._http.play(work, _post_step)
        rounds = list(zip(*work, strict=True))
        if self._door == "ws_batch":
            return await self._socket.play([rounds], lambda now: f'"op":"steps",{_batch(now)}')
        return await self._http.play([rounds], lambda now: (b"/v1/steps", f"{{{_batch(now)}}}".encode()))

    def wrong(self, part: slice, played: Played) -> int:
        work = _parts(self._work, part)
        if not self._door.endswith("batch"):
            return _wrong_native(_flat(work), _flat(played.answers))
        found = 0
        for now, answer in zip(zip(*work, strict=True), played.answers[0], strict=True):
            found += _wrong_native(now, answer["results"]) if "results" in answer else len(now)
        return found

    async def close(self) -> None:
        names = _flat(self._sessions)
        parts = [names[place::SIDE_BY_SIDE] for place in range(SIDE_BY_SIDE)]
        await self._setup.play(parts, lambda name: f'"op":"close","session":"{name}"')
        for link in (self._setup, self._socket, self._http):
            await link.close()

    def _begin(self, asked: tuple[str, str | None]) -> str:
        task, session = asked
        if session is None:
            return f'"op":"create","world":"{self._world.name}","task":"{task}"'
        return f'"op":"reset","session":"{session}","task":"{task}"'


def _ws_step(turn: Turn) -> str:
    return f'"op":"step","session":"{turn.session}","step":{turn.number},"action":{_dumps(turn.action)}'


def _post_step(turn: Turn) -> tuple[bytes, bytes]:
    body = f'{{"step":{turn.number},"action":{_dumps(turn.action)}}}'
    return f"/v1/sessions/{turn.session}/step".encode(), body.encode()


def _batch(now: Sequence[Turn]) -> str:
    return '"steps":' + _dumps([{"session": one.session, "step": one.number, "action": one.action} for one in now])


def _wrong_native(asked: Sequence[Turn], answers: Sequence[Any]) -> int:
    found = 0
    for turn, one in zip(asked, answers, strict=True):
        observation, reward, done, info = turn.reply
        right = {"observation": observation, "reward": reward, "info": info, "step": turn.number}
        found += (
            "error" in one
            or (one["terminated"] or one["truncated"]) != done
            or any(one[name] != value for name, value in right.items())
        )
    return found


class AgentGym:
    """A mount of AgentGym's dialect: a request a step on keep-alive connections."""

    def __init__(self, url: str, world: World) -> None:
        self._mount = f"/agentgym/{world.name}"
        self._http = HttpLines(url)
        self._sessions: list[list[int]] = []
        self._work: list[list[Turn]] = []

    async def ready(self, scripts: Scripts, steps: int) -> int:
        links = max(SIDE_BY_SIDE, len(scripts))
        await self._http.open(links)
        flat = [one for line in scripts for one in line]
        if not self._sessions:
            made = await self._all("create", ["{}"] * len(flat), links)
            self._sessions = _parted([one["id"] for one in made], scripts)
        held = _flat(self._sessions)
        bodies = [f'{{"id":{name},"data_idx":{one.index}}}' for one, name in zip(flat, held, strict=True)]
        await self._all("reset", bodies, links)
        self._work = turns(scripts, self._sessions, steps)
        return len(flat)

    async def _all(self, what: str, bodies: Sequence[str], links: int) -> list[Any]:
        path = f"{self._mount}/{what}".encode()
        parts = [bodies[place::links] for place in range(links)]
        answers = (await self._http.play(parts, lambda body: (path, body.encode()))).answers
        return [answers[place % links][place // links] for place in range(len(bodies))]

    async def play(self, part: slice) -> Played:
        path = f"{self._mount}/step".encode()
        return await self._http.play(_parts(self._work, part), lambda turn: (path, agentgym_step(turn)))

    def wrong(self, part: slice, played: Played) -> int:
        found = 0
        for turn, one in zip(_flat(_parts(self._work, part)), _flat(played.answers), strict=True):
            text, reward, done, _ = turn.reply
            told = "error" not in one and one["observation"].startswith(text)
            found += not told or (one["reward"], one["done"]) != (reward, done)
        return found

    async def close(self) -> None:
        await self._all("close", [f'{{"id":{name}}}' for name in _flat(self._sessions)], SIDE_BY_SIDE)
        await self._http.close()


def agentgym_step(turn: Turn) -> bytes:
    """The body of a step."""
    return f'{{"id":{turn.session},"action":{_dumps(turn.action)}}}'.encode()


class Noop:
    """A route that does nothing: the bodies of `AgentGym`, answered by a constant of the same size."""

    def __init__(self, url: str, world: World) -> None:
        self._path = f"/{world.name}/step".encode()
        self._http = HttpLines(url)
        self._work: list[list[Turn]] = []

    async def ready(self, scripts: Scripts, steps: int) -> int:
        await self._http.open(len(scripts))
        self._work = turns(scripts, [[1234567890] * len(line) for line in scripts], steps)
        return 0

    async def play(self, part: slice) -> Played:
        return await self._http.play(_parts(self._work, part), lambda turn: (self._path, agentgym_step(turn)))

    def wrong(self, part: slice, played: Played) -> int:
        return sum("error" in one for one in _flat(played.answers))

    async def close(self) -> None:
        await self._http.close()


class Remote:
    """`RemoteWorld`: what a rollout uses, a thread for each session as `collect` has it, one WebSocket below."""

    def __init__(self, url: str, world: World) -> None:
        self._world = RemoteWorld(url, world=world.name)
        self._work: list[list[Turn]] = []
        self._pool: ThreadPoolExecutor | None = None
        self._envs: list[list[Env]] = []

    async def ready(self, scripts: Scripts, steps: int) -> int:
        if not self._envs:
            self._envs = [[self._world.make(one.task) for one in line] for line in scripts]
            self._pool = ThreadPoolExecutor(len(scripts))
        if self._pool is None:
            raise RuntimeError("no threads")
        list(self._pool.map(lambda line: [env.reset() for env in line], self._envs))
        self._work = turns(scripts, self._envs, steps)
        return sum(map(len, scripts))

    async def play(self, part: slice) -> Played:
        def one_line(work: Sequence[Turn]) -> tuple[list[float], list[Any]]:
            latencies, answers = [], []
            for turn in work:
                began = time.perf_counter()
                answers.append(turn.session.step(turn.action))
                latencies.append(time.perf_counter() - began)
            return latencies, answers

        if self._pool is None:
            raise RuntimeError("no threads")
        done = list(self._pool.map(one_line, _parts(self._work, part)))
        return Played([one for latencies, _ in done for one in latencies], [answers for _, answers in done])

    def wrong(self, part: slice, played: Played) -> int:
        return _wrong_of_envs(_parts(self._work, part), played)

    async def close(self) -> None:
        if self._pool is not None:
            list(self._pool.map(lambda line: [env.close() for env in line], self._envs))
            self._pool.shutdown()
        self._world.close()


def _parts(work: Sequence[Sequence[Turn]], part: slice) -> list[Sequence[Turn]]:
    return [line[part] for line in work]


def _flat(lines: Iterable[Iterable[Any]]) -> list[Any]:
    return [one for line in lines for one in line]


def _parted(flat: Sequence[Any], like: Scripts) -> list[list[Any]]:
    """A flat list cut into lines as long as those."""
    rest = iter(flat)
    return [[next(rest) for _ in line] for line in like]
