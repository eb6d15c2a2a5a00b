"""An OpenEnv server as a world: `OpenEnvWorld("http://127.0.0.1:8000", tasks=[{"seed": 0}, ...])`.

Every Env has its own WebSocket, since a socket is a session there. The sockets of a world live on one event loop; its
Envs are called from threads (`run_in_thread`), each call with its own deadline.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from random import Random
from typing import Any

from evolvent.deadline import Deadline, backoff
from evolvent.errors import AtCapacity, ConfigError, EnvLost, InvalidAction, SessionGone, StepTimeout, WorldError
from evolvent.serve.given import ClientTimeouts, SpecWorld, TaskPanels, TaskSpecs, WorldRules
from evolvent.serve.loop import Loop
from evolvent.serve.openenv.link import OpenEnvConnection, fetch_description
from evolvent.serve.openenv.wire import FEATURE_KEY
from evolvent.serve.remote.http import parse_server_url
from evolvent.serve.wire import finite_or_none, replace_surrogates, to_json
from evolvent.trajectory import JsonObject, Task, Value
from evolvent.worlds.base import Env, Info, Reply, check_task

__all__ = ["OpenEnvWorld"]

Writer = Callable[[Value], Mapping[str, object]]
Reader = Callable[[Mapping[str, object]], str]


class OpenEnvWorld(SpecWorld):
    """The environment of an OpenEnv server.

    Args:
        base_url: address of the environment.
        tasks: fields of the reset, one spec a task: `{"seed": 3}`, `{"episode_id": "a"}`, or whatever the environment
            takes. A list is dealt to splits by hash; a mapping by split is used as it is.
        action: field of the action that holds the agent's text, or a function from it to all fields. Fields are sent as
            they are: a list stays a list.
        text: field of the observation that the agent reads, or a function from all fields to that text.
        name: name of the world; None: the server's name for itself.
        rules: properties that the server does not report.
        timeouts: timeouts, and the largest message.
        token: sent as a bearer token.

    Raises:
        ConfigError: invalid tasks, or an invalid address.
        EnvLost, AccessDenied: the server cannot be reached, or refuses.
    """

    def __init__(
        self,
        base_url: str,
        *,
        tasks: TaskSpecs,
        action: str | Writer = "message",
        text: str | Reader = "text",
        name: str | None = None,
        rules: WorldRules | None = None,
        timeouts: ClientTimeouts | None = None,
        token: str | None = None,
    ) -> None:
        self.base, _ = parse_server_url(base_url)
        self._headers = {} if token is None else {"authorization": f"Bearer {token}"}
        self.patience, rules = timeouts or ClientTimeouts(), rules or WorldRules()
        self.loop = Loop("evolvent-openenv")
        description_call = fetch_description(self.base, self.patience, headers=self._headers)
        description = self.loop.run(description_call, self.patience.connect_s + 1, label=self.base)
        self.name = name or str(description.get("name") or "openenv")
        self.version = str(description.get("version") or "0")
        self.instructions = (
            str(description.get("description") or "") if rules.instructions is None else rules.instructions
        )
        self.grammar, self.horizon, self.reward_range = rules.grammar, rules.horizon, rules.reward_range
        self._success, self._action, self._text = rules.success, action, text
        self.ours = isinstance(description.get(FEATURE_KEY), Mapping)
        self._panels = TaskPanels(self.name, self.version, tasks)

    def __repr__(self) -> str:
        return f"OpenEnvWorld({self.base!r}, name={self.name!r})"

    def make(self, task: Task) -> Env:
        """Creates an Env; it connects at its first reset."""
        check_task(self, task)
        return _OpenEnvEnv(self, task)

    def close(self) -> None:
        """Closes all connections; the world cannot be used any more."""
        self.loop.close()

    def create_connection(self) -> OpenEnvConnection:
        """Creates a separate connection."""
        return OpenEnvConnection(self.base, self.patience, with_request_ids=self.ours, headers=self._headers)

    def encode_action(self, action: Value) -> dict[str, object]:
        """Returns the fields of an action.

        Raises:
            SampleInvalid: a field that JSON does not have.
        """
        fields = self._action(action) if callable(self._action) else {self._action: action}
        json_fields = to_json(fields)
        return dict(json_fields) if isinstance(json_fields, dict) else {}

    def parse_observation(self, answer: Mapping[str, object]) -> tuple[str, Info]:
        """Returns the text of an observation, and all other fields as info.

        Raises:
            WorldError: the field of the text is missing.
        """
        fields = answer.get("observation")
        if not isinstance(fields, Mapping):
            raise WorldError(f"{self.base} answered without an observation", value=answer, expected="{observation}")
        if callable(self._text):
            return replace_surrogates(str(self._text(fields))), dict(fields)
        if not isinstance(fields.get(self._text), str):
            raise WorldError(
                f"an observation of {self.base} without text",
                value=sorted(map(str, fields)),
                expected=self._text,
                hint="name the field that holds the text as text=...",
            )
        info = {str(key): value for key, value in fields.items() if key != self._text}
        if self.ours:
            metadata = info.pop("metadata", {})
            nested_info = metadata.get("info", {}) if isinstance(metadata, Mapping) else {}
            info = {**(nested_info if isinstance(nested_info, Mapping) else {}), **info}
        return replace_surrogates(fields[self._text]), info


class _OpenEnvEnv:
    """One session of an OpenEnv server, on its own connection."""

    def __init__(self, world: OpenEnvWorld, task: Task) -> None:
        self._world, self._task = world, task
        self._link = world.create_connection()
        self._playing = False

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Value, Info]:
        """Starts the episode. A full server is asked again until the deadline."""
        self._playing = False
        deadline = Deadline(self._world.patience.reset_s)
        rng, attempt = Random(), 0
        while True:
            was_open = self._link.is_open
            try:
                answer = self._ask("reset", self._task.spec, deadline.left())
                break
            except AtCapacity as capacity_error:
                pause = max(backoff(attempt, rng), min(capacity_error.retry_after_s, 1.0))
                if pause >= deadline.left():
                    raise
                time.sleep(pause)
                attempt += 1
            except EnvLost:
                if not was_open:  # else the server ended it meanwhile, and a fresh one may do
                    raise
            except InvalidAction as error:
                message = f"{self._world.base} refuses the task: {error}"
                raise ConfigError(message, value=dict(self._task.spec)) from error
        parsed = self._world.parse_observation(answer)
        self._playing = not answer.get("done")
        return parsed

    def step(self, action: Value) -> Reply:
        """Plays a step. It is never sent twice: a lost step may have been taken or not."""
        if not self._playing:
            raise SessionGone("a step after the end of the episode", value=str(action), expected="reset() first")
        self._playing = False
        try:
            answer = self._ask("step", self._world.encode_action(action), self._world.patience.step_s)
        except InvalidAction as error:
            self._playing = True
            return f"invalid action: {error}", 0.0, False, False, {"invalid": True}
        observation, info = self._world.parse_observation(answer)
        done = answer.get("done")
        if not isinstance(done, bool):
            raise WorldError(f"{self._world.base} answered without done", value=done, expected="true or false")
        reward, truncated = _parse_reward(answer.get("reward")), done and self._is_truncated(answer)
        self._playing = not done
        return observation, reward, done and not truncated, truncated, info  # type: ignore[return-value]

    def close(self) -> None:
        """Closes the session."""
        self._playing = False
        if self._link.is_open and self._world.loop.is_running:
            self._world.loop.run(self._link.close(), self._world.patience.connect_s, label="close")

    def _ask(self, kind: str, data: Mapping[str, Any], timeout_s: float) -> JsonObject:
        try:
            return self._world.loop.run(self._link.ask(kind, data), timeout_s, label=f"{kind} at {self._world.base}")
        except StepTimeout:
            self._link = self._world.create_connection()  # the late answer comes on the old one, which is dropped
            raise

    def _is_truncated(self, answer: Mapping[str, Any]) -> bool:
        """Returns whether the episode was truncated, which only our own server reports."""
        metadata = answer["observation"].get("metadata")
        return self._world.ours and isinstance(metadata, Mapping) and metadata.get("truncated") is True


def _parse_reward(value: object) -> float | None:
    """Returns a reward; None stays None: not scored is not 0."""
    if value is None:
        return None
    number = finite_or_none(value)
    if number is not None:
        return number
    raise WorldError("a reward that is no number", value=value, expected="a finite number, or null")
