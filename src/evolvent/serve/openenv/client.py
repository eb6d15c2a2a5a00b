"""An OpenEnv server as a world: `OpenEnvWorld("http://127.0.0.1:8000", tasks=[{"seed": 0}, ...])`.

Every Env has a WebSocket of its own, since that is what a session is there. The sockets of a world live on one event
loop; its Envs are called from threads (`blocking`), each call with a deadline of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from random import Random
from typing import Any

from evolvent.deadline import Deadline, backoff
from evolvent.errors import AtCapacity, ConfigError, EnvLost, InvalidAction, SessionGone, StepTimeout, WorldError
from evolvent.serve.given import Given, GivenWorld, Panels, Patience, Rules
from evolvent.serve.loop import Loop
from evolvent.serve.openenv.link import Link, described
from evolvent.serve.openenv.wire import FEATURE
from evolvent.serve.remote.http import address
from evolvent.serve.wire import finite, plain, text_of
from evolvent.trajectory import Task, Value
from evolvent.worlds.base import Env, Info, Reply, check_task

__all__ = ["OpenEnvWorld"]

Writer = Callable[[Value], Mapping[str, Any]]
Reader = Callable[[Mapping[str, Any]], str]


class OpenEnvWorld(GivenWorld):
    """The environment of an OpenEnv server.

    Args:
        base_url: of the environment.
        tasks: what to reset with, one spec a task: `{"seed": 3}`, `{"episode_id": "a"}`, or whatever the environment
            takes. Given as a list they are dealt to splits by hash; given by split, as they are.
        action: the field of the action that holds the agent's text, or a function from it to all fields. Fields are
            sent as they are: a list stays a list.
        text: the field of the observation that the agent reads, or a function from all fields to that text.
        name: of the world; None: what the server calls itself.
        rules: what the server does not tell.
        patience: how long to wait, and for how large a message.
        token: sent as a bearer token.

    Raises:
        ConfigError: tasks that are none, or an address that is none.
        EnvLost, AccessDenied: the server cannot be reached, or refuses.
    """

    def __init__(
        self,
        base_url: str,
        *,
        tasks: Given,
        action: str | Writer = "message",
        text: str | Reader = "text",
        name: str | None = None,
        rules: Rules | None = None,
        patience: Patience | None = None,
        token: str | None = None,
    ) -> None:
        self.base, _ = address(base_url)
        self._headers = {} if token is None else {"authorization": f"Bearer {token}"}
        self.patience, rules = patience or Patience(), rules or Rules()
        self.loop = Loop("evolvent-openenv")
        asked = described(self.base, self.patience, headers=self._headers)
        told = self.loop.run(asked, self.patience.connect_s + 1, what=self.base)
        self.name = name or str(told.get("name") or "openenv")
        self.version = str(told.get("version") or "0")
        self.instructions = str(told.get("description") or "") if rules.instructions is None else rules.instructions
        self.grammar, self.horizon, self.reward_range = rules.grammar, rules.horizon, rules.reward_range
        self._success, self._action, self._text = rules.success, action, text
        self.ours = isinstance(told.get(FEATURE), Mapping)
        self._panels = Panels(self.name, self.version, tasks)

    def __repr__(self) -> str:
        return f"OpenEnvWorld({self.base!r}, name={self.name!r})"

    def make(self, task: Task) -> Env:
        """An Env; it connects at its first reset."""
        check_task(self, task)
        return _Env(self, task)

    def close(self) -> None:
        """Give all connections back; the world cannot be used any more."""
        self.loop.close()

    def link(self) -> Link:
        """A connection of its own."""
        return Link(self.base, self.patience, numbered=self.ours, headers=self._headers)

    def written(self, action: Value) -> dict[str, Any]:
        """The fields of an action.

        Raises:
            SampleInvalid: a field that JSON does not have.
        """
        fields = self._action(action) if callable(self._action) else {self._action: action}
        told = plain(fields)
        return dict(told) if isinstance(told, dict) else {}

    def seen(self, answer: Mapping[str, Any]) -> tuple[str, Info]:
        """The text of an observation, and everything else of it as info.

        Raises:
            WorldError: without the field that holds the text.
        """
        fields = answer.get("observation")
        if not isinstance(fields, Mapping):
            raise WorldError(f"{self.base} answered without an observation", value=answer, expected="{observation}")
        if callable(self._text):
            return text_of(str(self._text(fields))), dict(fields)
        if not isinstance(fields.get(self._text), str):
            raise WorldError(
                f"an observation of {self.base} without text",
                value=sorted(map(str, fields)),
                expected=self._text,
                hint="name the field that holds the text as text=...",
            )
        rest = {str(key): value for key, value in fields.items() if key != self._text}
        if self.ours:
            told = rest.pop("metadata", {})
            inner = told.get("info", {}) if isinstance(told, Mapping) else {}
            rest = {**(inner if isinstance(inner, Mapping) else {}), **rest}
        return text_of(fields[self._text]), rest


class _Env:
    """One session of an OpenEnv server, on a connection of its own."""

    def __init__(self, world: OpenEnvWorld, task: Task) -> None:
        self._world, self._task = world, task
        self._link = world.link()
        self._playing = False

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Value, Info]:
        """Begin the episode. A full server is asked again until the deadline."""
        self._playing = False
        deadline = Deadline(self._world.patience.reset_s)
        rng, attempt = Random(), 0
        while True:
            reused = self._link.open
            try:
                answer = self._ask("reset", self._task.spec, deadline.left())
                break
            except AtCapacity as full:
                pause = max(backoff(attempt, rng), min(full.retry_after_s, 1.0))
                if pause >= deadline.left():
                    raise
                time.sleep(pause)
                attempt += 1
            except EnvLost:
                if not reused:  # else the server ended it meanwhile, and a fresh one may do
                    raise
            except InvalidAction as wrong:
                what = f"{self._world.base} refuses the task: {wrong}"
                raise ConfigError(what, value=dict(self._task.spec)) from wrong
        seen = self._world.seen(answer)
        self._playing = not answer.get("done")
        return seen

    def step(self, action: Value) -> Reply:
        """Take a step. It is never sent twice: nobody knows whether a lost one was taken."""
        if not self._playing:
            raise SessionGone("a step after the end of the episode", value=str(action), expected="reset() first")
        self._playing = False
        try:
            answer = self._ask("step", self._world.written(action), self._world.patience.step_s)
        except InvalidAction as wrong:
            self._playing = True
            return f"invalid action: {wrong}", 0.0, False, False, {"invalid": True}
        observation, info = self._world.seen(answer)
        done = answer.get("done")
        if not isinstance(done, bool):
            raise WorldError(f"{self._world.base} answered without done", value=done, expected="true or false")
        reward, truncated = _reward(answer.get("reward")), done and self._truncated(answer)
        self._playing = not done
        return observation, reward, done and not truncated, truncated, info  # type: ignore[return-value]

    def close(self) -> None:
        """Give the session back."""
        self._playing = False
        if self._link.open and self._world.loop.running:
            self._world.loop.run(self._link.close(), self._world.patience.connect_s, what="close")

    def _ask(self, kind: str, data: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        try:
            return self._world.loop.run(self._link.ask(kind, data), timeout_s, what=f"{kind} at {self._world.base}")
        except StepTimeout:
            self._link = self._world.link()  # the late answer comes on the old one, which is dropped
            raise

    def _truncated(self, answer: Mapping[str, Any]) -> bool:
        """Whether the episode was cut off, which only our own server tells."""
        told = answer["observation"].get("metadata")
        return self._world.ours and isinstance(told, Mapping) and told.get("truncated") is True


def _reward(value: object) -> float | None:
    """A reward; None stays None: not scored is not 0."""
    if value is None:
        return None
    number = finite(value)
    if number is not None:
        return number
    raise WorldError("a reward that is no number", value=value, expected="a finite number, or null")
