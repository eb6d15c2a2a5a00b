"""The native dialect in JSON: tasks, worlds, observations, steps and errors as they are sent, encoded and decoded
here.

HTTP bodies (`task` is that of `encode_task`; every error body is that of `encode_error`; unknown keys are ignored):

    GET    /v1                                 -> {name, protocol, versions, worlds, ws}
    GET    /v1/worlds                          -> {worlds: [world]}
    GET    /v1/worlds/{w}/tasks?split=&tier=   -> {tasks: [task]}
    GET    /v1/worlds/{w}/tasks/{id}/expert    -> {actions: [text] | null, thoughts?: [text | null]}
    GET    /v1/worlds/{w}/vocabulary           -> {words: [text] | null}
    POST   /v1/worlds/{w}/score                {rewards, info}                    -> {raw, unit, success}
    POST   /v1/sessions                        {world, task: id | task, seed}     -> {session, observation, info}
    POST   /v1/sessions/{s}/step               {step, action}                     -> step
    POST   /v1/steps                           {steps: [{session, step, action}]} -> {results: [step | {error}]}
    GET    /v1/sessions/{s}                    -> snapshot
    DELETE /v1/sessions/{s}                    -> {closed: true | false}

The WebSocket `/v1/ws` carries the same bodies. A request is `{request_id, op, ...body}` with `op` one of `OPS`; the
session of a path is a field of the body. Its answer is `{request_id, ok: body}` or `{request_id, error: error}`, in
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
from typing import Any, TypeAlias

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
from evolvent.serve.host import ResetResult, SessionSnapshot, StepResult
from evolvent.trajectory import Json, Score, Task
from evolvent.worlds.base import Grammar, Parsed, World

__all__ = [
    "OPS",
    "PROTOCOL",
    "PROTOCOL_HEADER",
    "EpisodeEnded",
    "ForeignGrammar",
    "NotFound",
    "WireValue",
    "WorldCard",
    "decode_error",
    "decode_grammar",
    "decode_json",
    "decode_reset",
    "decode_score",
    "decode_snapshot",
    "decode_step",
    "decode_task",
    "decode_world_card",
    "encode_error",
    "encode_grammar",
    "encode_json",
    "encode_reset",
    "encode_score",
    "encode_snapshot",
    "encode_step",
    "encode_task",
    "encode_world",
    "finite_or_none",
    "http_status",
    "replace_surrogates",
    "to_json",
]

WireValue: TypeAlias = Any
"""A JSON value as it arrived; the `decode_` functions check its form."""

PROTOCOL = 1
PROTOCOL_HEADER = "evolvent-protocol"
OPS = ("create", "step", "steps", "look", "close")
_LOCAL_ERRORS = (CorruptRecord, Locked, MissingExtra)  # made of more than a sentence; no world raises them
# The grammars that a server may name: their modules, the options that travel, and arguments that reading does not need.
_GRAMMARS: Mapping[str, tuple[str, tuple[str, ...], Mapping[str, Any]]] = {
    "Plain": ("evolvent.worlds.base", (), {}),
    "ReAct": ("evolvent.worlds.base", (), {}),
    "Fenced": ("evolvent.worlds.sql.grammar", (), {}),
    "SearchGrammar": ("evolvent.worlds.searchqa.tags", ("tags",), {}),
    "ToolGrammar": ("evolvent.worlds.tools.calls", ("style",), {"specs": {}}),
    "Calls": ("evolvent.worlds.functions.episode", ("form",), {}),
    "Reply": ("evolvent.worlds.bfcl.world", (), {}),
    "WebGrammar": ("evolvent.worlds.web_replay.world", (), {}),
}


class NotFound(ConfigError):
    """A world or task that the server does not have: 404, where other bad input is 422. A ConfigError on the wire."""


class EpisodeEnded(SessionGone):
    """A step before the first reset or after the end of an episode: 409, where an unknown session is 404.

    A SessionGone on the wire.
    """


_STATUS_BY_ERROR: Sequence[tuple[type[EvolventError], int]] = (
    (NotFound, 404),
    (EpisodeEnded, 409),
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


def http_status(error: EvolventError) -> int:
    """Returns the HTTP status of an error: that of its first class in the table, else 500."""
    return next((status for kind, status in _STATUS_BY_ERROR if isinstance(error, kind)), 500)


def encode_error(error: EvolventError) -> dict[str, Json]:
    """Encodes an error as `{kind, message, expected, status}`, and `retry_after_s` if the server is full.

    kind is the name of a class of `evolvent.errors`; the message holds everything but the expected value.
    """
    kind = next(cls.__name__ for cls in type(error).__mro__ if cls.__module__ == errors.__name__)
    full = isinstance(error, AtCapacity)
    base = InvalidAction if isinstance(error, InvalidAction) else EvolventError
    message = str(base(error.what, value=error.value, hint=None if full else error.hint))
    expected = error.expected if isinstance(error.expected, (int, float, str, type(None))) else str(error.expected)
    row: dict[str, Json] = {"kind": kind, "message": message, "expected": expected, "status": http_status(error)}
    if isinstance(error, AtCapacity):
        row["retry_after_s"] = error.retry_after_s
    return row


def decode_error(row: object) -> EvolventError:
    """Decodes the error in a row. Only classes of `evolvent.errors` are made; any other name is a WorldError."""
    if not isinstance(row, Mapping):
        return WorldError("invalid error body", value=row, expected="{kind, message, expected}")
    kind, message, expected = row.get("kind"), str(row.get("message", "")), row.get("expected")
    error_class = getattr(errors, kind, None) if isinstance(kind, str) else None
    if error_class is AtCapacity:
        wait = row.get("retry_after_s")
        is_valid_wait = isinstance(wait, (int, float)) and not isinstance(wait, bool) and 0 <= wait < math.inf
        return AtCapacity(message, retry_after_s=float(wait) if is_valid_wait and wait is not None else 1.0)
    if error_class is SessionGone and row.get("status") == 409:
        error_class = EpisodeEnded
    if error_class is ConfigError and row.get("status") == 404:
        error_class = NotFound
    if (
        not isinstance(error_class, type)
        or not issubclass(error_class, EvolventError)
        or issubclass(error_class, _LOCAL_ERRORS)
    ):
        return WorldError(f"{kind}: {message}", expected=expected)
    error: EvolventError = error_class(message, expected=expected)
    return error


def to_json(value: object) -> Json:
    """Converts a value to JSON: numpy scalars, arrays and tuples become numbers and lists, keys become text.

    Raises:
        SampleInvalid: number is not finite, or value is not JSON.
    """
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, (int, np.integer)):
        return int(value)
    if isinstance(value, (float, np.floating)):
        if not math.isfinite(value):
            raise SampleInvalid("number is not finite", value=value, expected="a number, or null for 'none'")
        return float(value)
    if isinstance(value, Mapping):
        return {str(key): to_json(part) for key, part in value.items()}
    if isinstance(value, np.bool_):
        return bool(value)
    if isinstance(value, np.ndarray):
        return to_json(value.tolist())
    if isinstance(value, (list, tuple)):
        return [to_json(part) for part in value]
    if isinstance(value, (set, frozenset)):
        return sorted((to_json(part) for part in value), key=lambda part: json.dumps(part, sort_keys=True))
    raise SampleInvalid("value is not JSON", value=type(value).__name__, expected="JSON values")


def encode_json(value: object) -> bytes:
    """Encodes a value as compact JSON in ASCII: text that is not valid Unicode (lone surrogates) is escaped."""
    return _ENCODER.encode(value).encode("ascii")


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)
_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False)


def decode_json(data: str | bytes) -> Json:
    """Decodes the value of a JSON text.

    Raises:
        SampleInvalid: not UTF-8, not JSON (NaN and Infinity are not), or nested too deeply to read.
    """
    try:
        text = data if isinstance(data, str) else data.decode("utf-8")
        value: Json = _DECODER.decode(text)
    except (ValueError, RecursionError) as error:
        head = data[:200]
        raise SampleInvalid(f"not valid JSON: {error}"[:200], value=head, expected="a JSON text in UTF-8") from error
    return value


def encode_task(task: Task) -> dict[str, Json]:
    """Encodes a task as JSON; the id is included and checked by `decode_task`."""
    return {
        "id": task.id,
        "world": task.world,
        "version": task.version,
        "spec": dict(task.spec),
        "kind": task.kind,
        "tier": task.tier,
        "split": task.split,
    }


def decode_task(row: object) -> Task:
    """Decodes the task of a row.

    Raises:
        SampleInvalid: fields missing or of a wrong type, or an id that is not the digest of world, version and spec.
    """
    names = ("world", "version", "kind", "tier", "split")
    spec = _get_field(row, "spec", Mapping, "a task")
    texts = [_get_field(row, name, str, "a task") for name in names]
    try:
        task = Task(texts[0], texts[1], dict(spec), *texts[2:])
    except (TypeError, ValueError, RecursionError) as error:
        raise SampleInvalid("the spec of the task is not JSON", value=spec, expected="JSON values") from error
    sent_id = row.get("id") if isinstance(row, Mapping) else None
    if sent_id is not None and sent_id != task.id:
        raise SampleInvalid("task id does not match its content", value=sent_id, expected=task.id)
    return task


def _get_field(row: object, name: str, kind: type[Any], label: str) -> Any:
    """Returns a field of a row, checked for presence and type. A bool is not a number."""
    value = row.get(name) if isinstance(row, Mapping) else None
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        problem = f"{label} lacks {name}" if value is None else f"{name} of {label} has a wrong type"
        raise SampleInvalid(problem, value=row, expected=f"an object with {name}: {kind.__name__}")
    return value


def replace_surrogates(text: str) -> str:
    """Returns text that can be written as UTF-8: halves of surrogate pairs become the replacement character U+FFFD."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def finite_or_none(value: object) -> float | None:
    """Converts a JSON value to a float; returns None if it is not a number, not finite, or too large for a float."""
    if isinstance(value, (int, float)) and -sys.float_info.max <= value <= sys.float_info.max:
        return float(value)
    return None


def _get_reward(row: object) -> float | None:
    value = row.get("reward") if isinstance(row, Mapping) else None
    if value is None:
        return None
    number = None if isinstance(value, bool) else finite_or_none(value)
    if number is None:
        raise SampleInvalid("reward is not a finite number", value=value, expected="a number, or null")
    return number


def _get_info(row: Mapping[str, Any]) -> Mapping[str, Any]:
    info = row.get("info", {})
    if not isinstance(info, Mapping):
        raise SampleInvalid("info is not an object", value=info, expected="an object")
    return info


def encode_reset(reset_result: ResetResult) -> dict[str, Json]:
    """Encodes a reset as `{observation, info}`."""
    return {"observation": reset_result.observation, "info": to_json(reset_result.info)}


def decode_reset(row: WireValue) -> ResetResult:
    """Decodes the first observation of an episode; raises SampleInvalid for an invalid row."""
    return ResetResult(replace_surrogates(_get_field(row, "observation", str, "a first observation")), _get_info(row))


def encode_step(step: StepResult) -> dict[str, Json]:
    """Encodes a step as `{observation, reward, terminated, truncated, info, step}`."""
    return {
        "observation": step.observation,
        "reward": to_json(step.reward),
        "terminated": step.terminated,
        "truncated": step.truncated,
        "info": to_json(step.info),
        "step": step.step,
    }


def decode_step(row: WireValue) -> StepResult:
    """Decodes the answer to a step; raises SampleInvalid for an invalid row."""
    label = "an answer to a step"
    return StepResult(
        replace_surrogates(_get_field(row, "observation", str, label)),
        _get_reward(row),
        _get_field(row, "terminated", bool, label),
        _get_field(row, "truncated", bool, label),
        _get_info(row),
        _get_field(row, "step", int, label),
    )


def encode_snapshot(snapshot: SessionSnapshot) -> dict[str, Json]:
    """Encodes a snapshot as `{session, world, state, task: task | null, observation, info, rewards, step}`."""
    return {
        "session": snapshot.session,
        "world": snapshot.world,
        "state": snapshot.state,
        "task": None if snapshot.task is None else encode_task(snapshot.task),
        "observation": snapshot.observation,
        "info": to_json(snapshot.info),
        "rewards": to_json(snapshot.rewards),
        "step": snapshot.step,
    }


def decode_snapshot(row: WireValue) -> SessionSnapshot:
    """Decodes the state of a session; raises SampleInvalid for an invalid row."""
    label = "a look at a session"
    session, world, state = (_get_field(row, name, str, label) for name in ("session", "world", "state"))
    if state not in ("open", "running", "ended"):
        raise SampleInvalid("unknown session state", value=state, expected="open, running or ended")
    rewards = tuple(_get_reward({"reward": reward}) for reward in _get_field(row, "rewards", list, label))
    task = None if row.get("task") is None else decode_task(row["task"])
    observation = replace_surrogates(_get_field(row, "observation", str, label))
    return SessionSnapshot(
        session, world, state, task, observation, _get_info(row), rewards, _get_field(row, "step", int, label)
    )


def encode_score(score: Score) -> dict[str, Json]:
    """Encodes a score as `{raw, unit, success}`."""
    return {"raw": to_json(score.raw), "unit": to_json(score.unit), "success": score.success}


def decode_score(row: WireValue) -> Score:
    """Decodes the score of a row; raises SampleInvalid for an invalid row."""
    is_complete = isinstance(row, Mapping) and {"raw", "unit", "success"} <= row.keys()
    if not is_complete or not isinstance(row["success"], (bool, type(None))):
        raise SampleInvalid("invalid score", value=row, expected="{raw, unit, success}")
    return Score(_get_reward({"reward": row["raw"]}), _get_reward({"reward": row["unit"]}), row["success"])


@dataclass(frozen=True, slots=True)
class ForeignGrammar:
    """The grammar of a world whose class is not known here: scripts can play, model text cannot be read."""

    kind: str

    def parse(self, text: str) -> Parsed:
        raise self._unknown_error()

    def render(self, parsed: Parsed) -> str:
        raise self._unknown_error()

    def _unknown_error(self) -> ConfigError:
        return ConfigError(
            "unknown grammar",
            value=self.kind,
            expected=", ".join(_GRAMMARS),
            hint="install the package of the world",
        )


def encode_grammar(grammar: Grammar) -> dict[str, Json]:
    """Encodes a grammar as `{kind, fields}`: class name and options; a foreign class of a known name includes its
    module.
    """
    kind, own_module = type(grammar).__name__, type(grammar).__module__
    module, options, _ = _GRAMMARS.get(kind, (own_module, (), {}))
    if module != own_module:
        return {"kind": f"{own_module}.{kind}", "fields": {}}
    return {"kind": kind, "fields": {name: to_json(getattr(grammar, name)) for name in options}}


def decode_grammar(row: object) -> Grammar:
    """Decodes the grammar of a row; an unknown grammar, or other options, give a `ForeignGrammar`."""
    kind = _get_field(row, "kind", str, "a grammar")
    fields = row.get("fields", {}) if isinstance(row, Mapping) else {}
    module, options, fixed_arguments = _GRAMMARS.get(kind, ("", (), {}))
    if not module or not isinstance(fields, Mapping) or set(fields) - set(options):
        return ForeignGrammar(kind)
    if not all(isinstance(value, (bool, int, str)) for value in fields.values()):
        return ForeignGrammar(kind)
    grammar: Grammar = getattr(import_module(module), kind)(**fixed_arguments, **fields)
    return grammar


@dataclass(frozen=True, slots=True)
class WorldCard:
    """The properties of a world that a server reports: the attributes of `World`, and whether its steps may be slow."""

    name: str
    version: str
    instructions: str
    grammar: Grammar
    horizon: int
    reward_range: tuple[float, float]
    tiers: tuple[str, ...]
    run_in_thread: bool


def encode_world(world: World) -> dict[str, Json]:
    """Encodes `{name, version, instructions, grammar, horizon, reward_range, tiers, blocking}`."""
    return {
        "name": world.name,
        "version": world.version,
        "instructions": world.instructions,
        "grammar": encode_grammar(world.grammar),
        "horizon": world.horizon,
        "reward_range": to_json(world.reward_range),
        "tiers": list(world.tiers),
        "blocking": world.run_in_thread,
    }


def decode_world_card(row: WireValue) -> WorldCard:
    """Decodes the card of a world; raises SampleInvalid for an invalid row."""
    label = "a world's card"
    name, version, instructions = (
        replace_surrogates(_get_field(row, key, str, label)) for key in ("name", "version", "instructions")
    )
    ends = [_get_reward({"reward": end}) for end in _get_field(row, "reward_range", list, label)]
    tiers = _get_field(row, "tiers", list, label)
    horizon = _get_field(row, "horizon", int, label)
    if len(ends) != 2 or ends[0] is None or ends[1] is None or not all(isinstance(tier, str) for tier in tiers):
        raise SampleInvalid("invalid range or tiers in a world's card", value=row, expected="two numbers, texts")
    run_in_thread = _get_field(row, "blocking", bool, label)
    grammar = decode_grammar(row.get("grammar"))
    return WorldCard(name, version, instructions, grammar, horizon, (ends[0], ends[1]), tuple(tiers), run_in_thread)
