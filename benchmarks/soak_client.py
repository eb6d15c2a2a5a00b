"""One client process of `benchmarks.soak`: sessions that play episodes and compare every answer, until it is killed.

    python -m benchmarks.soak_client URL EPISODES.json --door ws --sessions 32 --seed 0

It knows the protocols alone and nothing of the library: the episodes, their actions and the right answers come from the
file. Once a second it writes a line of JSON: what has happened since the last one.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import sys
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any, Protocol

from websockets.asyncio.client import ClientConnection, connect

from benchmarks.serve_clients import HttpLines

THINK_S = 0.25  # mean pause of a session before a step
REPEATED, ABANDONED = 0.05, 0.1  # shares of steps that are sent twice, and of episodes that nobody closes
FULL_S = 0.5
Episode = Mapping[str, Any]


class Refused(Exception):
    """An error of the server; `kind` as it says."""

    def __init__(self, row: Any) -> None:
        told = row if isinstance(row, Mapping) else {}
        super().__init__(str(told.get("message", row))[:200])
        self.kind = str(told.get("kind", "unreadable"))


class Door(Protocol):
    """How a session talks to the server. Each raises Refused."""

    async def begin(self, episode: Episode) -> Any: ...

    async def step(self, session: Any, number: int, action: str) -> Mapping[str, Any]: ...

    async def close(self, session: Any) -> None: ...

    def right(self, answer: Mapping[str, Any], reply: Mapping[str, Any], number: int) -> bool: ...


class Native:
    """What WebSocket and HTTP have in common."""

    async def ask(self, op: str, **fields: Any) -> Any:
        raise NotImplementedError

    async def begin(self, episode: Episode) -> Any:
        seen = await self.ask("create", world=episode["world"], task=episode["task"])
        first = {"observation": seen["observation"], "info": seen["info"], "step": seen["step"]}
        return seen["session"] if first == {**episode["first"], "step": 0} else Wrong(first)

    async def step(self, session: Any, number: int, action: str) -> Mapping[str, Any]:
        found: Mapping[str, Any] = await self.ask("step", session=session, step=number, action=action)
        return found

    async def close(self, session: Any) -> None:
        await self.ask("close", session=session)

    def right(self, answer: Mapping[str, Any], reply: Mapping[str, Any], number: int) -> bool:
        return answer == {**reply, "step": number}


class Wrong:
    """A first observation that is not the right one."""

    def __init__(self, told: object) -> None:
        self.told = told


class Socket(Native):
    """One WebSocket for all sessions of the process."""

    def __init__(self, url: str) -> None:
        self._url, self._waiting = url.replace("http", "ws", 1) + "/v1/ws", dict[int, asyncio.Future[Any]]()
        self._numbers = itertools.count()
        self._socket: ClientConnection | None = None
        self._reader: asyncio.Task[None] | None = None

    async def open(self) -> None:
        self._socket = await connect(self._url, compression=None, max_size=2**24)
        self._reader = asyncio.create_task(self._read(self._socket))

    async def _read(self, socket: ClientConnection) -> None:
        async for text in socket:
            message = json.loads(text)
            future = self._waiting.pop(message["request_id"])
            if "error" in message:
                future.set_exception(Refused(message["error"]))
            else:
                future.set_result(message["ok"])

    async def ask(self, op: str, **fields: Any) -> Any:
        if self._socket is None:
            await self.open()
        if self._socket is None or self._reader is None or self._reader.done():
            raise Refused({"kind": "lost", "message": "the WebSocket is closed"})
        number = next(self._numbers)
        future = self._waiting[number] = asyncio.get_running_loop().create_future()
        await self._socket.send(json.dumps({"request_id": number, "op": op, **fields}))
        return await future


class Http(Native):
    """Keep-alive HTTP, one request at a time."""

    ROUTES: Mapping[str, tuple[bytes, str]] = {
        "create": (b"POST", "/v1/sessions"),
        "step": (b"POST", "/v1/sessions/{session}/step"),
        "close": (b"DELETE", "/v1/sessions/{session}"),
    }

    def __init__(self, url: str) -> None:
        self._lines = HttpLines(url)

    async def ask(self, op: str, **fields: Any) -> Any:
        method, path = self.ROUTES[op]
        return await posted(self._lines, path.format(**fields), fields, method)


class AgentGym:
    """A mount of AgentGym's dialect."""

    def __init__(self, url: str) -> None:
        self._lines = HttpLines(url)
        self._mount = ""

    async def begin(self, episode: Episode) -> Any:
        self._mount = f"/agentgym/{episode['world']}"
        made = await posted(self._lines, f"{self._mount}/create", {})
        seen = await posted(self._lines, f"{self._mount}/reset", {"id": made["id"], "data_idx": episode["index"]})
        return made["id"] if episode["first"]["observation"] in seen["observation"] else Wrong(seen)

    async def step(self, session: Any, number: int, action: str) -> Mapping[str, Any]:
        body = {"id": session, "action": action}
        found: Mapping[str, Any] = await posted(self._lines, f"{self._mount}/step", body)
        return found

    async def close(self, session: Any) -> None:
        await posted(self._lines, f"{self._mount}/close", {"id": session})

    def right(self, answer: Mapping[str, Any], reply: Mapping[str, Any], number: int) -> bool:
        done = reply["terminated"] or reply["truncated"]
        return answer["observation"].startswith(reply["observation"]) and (answer["reward"], answer["done"]) == (
            reply["reward"],
            done,
        )


async def posted(lines: HttpLines, path: str, body: Mapping[str, Any], method: bytes = b"POST") -> Any:
    """The answer of one request."""
    await lines.open(1)
    data = json.dumps(body).encode()
    answer = (await lines.play([[None]], lambda _: (path.encode(), data), method)).answers[0][0]
    if isinstance(answer, Mapping) and "error" in answer:
        raise Refused(answer["error"])
    return answer


class Client:
    """The sessions of this process, and what happened since the last report."""

    def __init__(self, episodes: list[Episode], *, repeats: bool) -> None:
        self._episodes, self._repeats = episodes, repeats
        self._counts: Counter[str] = Counter()
        self._events: list[dict[str, Any]] = []

    async def live(self, door: Door, rng: Random) -> None:
        """Play episodes for ever."""
        await asyncio.sleep(rng.random() * 2)
        while True:
            episode = self._episodes[int(rng.random() * len(self._episodes))]
            try:
                await self._play(door, episode, rng)
                self._counts["episodes"] += 1
            except Refused as error:
                self._note(error.kind, f"{episode['world']}: {error}")
                await asyncio.sleep(FULL_S * (0.5 + rng.random()))
            except (OSError, KeyError, TypeError, ValueError) as error:
                self._note(type(error).__name__, f"{episode['world']}: {error!r}"[:200])
                await asyncio.sleep(FULL_S)

    async def _play(self, door: Door, episode: Episode, rng: Random) -> None:
        session = await door.begin(episode)
        self._counts["observations"] += 1
        if isinstance(session, Wrong):
            return self._wrong(episode, -1, answer=session.told)
        for number, (action, reply) in enumerate(zip(episode["actions"], episode["replies"], strict=True)):
            await asyncio.sleep(rng.expovariate(1 / THINK_S))
            for _ in range(2 if self._repeats and rng.random() < REPEATED else 1):
                answer = await door.step(session, number, action)
                self._counts["observations"] += 1
                if not door.right(answer, reply, number):
                    self._wrong(episode, number, answer=answer)
        if rng.random() >= ABANDONED:
            await door.close(session)
        return None

    def _wrong(self, episode: Episode, number: int, *, answer: object) -> None:
        self._counts["wrong"] += 1
        self._note("wrong", f"{episode['world']} {episode['task']} step {number}: {answer}"[:300])

    def _note(self, kind: str, message: str) -> None:
        self._events.append({"at": time.monotonic(), "kind": kind, "message": message})

    async def tell(self) -> None:
        """Report once a second; ends when nobody listens any more."""
        while True:
            await asyncio.sleep(1.0)
            said, self._events = {**self._counts, "events": self._events[:200]}, []
            self._counts.clear()
            sys.stdout.write(json.dumps(said) + "\n")
            sys.stdout.flush()


async def run(options: argparse.Namespace) -> None:
    episodes = json.loads(options.episodes.read_bytes())
    client = Client(episodes, repeats=options.door != "agentgym")
    shared = Socket(options.url)
    if options.door == "ws":
        await shared.open()
    async with asyncio.TaskGroup() as group:
        for number in range(options.sessions):
            door: Door = shared
            if options.door != "ws":
                door = Http(options.url) if options.door == "post" else AgentGym(options.url)
            group.create_task(client.live(door, Random(f"{options.seed}/{number}")))
        group.create_task(client.tell())


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("url")
    parser.add_argument("episodes", type=Path)
    parser.add_argument("--door", choices=("ws", "post", "agentgym"), default="ws")
    parser.add_argument("--sessions", type=int, default=32)
    parser.add_argument("--seed", default="0")
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
