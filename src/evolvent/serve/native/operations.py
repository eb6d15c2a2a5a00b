"""The session operations of the native dialect, for any transport: JSON values in, JSON text out.

HTTP and WebSocket share these, so that a body means the same on both. Unknown fields are ignored.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NoReturn

from evolvent.errors import ConfigError, EnvLost, EvolventError, Problem
from evolvent.serve.catalogue import TaskIndex
from evolvent.serve.host import ResetResult, SessionHost, StepRequest, StepResult
from evolvent.serve.native.rows import encode_compact, encode_info_text, encode_step_text
from evolvent.serve.wire import encode_error, encode_snapshot
from evolvent.trajectory import JsonObject

__all__ = ["MAX_BATCH", "Operations"]

MAX_BATCH = 1024  # most steps of one batch
_SEED_LIMIT = 2**63


class Operations:
    """The native operations over a host and its tasks.

    Each takes the fields of a request and returns the JSON text of its answer; errors leave as typed errors.
    """

    def __init__(self, host: SessionHost, task_index: TaskIndex) -> None:
        self.host, self.catalogue = host, task_index
        self.by_name: Mapping[str, Callable[[Mapping[str, Any]], Awaitable[str]]] = {
            "create": self.create,
            "reset": self.reset,
            "step": self.step,
            "steps": self.steps,
            "look": self.look,
            "close": self.close,
            "ping": self.ping,
        }

    async def create(self, body: Mapping[str, object]) -> str:
        """Creates a session and starts its episode: `{world, task, seed}` -> `{session, observation, info, step}`."""
        world, task_or_id, seed = _get_text(body, "world"), _get_task(body, "task"), _get_seed(body)
        task = await self.catalogue.get(world, task_or_id)
        session = await self.host.create(world)
        try:
            return _reset_text(session, await self.host.reset(session, task, seed=seed))
        except EvolventError:
            await self.host.close(session)
            raise

    async def reset(self, body: Mapping[str, object]) -> str:
        """Starts another episode in a session: `{session, task, seed}` -> `{session, observation, info, step}`."""
        session, task_or_id, seed = _get_text(body, "session"), _get_task(body, "task"), _get_seed(body)
        snapshot = await self.host.look(session)
        task = await self.catalogue.get(snapshot.world, task_or_id)
        return _reset_text(session, await self.host.reset(session, task, seed=seed))

    async def step(self, body: JsonObject) -> str:
        """Plays a step: `{session, step, action}` -> a step row; `step` null or absent: the next one."""
        item = _parse_item(body)
        return encode_step_text(await self.host.step(item.session, item.action, step=item.step))

    async def steps(self, body: JsonObject) -> str:
        """Plays a batch: `{steps: [{session, step, action}]}` -> `{results: [step row | {error}]}` in their order.

        A step that cannot be read fails alone; a batch that is not a list, or too long, fails as a whole.
        """
        raw_steps = body.get("steps")
        if not isinstance(raw_steps, list) or len(raw_steps) > MAX_BATCH:
            description = f"{len(raw_steps)} steps" if isinstance(raw_steps, list) else _describe_kind(raw_steps)
            _raise_problem("steps", description, f"a list of at most {MAX_BATCH} steps")
        items, failed = _parse_items(raw_steps)
        rows = list(map(_result_text, await self.host.steps(items)))
        for index, error_text in failed.items():  # from the first to the last, so that each gets its place
            rows.insert(index, error_text)
        return f'{{"results":[{",".join(rows)}]}}'

    async def look(self, body: Mapping[str, object]) -> str:
        """Returns the state of a session: `{session}` -> a snapshot row."""
        return encode_compact(encode_snapshot(await self.host.look(_get_text(body, "session"))))

    async def close(self, body: JsonObject) -> str:
        """Closes a session: `{session}` -> `{closed}`, false if it no longer existed."""
        return '{"closed":true}' if await self.host.close(_get_text(body, "session")) else '{"closed":false}'

    async def ping(self, body: Mapping[str, object]) -> str:
        """Returns `{pong: true}`."""
        return '{"pong":true}'


def _reset_text(session: str, reset_result: ResetResult) -> str:
    head = encode_compact({"session": session, "observation": reset_result.observation, "step": 0})
    return f'{head[:-1]},"info":{encode_info_text(reset_result.info)}}}'


def _result_text(answer: StepResult | EvolventError) -> str:
    """Returns one result of a batch; a step whose info is not JSON fails alone."""
    if isinstance(answer, EvolventError):
        return _error_text(answer)
    try:
        return encode_step_text(answer)
    except EnvLost as error:
        return _error_text(error)


def _error_text(error: EvolventError) -> str:
    return encode_compact({"error": encode_error(error)})


def _parse_items(raw_steps: list[Any]) -> tuple[list[StepRequest], dict[int, str]]:
    """Returns the steps of a batch, and by their index the errors of those that cannot be read."""
    items, failed = [], {}
    for index, part in enumerate(raw_steps):
        try:
            items.append(_parse_item(part, index))
        except ConfigError as error:
            failed[index] = _error_text(error)
    return items, failed


def _parse_item(body: object, index: int | None = None) -> StepRequest:
    """Parses a requested step with its index in a batch; the usual case costs three look-ups."""
    if isinstance(body, dict):
        session, action, step = body.get("session"), body.get("action"), body.get("step")
        if type(session) is str and type(action) is str and (step is None or (type(step) is int and step >= 0)):
            return StepRequest(session, action, step)
    raise ConfigError(_find_item_problems(body, "" if index is None else f"steps[{index}]."))


def _find_item_problems(body: object, prefix: str) -> list[Problem]:
    """Returns all problems of a step."""
    if not isinstance(body, Mapping):
        return [_make_problem(prefix.rstrip(".") or "body", body, "an object with session, step and action")]
    problems = [
        _make_problem(prefix + name, body.get(name), "text")
        for name in ("session", "action")
        if not isinstance(body.get(name), str)
    ]
    step = body.get("step")
    if step is not None and (not isinstance(step, int) or isinstance(step, bool) or step < 0):
        problems.append(_make_problem(prefix + "step", step, "a number of 0 or more, or null"))
    return problems


def _make_problem(path: str, value: object, expected: str) -> Problem:
    return Problem(path, f"got {_describe_kind(value)}, expected {expected}")


def _describe_kind(value: object) -> str:
    """Describes a JSON value in a few words."""
    if value is None or isinstance(value, (bool, int, float)):
        return "null" if value is None else json.dumps(value)[:40]
    kind_names: dict[type[object], str] = {str: "text", list: "a list", dict: "an object"}
    return kind_names.get(type(value), type(value).__name__)


def _raise_problem(path: str, description: str, expected: str) -> NoReturn:
    raise ConfigError([Problem(path, f"got {description}, expected {expected}")])


def _get_text(body: Mapping[str, Any], name: str) -> str:
    value = body.get(name)
    if not isinstance(value, str):
        _raise_problem(name, _describe_kind(value), "text")
    return value


def _get_task(body: Mapping[str, Any], name: str) -> object:
    """Returns a task as an id or a row; `wire.decode_task` checks the row."""
    value = body.get(name)
    if not isinstance(value, (str, dict)):
        _raise_problem(name, _describe_kind(value), "the id of a task, or a task")
    return value


def _get_seed(body: Mapping[str, Any]) -> int | None:
    value = body.get("seed")
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < _SEED_LIMIT):
        _raise_problem("seed", _describe_kind(value), "a number from 0 to 2^63 - 1, or null")
    return value
