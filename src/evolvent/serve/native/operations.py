"""What the native dialect can be asked about sessions, whatever carries the question: JSON values in, JSON text out.

HTTP and WebSocket share these, so that a body means the same on both. Unknown fields are ignored.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NoReturn

from evolvent.errors import ConfigError, EnvLost, EvolventError, Problem
from evolvent.serve.catalogue import Catalogue
from evolvent.serve.host import Host, Seen, StepItem, Stepped
from evolvent.serve.native.rows import info_text, json_text, step_text
from evolvent.serve.wire import error_row, look_row

__all__ = ["BATCH", "Operations"]

BATCH = 1024  # most steps of one batch
_SEED = 2**63


class Operations:
    """The native operations over a host and its tasks.

    Every one takes the fields of a request and returns the JSON text of its answer; errors leave as typed errors.
    """

    def __init__(self, host: Host, catalogue: Catalogue) -> None:
        self.host, self.catalogue = host, catalogue
        self.by_name: Mapping[str, Callable[[Mapping[str, Any]], Awaitable[str]]] = {
            "create": self.create,
            "reset": self.reset,
            "step": self.step,
            "steps": self.steps,
            "look": self.look,
            "close": self.close,
            "ping": self.ping,
        }

    async def create(self, body: Mapping[str, Any]) -> str:
        """`{world, task, seed}` -> `{session, observation, info, step}`: a new session, its episode begun."""
        world, given, seed = _text(body, "world"), _named(body, "task"), _seed(body)
        task = await self.catalogue.find(world, given)
        session = await self.host.create(world)
        try:
            return _begun(session, await self.host.reset(session, task, seed=seed))
        except EvolventError:
            await self.host.close(session)
            raise

    async def reset(self, body: Mapping[str, Any]) -> str:
        """`{session, task, seed}` -> `{session, observation, info, step}`: another episode in the same session."""
        session, given, seed = _text(body, "session"), _named(body, "task"), _seed(body)
        found = await self.host.look(session)
        task = await self.catalogue.find(found.world, given)
        return _begun(session, await self.host.reset(session, task, seed=seed))

    async def step(self, body: Mapping[str, Any]) -> str:
        """`{session, step, action}` -> a step row; `step` null or absent: the next one."""
        item = _item(body)
        return step_text(await self.host.step(item.session, item.action, step=item.step))

    async def steps(self, body: Mapping[str, Any]) -> str:
        """`{steps: [{session, step, action}]}` -> `{results: [step row | {error}]}` in their order.

        A step that cannot be read fails alone; a batch that is none, or too long, fails as a whole.
        """
        given = body.get("steps")
        if not isinstance(given, list) or len(given) > BATCH:
            got = f"{len(given)} steps" if isinstance(given, list) else _kind(given)
            _wrong("steps", got, f"a list of at most {BATCH} steps")
        items, failed = _items(given)
        rows = list(map(_answered, await self.host.steps(items)))
        for place, said in failed.items():  # from the first to the last, so that each gets its place
            rows.insert(place, said)
        return f'{{"results":[{",".join(rows)}]}}'

    async def look(self, body: Mapping[str, Any]) -> str:
        """`{session}` -> a look row."""
        return json_text(look_row(await self.host.look(_text(body, "session"))))

    async def close(self, body: Mapping[str, Any]) -> str:
        """`{session}` -> `{closed}`: false where there was none any more."""
        return '{"closed":true}' if await self.host.close(_text(body, "session")) else '{"closed":false}'

    async def ping(self, body: Mapping[str, Any]) -> str:
        """`{}` -> `{pong: true}`."""
        return '{"pong":true}'


def _begun(session: str, seen: Seen) -> str:
    said = json_text({"session": session, "observation": seen.observation, "step": 0})
    return f'{said[:-1]},"info":{info_text(seen.info)}}}'


def _answered(answer: Stepped | EvolventError) -> str:
    """One result of a batch; a step whose info is no JSON fails alone."""
    if isinstance(answer, EvolventError):
        return _failed(answer)
    try:
        return step_text(answer)
    except EnvLost as error:
        return _failed(error)


def _failed(error: EvolventError) -> str:
    return json_text({"error": error_row(error)})


def _items(given: list[Any]) -> tuple[list[StepItem], dict[int, str]]:
    """The steps of a batch, and by their place the errors of those that cannot be read."""
    items, failed = [], {}
    for place, part in enumerate(given):
        try:
            items.append(_item(part, place))
        except ConfigError as error:
            failed[place] = _failed(error)
    return items, failed


def _item(body: object, place: int | None = None) -> StepItem:
    """A step that was asked for, and its place in a batch; the usual case costs three look-ups."""
    if isinstance(body, dict):
        session, action, step = body.get("session"), body.get("action"), body.get("step")
        if type(session) is str and type(action) is str and (step is None or (type(step) is int and step >= 0)):
            return StepItem(session, action, step)
    raise ConfigError(_item_problems(body, "" if place is None else f"steps[{place}]."))


def _item_problems(body: object, where: str) -> list[Problem]:
    """Everything that is wrong with a step."""
    if not isinstance(body, Mapping):
        return [_problem(where.rstrip(".") or "body", body, "an object with session, step and action")]
    problems = [
        _problem(where + name, body.get(name), "text")
        for name in ("session", "action")
        if not isinstance(body.get(name), str)
    ]
    step = body.get("step")
    if step is not None and (not isinstance(step, int) or isinstance(step, bool) or step < 0):
        problems.append(_problem(where + "step", step, "a number of 0 or more, or null"))
    return problems


def _problem(where: str, value: object, expected: str) -> Problem:
    return Problem(where, f"got {_kind(value)}, expected {expected}")


def _kind(value: object) -> str:
    """What a JSON value is, short enough to say."""
    if value is None or isinstance(value, (bool, int, float)):
        return "null" if value is None else json.dumps(value)[:40]
    known: dict[type[object], str] = {str: "text", list: "a list", dict: "an object"}
    return known.get(type(value), type(value).__name__)


def _wrong(where: str, got: str, expected: str) -> NoReturn:
    raise ConfigError([Problem(where, f"got {got}, expected {expected}")])


def _text(body: Mapping[str, Any], name: str) -> str:
    value = body.get(name)
    if not isinstance(value, str):
        _wrong(name, _kind(value), "text")
    return value


def _named(body: Mapping[str, Any], name: str) -> object:
    """A task by id or as a row; what is in the row is for `wire.task_of` to judge."""
    value = body.get(name)
    if not isinstance(value, (str, dict)):
        _wrong(name, _kind(value), "the id of a task, or a task")
    return value


def _seed(body: Mapping[str, Any]) -> int | None:
    value = body.get("seed")
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < _SEED):
        _wrong("seed", _kind(value), "a number from 0 to 2^63 - 1, or null")
    return value
