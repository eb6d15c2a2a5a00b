"""One mount: one world in one dialect. It turns the bodies of AgentGym's clients into calls of the host and back."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from evolvent.errors import ConfigError, EnvLost, InvalidAction, SampleInvalid, SessionGone, StepTimeout, WorldError
from evolvent.serve.agentgym.dialects import Dialect
from evolvent.serve.agentgym.lookups import Lookup, lookups_of
from evolvent.serve.agentgym.numbers import numbered
from evolvent.serve.agentgym.replies import Play, refused_body, reset_body, step_body
from evolvent.serve.agentgym.text import voice_of
from evolvent.serve.catalogue import Catalogue
from evolvent.serve.host import Host
from evolvent.serve.wire import Ended, NotFound
from evolvent.trajectory import Json, Task

__all__ = ["Desk", "Handler"]

T = TypeVar("T")
Handler = Callable[[Mapping[str, Any]], Awaitable[Json]]
_WORLD_TYPES = ("Text", "Embody", "Hybrid")
_SPARE = 64  # sessions remembered beyond those that can be open


class Desk:
    """The sessions of one mount.

    It remembers what the dialect needs of each: the texts told, the rewards so far, the last answer. At most twice as
    many are remembered as the host can hold, and the least recently used are forgotten. A host gives up idle sessions
    in the same order, so that what is open is known.
    """

    def __init__(self, host: Host, catalogue: Catalogue, *, world: str, dialect: Dialect) -> None:
        self.dialect = dialect
        self._host, self._catalogue, self._name, self._world = host, catalogue, world, host.worlds[world]
        self._voice = voice_of(dialect.name, self._world)
        self._lookups = lookups_of(dialect, self._voice)
        self._plays: OrderedDict[int, Play] = OrderedDict()
        self._vocabulary: Mapping[str, Any] = {}
        self._numbered = numbered(self._world)

    def routes(self) -> dict[str, dict[str, Handler]]:
        """Path below the mount -> method -> what answers it."""
        found: dict[str, dict[str, Handler]] = {
            "/create": {"POST": self.create},
            "/reset": {"POST": self.reset},
            "/step": {"POST": self.step},
            "/close": {"POST": self.close},
            "/": {"GET": self.hello},
            "": {"GET": self.hello},
        }
        for name, lookup in self._lookups.items():
            found[f"/{name}"] = {"GET": self._looking(lookup)}
        if self.dialect.shape != "object":
            found["/list_envs"] = {"GET": self.listed}
        if self.dialect.name == "sciworld":
            found["/step_visual"] = {"POST": self.step}
        if self.dialect.name == "babyai":
            found["/render"] = {"POST": self.render}
        if self.dialect.name == "wordle":
            found["/filtered_vocab"] = {"GET": self.words}
        return found

    async def hello(self, body: Mapping[str, Any]) -> Json:
        """What the original says at its root."""
        return f"This is environment {self.dialect.title}." if self.dialect.shape == "object" else "ok"

    async def create(self, body: Mapping[str, Any]) -> Json:
        """A new session. TextCraft begins an episode at once; what else its body holds (a folder) is never read."""
        session = await self._host.create(self._name, short=True)
        play = Play(int(session), session, high=self._world.reward_range[1])
        self._plays[play.number] = play
        while len(self._plays) > 2 * self._host.status().capacity + _SPARE:
            self._plays.popitem(last=False)
        if self.dialect.name != "textcraft":
            return self.dialect.created(play.number)
        try:
            await self._begin(play, 0)
        except (ConfigError, WorldError):
            await self._drop(play)
            raise
        return reset_body(self.dialect, play)

    async def reset(self, body: Mapping[str, Any]) -> Json:
        """Begin an episode, or begin anew. Without a number: the same task again, at first task 0."""
        play = self._play(body)
        kind = body.get("world_type", _WORLD_TYPES[0])
        if self.dialect.name == "alfworld" and kind not in _WORLD_TYPES:
            raise SampleInvalid("an unknown type of world", value=kind, expected=", ".join(_WORLD_TYPES))
        index = body.get(self.dialect.index)
        await self._begin(play, play.index if index is None else _number(body, self.dialect.index))
        return reset_body(self.dialect, play)

    async def step(self, body: Mapping[str, Any]) -> Json:
        """Take a step. After the end of an episode the last answer is told again, with `ended: true`."""
        play, action = self._play(body), body.get("action")
        if not isinstance(action, str):
            raise SampleInvalid("no text of an action", value=action, expected='"action": "the text"')
        if play.over is not None:
            return {**play.over, "ended": True}
        if play.task is None:
            raise Ended("a step before the first reset", value=action, expected="POST /reset first")
        try:
            heard = self._voice.hear(action)
        except InvalidAction as error:
            return refused_body(self.dialect, play, f"{error.what}; expected {error.expected}")
        try:
            stepped = await self._kept(play, self._host.step(play.session, heard))
        except InvalidAction as error:  # no text at all: refused before anything happened
            return refused_body(self.dialect, play, str(error))
        except Ended:
            if play.over is None:
                raise
            return {**play.over, "ended": True}
        try:
            play.earn(stepped)
        except WorldError:
            await self._drop(play)
            raise
        play.text = self._voice.answered(
            stepped.observation, stepped.info, action=heard, truncated=stepped.truncated and not stepped.terminated
        )
        told = step_body(
            self.dialect, play, terminated=stepped.terminated, truncated=stepped.truncated, info=stepped.info
        )
        if stepped.terminated or stepped.truncated or self.dialect.horizon == 1:
            play.over = told
        return told

    async def close(self, body: Mapping[str, Any]) -> Json:
        """Give a session back: true, or false where there is none."""
        play = self._plays.pop(_number(body, self.dialect.session), None)
        closed = play is not None and await self._host.close(play.session)
        return {"closed": "closed" if closed else "not open"} if self.dialect.shape == "web" else closed

    async def listed(self, body: Mapping[str, Any]) -> Json:
        """The sessions of this mount that are known, oldest first."""
        return list(self._plays)

    async def words(self, body: Mapping[str, Any]) -> Json:
        """Wordle's list. Its client asks before the first reset, so a task is begun to learn what may be guessed."""
        play = self._play(body)
        if not self._vocabulary:
            if play.task is None:
                seen = await self._kept(play, self._host.reset(play.session, await self._task(0)))
                self._vocabulary = seen.info
            else:
                self._vocabulary = play.info
        return self._lookups["filtered_vocab"](Play(play.number, play.session, info=self._vocabulary))

    async def render(self, body: Mapping[str, Any]) -> Json:
        """BabyAI's picture, which no world here draws."""
        self._play(body)
        raise NotFound("this server draws no pictures", hint="read the observation")

    def _looking(self, lookup: Lookup) -> Handler:
        async def answer(body: Mapping[str, Any]) -> Json:
            play = self._play(body)
            await self._kept(play, self._host.look(play.session))
            return lookup(play)

        return answer

    async def _begin(self, play: Play, index: int) -> None:
        task = await self._task(index)
        seen = await self._kept(play, self._host.reset(play.session, task))
        play.begin(task, index, text=self._voice.first(seen.observation, seen.info), info=seen.info)

    async def _task(self, index: int) -> Task:
        """The task of a number; Wordle's is a seed, so it goes round.

        Raises:
            NotFound: no task has this number.
        """
        try:
            if self._numbered is not None:
                return await asyncio.to_thread(self._numbered, index)
            if self.dialect.index == "seed":
                index %= max(1, await self._catalogue.count(self._name))
            return await self._catalogue.at(self._name, index)
        except ConfigError as error:
            raise NotFound(error.what, value=error.value, expected=error.expected, hint=error.hint) from error

    def _play(self, body: Mapping[str, Any]) -> Play:
        number = _number(body, self.dialect.session)
        play = self._plays.get(number)
        if play is None:
            raise SessionGone(f"no session {number} here", hint="it was closed, was idle for too long, or never was")
        self._plays.move_to_end(number)
        return play

    async def _kept(self, play: Play, answer: Awaitable[T]) -> T:
        """The host's answer; a session that it has lost is forgotten here."""
        try:
            return await answer
        except Ended:
            raise
        except (EnvLost, StepTimeout, SessionGone):
            self._plays.pop(play.number, None)
            raise

    async def _drop(self, play: Play) -> None:
        self._plays.pop(play.number, None)
        await self._host.close(play.session)


def _number(body: Mapping[str, Any], key: str) -> int:
    """A whole number of a body or a query; digits in a text are one too."""
    value = body.get(key)
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 18:
        return int(value)
    if type(value) is not int:
        raise SampleInvalid(f"no whole number {key!r}", value=value, expected=f'"{key}": 0')
    return value
