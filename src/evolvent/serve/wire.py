"""The native dialect in JSON: tasks, worlds, observations, steps and errors as they travel, read and written here.

HTTP bodies (`row` is a task as in `task_row`; every error body is `error_row`; unknown keys are ignored):

    GET    /v1                                 -> {name, protocol, versions, worlds, ws}
    GET    /v1/worlds                          -> {worlds: [world_row]}
    GET    /v1/worlds/{w}/tasks?split=&tier=   -> {tasks: [row]}
    GET    /v1/worlds/{w}/tasks/{id}/expert    -> {actions: [text] | null, thoughts?: [text | null]}
    GET    /v1/worlds/{w}/vocabulary           -> {words: [text] | null}
    POST   /v1/worlds/{w}/score                {rewards, info}                    -> {raw, unit, success}
    POST   /v1/sessions                        {world, task: id | row, seed}      -> {session, observation, info}
    POST   /v1/sessions/{s}/step               {step, action}                     -> step_row
    POST   /v1/steps                           {steps: [{session, step, action}]} -> {results: [step_row | {error}]}
    GET    /v1/sessions/{s}                    -> look_row
    DELETE /v1/sessions/{s}                    -> {closed: true | false}

The WebSocket `/v1/ws` carries the same bodies. A request is `{request_id, op, ...body}` with `op` one of `OPS`; the
session of a path is a field of the body. Its answer is `{request_id, ok: body}` or `{request_id, error: error_row}`, in
whatever order answers are ready. A client names the version it speaks in the header `PROTOCOL_HEADER`, also when it
opens a WebSocket.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np

from evolvent import errors
from evolvent.errors import (
    AccessDenied,
    AtCapacity,
    ConfigError,
    CorruptRecord,
    EnvLost,
    EvolventError,
    InvalidAction,
    LimitExceeded,
    Locked,
    MissingExtra,
    SafetyError,
    SampleInvalid,
    SessionGone,
    StepTimeout,
    VersionMismatch,
    WorldError,
    WrongStep,
)
from evolvent.serve.host import Look, Seen, Stepped
from evolvent.trajectory import Json, Score, Task
from evolvent.worlds.base import World
from evolvent.worlds.grammar import Grammar, Parsed

__all__ = [
    "OPS",
    "PROTOCOL",
    "PROTOCOL_HEADER",
    "Card",
    "Ended",
    "ForeignGrammar",
    "NotFound",
    "card_of",
    "decoded",
    "encoded",
    "error_of",
    "error_row",
    "finite",
    "grammar_of",
    "grammar_row",
    "look_of",
    "look_row",
    "plain",
    "score_of_row",
    "score_row",
    "seen_of",
    "seen_row",
    "status_of",
    "step_of",
    "step_row",
    "task_of",
    "task_row",
    "text_of",
    "world_row",
]

PROTOCOL = 1
PROTOCOL_HEADER = "evolvent-protocol"
OPS = ("create", "step", "steps", "look", "close")
_SPECIAL = (CorruptRecord, Locked, MissingExtra)  # made of more than a sentence; no world raises them
# The grammars that a server may name: their modules, the options that travel, and arguments that reading does not need.
_GRAMMARS: Mapping[str, tuple[str, tuple[str, ...], Mapping[str, Any]]] = {
    "Plain": ("evolvent.worlds.grammar", (), {}),
    "ReAct": ("evolvent.worlds.grammar", (), {}),
    "Fenced": ("evolvent.worlds.sql.grammar", (), {}),
    "SearchGrammar": ("evolvent.worlds.searchqa.tags", ("tags",), {}),
    "ToolGrammar": ("evolvent.worlds.tools.calls", ("style",), {"specs": {}}),
    "Calls": ("evolvent.worlds.functions.episode", ("form",), {}),
    "Reply": ("evolvent.worlds.bfcl.world", (), {}),
    "WebGrammar": ("evolvent.worlds.web_replay.world", (), {}),
}


class NotFound(ConfigError):
    """A world or task that the server does not have: 404, where other bad input is 422. A ConfigError on the wire."""


class Ended(SessionGone):
    """A step before the first reset or after the end of an episode: 409, where an unknown session is 404.

    A SessionGone on the wire.
    """


_STATUS: Sequence[tuple[type[EvolventError], int]] = (
    (NotFound, 404),
    (Ended, 409),
    (SessionGone, 404),
    (WrongStep, 409),
    (EnvLost, 410),
    (InvalidAction, 422),
    (ConfigError, 422),
    (SampleInvalid, 422),
    (AtCapacity, 503),
    (StepTimeout, 504),
    (VersionMismatch, 400),
    (AccessDenied, 403),
    (LimitExceeded, 413),
    (SafetyError, 422),
    (MissingExtra, 501),
)


def status_of(error: EvolventError) -> int:
    """The HTTP status of an error: the first class of the table that it is of, else 500."""
    return next((status for kind, status in _STATUS if isinstance(error, kind)), 500)


def error_row(error: EvolventError) -> dict[str, Json]:
    """`{kind, message, expected, status}`, and `retry_after_s` where the server is full.

    kind is the name of a class of `evolvent.errors`; the message says everything but what was expected.
    """
    kind = next(cls.__name__ for cls in type(error).__mro__ if cls.__module__ == errors.__name__)
    full = isinstance(error, AtCapacity)
    message = str(EvolventError(error.what, value=error.value, hint=None if full else error.hint))
    expected = error.expected if isinstance(error.expected, (int, float, str, type(None))) else str(error.expected)
    row: dict[str, Json] = {"kind": kind, "message": message, "expected": expected, "status": status_of(error)}
    if isinstance(error, AtCapacity):
        row["retry_after_s"] = error.retry_after_s
    return row


def error_of(row: object) -> EvolventError:
    """The error that a row tells of. Only classes of `evolvent.errors`; whatever else is named is a WorldError."""
    if not isinstance(row, Mapping):
        return WorldError("an error body that is none", value=row, expected="{kind, message, expected}")
    kind, message, expected = row.get("kind"), str(row.get("message", "")), row.get("expected")
    found = getattr(errors, kind, None) if isinstance(kind, str) else None
    if found is AtCapacity:
        wait = row.get("retry_after_s")
        known = isinstance(wait, (int, float)) and not isinstance(wait, bool) and 0 <= wait < math.inf
        return AtCapacity(message, retry_after_s=float(wait) if known and wait is not None else 1.0)
    if found is SessionGone and row.get("status") == 409:
        found = Ended
    if found is ConfigError and row.get("status") == 404:
        found = NotFound
    if not isinstance(found, type) or not issubclass(found, EvolventError) or issubclass(found, _SPECIAL):
        return WorldError(f"{kind}: {message}", expected=expected)
    error: EvolventError = found(message, expected=expected)
    return error


def plain(value: object) -> Json:
    """A value as JSON: numpy scalars, arrays and tuples become numbers and lists, keys become text.

    Raises:
        SampleInvalid: a number that is not finite, or a value that JSON does not have.
    """
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, (int, np.integer)):
        return int(value)
    if isinstance(value, (float, np.floating)):
        if not math.isfinite(value):
            raise SampleInvalid("a number that is not finite", value=value, expected="a number, or null for 'none'")
        return float(value)
    if isinstance(value, Mapping):
        return {str(key): plain(part) for key, part in value.items()}
    if isinstance(value, np.bool_):
        return bool(value)
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, (list, tuple)):
        return [plain(part) for part in value]
    if isinstance(value, (set, frozenset)):
        return sorted((plain(part) for part in value), key=lambda part: json.dumps(part, sort_keys=True))
    raise SampleInvalid("a value that JSON does not have", value=type(value).__name__, expected="JSON values")


def encoded(value: object) -> bytes:
    """Compact JSON in ASCII: text that is no valid Unicode (lone surrogates) travels as escapes."""
    return _ENCODER.encode(value).encode("ascii")


def _constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON")


_DECODER = json.JSONDecoder(parse_constant=_constant)
_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False)


def decoded(data: str | bytes) -> Json:
    """The value of a JSON text.

    Raises:
        SampleInvalid: no UTF-8, no JSON (NaN and Infinity are none), or nested too deeply to read.
    """
    try:
        text = data if isinstance(data, str) else data.decode("utf-8")
        value: Json = _DECODER.decode(text)
    except (ValueError, RecursionError) as error:
        head = data[:200]
        raise SampleInvalid(f"no JSON: {error}"[:200], value=head, expected="a JSON text in UTF-8") from error
    return value


def task_row(task: Task) -> dict[str, Json]:
    """A task as JSON; the id travels along and is checked by `task_of`."""
    return {
        "id": task.id,
        "world": task.world,
        "version": task.version,
        "spec": dict(task.spec),
        "kind": task.kind,
        "tier": task.tier,
        "split": task.split,
    }


def task_of(row: object) -> Task:
    """The task of a row.

    Raises:
        SampleInvalid: fields missing or of a wrong type, or an id that is not the digest of world, version and spec.
    """
    names = ("world", "version", "kind", "tier", "split")
    spec = _member(row, "spec", Mapping, "a task")
    texts = [_member(row, name, str, "a task") for name in names]
    try:
        task = Task(texts[0], texts[1], dict(spec), *texts[2:])
    except (TypeError, ValueError, RecursionError) as error:
        raise SampleInvalid("a task whose spec is no JSON", value=spec, expected="JSON values") from error
    told = row.get("id") if isinstance(row, Mapping) else None
    if told is not None and told != task.id:
        raise SampleInvalid("a task whose id is not that of its content", value=told, expected=task.id)
    return task


def _member(row: object, name: str, kind: type[Any], what: str) -> Any:
    """A field of a row, if it is there and of its type. A bool is no number."""
    value = row.get(name) if isinstance(row, Mapping) else None
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        wrong = f"{what} without {name}" if value is None else f"{what} whose {name} has a wrong type"
        raise SampleInvalid(wrong, value=row, expected=f"an object with {name}: {kind.__name__}")
    return value


def text_of(text: str) -> str:
    """Text that can be written as UTF-8: halves of surrogate pairs become the replacement character U+FFFD."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def finite(value: object) -> float | None:
    """A JSON value as a float; None where it is no number, not finite, or too large to be a float."""
    if isinstance(value, (int, float)) and -sys.float_info.max <= value <= sys.float_info.max:
        return float(value)
    return None


def _reward(row: object) -> float | None:
    value = row.get("reward") if isinstance(row, Mapping) else None
    if value is None:
        return None
    number = None if isinstance(value, bool) else finite(value)
    if number is None:
        raise SampleInvalid("a reward that is no finite number", value=value, expected="a number, or null")
    return number


def _info(row: Mapping[str, Any]) -> Mapping[str, Any]:
    info = row.get("info", {})
    if not isinstance(info, Mapping):
        raise SampleInvalid("an info that is no object", value=info, expected="an object")
    return info


def seen_row(seen: Seen) -> dict[str, Json]:
    """`{observation, info}`."""
    return {"observation": seen.observation, "info": plain(seen.info)}


def seen_of(row: Any) -> Seen:
    """The first observation of an episode; raises SampleInvalid where the row is none."""
    return Seen(text_of(_member(row, "observation", str, "a first observation")), _info(row))


def step_row(step: Stepped) -> dict[str, Json]:
    """`{observation, reward, terminated, truncated, info, step}`."""
    return {
        "observation": step.observation,
        "reward": plain(step.reward),
        "terminated": step.terminated,
        "truncated": step.truncated,
        "info": plain(step.info),
        "step": step.step,
    }


def step_of(row: Any) -> Stepped:
    """The answer to a step; raises SampleInvalid where the row is none."""
    what = "an answer to a step"
    return Stepped(
        text_of(_member(row, "observation", str, what)),
        _reward(row),
        _member(row, "terminated", bool, what),
        _member(row, "truncated", bool, what),
        _info(row),
        _member(row, "step", int, what),
    )


def look_row(look: Look) -> dict[str, Json]:
    """`{session, world, state, task: row | null, observation, info, rewards, step}`."""
    return {
        "session": look.session,
        "world": look.world,
        "state": look.state,
        "task": None if look.task is None else task_row(look.task),
        "observation": look.observation,
        "info": plain(look.info),
        "rewards": plain(look.rewards),
        "step": look.step,
    }


def look_of(row: Any) -> Look:
    """Where a session stands; raises SampleInvalid where the row is none."""
    what = "a look at a session"
    session, world, state = (_member(row, name, str, what) for name in ("session", "world", "state"))
    if state not in ("open", "running", "ended"):
        raise SampleInvalid("a session in an unknown state", value=state, expected="open, running or ended")
    rewards = tuple(_reward({"reward": reward}) for reward in _member(row, "rewards", list, what))
    task = None if row.get("task") is None else task_of(row["task"])
    observation = text_of(_member(row, "observation", str, what))
    return Look(session, world, state, task, observation, _info(row), rewards, _member(row, "step", int, what))


def score_row(score: Score) -> dict[str, Json]:
    """`{raw, unit, success}`."""
    return {"raw": plain(score.raw), "unit": plain(score.unit), "success": score.success}


def score_of_row(row: Any) -> Score:
    """The score of a row; raises SampleInvalid where it is none."""
    whole = isinstance(row, Mapping) and {"raw", "unit", "success"} <= row.keys()
    if not whole or not isinstance(row["success"], (bool, type(None))):
        raise SampleInvalid("a score that is none", value=row, expected="{raw, unit, success}")
    return Score(_reward({"reward": row["raw"]}), _reward({"reward": row["unit"]}), row["success"])


@dataclass(frozen=True, slots=True)
class ForeignGrammar:
    """The grammar of a world whose class is not known here: scripts can play, model text cannot be read."""

    kind: str

    def parse(self, text: str) -> Parsed:
        raise self._unknown()

    def render(self, parsed: Parsed) -> str:
        raise self._unknown()

    def _unknown(self) -> ConfigError:
        return ConfigError(
            "a grammar that is not known here",
            value=self.kind,
            expected=", ".join(_GRAMMARS),
            hint="use the world where its package is installed",
        )


def grammar_row(grammar: Grammar) -> dict[str, Json]:
    """`{kind, fields}`: the name of its class and its options; another class of a known name has its module before."""
    kind, home = type(grammar).__name__, type(grammar).__module__
    module, options, _ = _GRAMMARS.get(kind, (home, (), {}))
    if module != home:
        return {"kind": f"{home}.{kind}", "fields": {}}
    return {"kind": kind, "fields": {name: plain(getattr(grammar, name)) for name in options}}


def grammar_of(row: object) -> Grammar:
    """The grammar of a row; one that is not known here, or has other options, is a `ForeignGrammar`."""
    kind = _member(row, "kind", str, "a grammar")
    given = row.get("fields", {}) if isinstance(row, Mapping) else {}
    module, options, rest = _GRAMMARS.get(kind, ("", (), {}))
    if not module or not isinstance(given, Mapping) or set(given) - set(options):
        return ForeignGrammar(kind)
    if not all(isinstance(value, (bool, int, str)) for value in given.values()):
        return ForeignGrammar(kind)
    grammar: Grammar = getattr(import_module(module), kind)(**rest, **given)
    return grammar


@dataclass(frozen=True, slots=True)
class Card:
    """What a server tells of a world: the attributes of `World`, and whether its steps may be slow there."""

    name: str
    version: str
    instructions: str
    grammar: Grammar
    horizon: int
    reward_range: tuple[float, float]
    tiers: tuple[str, ...]
    blocking: bool


def world_row(world: World) -> dict[str, Json]:
    """`{name, version, instructions, grammar, horizon, reward_range, tiers, blocking}`."""
    return {
        "name": world.name,
        "version": world.version,
        "instructions": world.instructions,
        "grammar": grammar_row(world.grammar),
        "horizon": world.horizon,
        "reward_range": plain(world.reward_range),
        "tiers": list(world.tiers),
        "blocking": world.blocking,
    }


def card_of(row: Any) -> Card:
    """The card of a world; raises SampleInvalid where the row is none."""
    what = "a world's card"
    name, version, said = (text_of(_member(row, key, str, what)) for key in ("name", "version", "instructions"))
    ends = [_reward({"reward": end}) for end in _member(row, "reward_range", list, what)]
    tiers = _member(row, "tiers", list, what)
    horizon = _member(row, "horizon", int, what)
    if len(ends) != 2 or ends[0] is None or ends[1] is None or not all(isinstance(tier, str) for tier in tiers):
        raise SampleInvalid("a world's card with a wrong range or tiers", value=row, expected="two numbers, texts")
    blocking = _member(row, "blocking", bool, what)
    grammar = grammar_of(row.get("grammar"))
    return Card(name, version, said, grammar, horizon, (ends[0], ends[1]), tuple(tiers), blocking)
