"""OpenEnv's messages: the messages of clients, their answers, and the codes of refusals.

The protocol is that of `openenv-core` 0.2.3 and 0.3.0 (the same on the wire). Three extensions are ours and harmless:
`task` and `index` in a reset, `request_id` in a message of the WebSocket (echoed if it was given, never otherwise), and
`metadata` in an observation, which holds the world's info and the state of the episode.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from evolvent.messages import Call, Tool
from evolvent.serve.host import ResetResult, StepResult
from evolvent.serve.seats import TaskChoice
from evolvent.serve.wire import to_json
from evolvent.trajectory import Json, JsonObject

__all__ = [
    "FEATURE_KEY",
    "CallTool",
    "Envelope",
    "ListTools",
    "Observation",
    "RefusedMessage",
    "Reset",
    "Say",
    "State",
    "StepBody",
    "call_data",
    "call_result",
    "parse_action",
    "parse_envelope",
    "reset_data",
    "step_data",
    "tool_rows",
    "tools_data",
    "validate",
]

_MAX_KEYS = 64  # of a message or an action; each wrong one is an error in the answer
FEATURE_KEY = "evolvent"  # the key of /metadata that says that request_id, task and index are understood
Name = Annotated[str, StringConstraints(max_length=255)]
M = TypeVar("M", bound=BaseModel)


class RefusedMessage(Exception):
    """A message that is refused with a code of the protocol; the connection stays open."""

    def __init__(self, code: str, message: str, errors: Sequence[Json] = ()) -> None:
        self.code, self.message, self.errors = code, message, list(errors)
        super().__init__(message)

    @property
    def data(self) -> dict[str, Json]:
        """Returns the `data` of the error message."""
        return {"message": self.message, "code": self.code, **({"errors": self.errors} if self.errors else {})}


class Reset(BaseModel):
    """The parameters of a reset; those of other environments are ignored, as OpenEnv's server does."""

    model_config = ConfigDict(extra="ignore")
    seed: int | None = Field(None, ge=0, description="Picks the task of this number, modulo their count.")
    episode_id: Name | None = Field(None, description="A name for the episode, told by the state.")
    task: Name | None = Field(None, description="The id of the task to play.")
    index: int | None = Field(None, ge=0, description="The number of the task to play.")

    @property
    def choice(self) -> TaskChoice:
        return TaskChoice(self.task, self.index, self.seed)


class StepBody(Reset):
    """The body of a step over HTTP, where every request has its own environment."""

    action: dict[str, object] = Field(description="The fields of the action.")
    timeout_s: float | None = Field(None, gt=0, description="Ignored: the server has its own deadlines.")
    request_id: Name | None = Field(None, description="Ignored: an answer belongs to its request.")

    @property
    def choice(self) -> TaskChoice:
        """Returns the requested task, or the first task if none is named."""
        requested = super().choice
        return TaskChoice(index=0) if requested == TaskChoice() else requested


class Say(BaseModel):
    """The action of a text world."""

    model_config = ConfigDict(extra="forbid")
    message: str = Field(description="The text of the action.")
    metadata: dict[str, object] = Field(default_factory=dict, description="Ignored.")


class CallTool(BaseModel):
    """The action that calls a tool."""

    model_config = ConfigDict(extra="forbid")
    type: Literal["call_tool"] = Field(description="What tells it from other actions.")
    tool_name: str = Field(description="The name of the tool.")
    arguments: dict[str, object] = Field(default_factory=dict, description="Its arguments, as its schema says.")
    metadata: dict[str, object] = Field(default_factory=dict, description="Ignored.")


class ListTools(BaseModel):
    """The action that asks for the tools; it is not a step."""

    model_config = ConfigDict(extra="forbid")
    type: Literal["list_tools"] = Field(description="What tells it from other actions.")
    metadata: dict[str, object] = Field(default_factory=dict, description="Ignored.")


class Observation(BaseModel):
    """The answer of a text world (described for `/schema`)."""

    text: str = Field(description="What is seen.")
    admissible: list[str] | None = Field(None, description="The legal actions, where they are few.")
    metadata: dict[str, object] = Field(default_factory=dict, description="info, task, step, truncated")


class State(BaseModel):
    """The state of an episode (described for `/schema`)."""

    episode_id: str | None = Field(None, description="The name of the episode, as the reset gave it or drawn.")
    step_count: int = Field(0, ge=0, description="How many steps were taken.")
    world: str = Field("", description="The world's name.")
    task: str | None = Field(None, description="The id of the task; null before the first reset.")


@dataclass(frozen=True, slots=True)
class Envelope:
    """A message of the WebSocket."""

    type: str
    data: JsonObject = field(default_factory=dict)
    request_id: Json = None


_TYPES_WITHOUT_DATA = ("state", "close")  # types without data
_MESSAGE_TYPES = ("reset", "step", "mcp", *_TYPES_WITHOUT_DATA)


def parse_envelope(value: Json) -> Envelope:
    """Parses the message in a JSON value.

    Raises:
        RefusedMessage: UNKNOWN_TYPE; VALIDATION_ERROR for unknown keys, and data that is missing or not an object.
    """
    if not isinstance(value, dict):
        raise RefusedMessage(
            "VALIDATION_ERROR", "Invalid message", [_make_problem("dict_type", [], "a message is an object")]
        )
    kind = value.get("type", "")
    if kind not in _MESSAGE_TYPES:
        raise RefusedMessage("UNKNOWN_TYPE", f"Unknown message type: {str(kind)[:100]}")
    known_keys = {"type", "request_id"} | (set() if kind in _TYPES_WITHOUT_DATA else {"data"})
    unknown_keys = [key for key in value if key not in known_keys]
    problems = [_make_problem("extra_forbidden", [key[:100]], "an unknown key") for key in unknown_keys[:_MAX_KEYS]]
    data = value.get("data", {} if kind in ("reset", *_TYPES_WITHOUT_DATA) else None)
    if not isinstance(data, dict):
        problems.append(_make_problem("missing" if data is None else "dict_type", ["data"], "data is an object"))
    if problems:
        raise RefusedMessage("VALIDATION_ERROR", "Invalid message", problems)
    return Envelope(str(kind), data if isinstance(data, dict) else {}, value.get("request_id"))


def _make_problem(kind: str, path: Sequence[str], message: str) -> Json:
    return {"type": kind, "loc": list(path), "msg": message}


def validate(model: type[M], value: object) -> M:
    """Validates the value as a model; raises RefusedMessage (VALIDATION_ERROR, with the errors) if it is invalid."""
    if isinstance(value, Mapping) and len(value) > _MAX_KEYS:
        problem = _make_problem("too_long", [], f"{len(value)} keys, at most {_MAX_KEYS}")
        raise RefusedMessage("VALIDATION_ERROR", "Invalid message", [problem])
    try:
        return model.model_validate(value)
    except ValidationError as error:
        errors = error.errors(include_url=False, include_context=False, include_input=False)
        raise RefusedMessage("VALIDATION_ERROR", "Invalid message", [to_json(dict(row)) for row in errors]) from error


def parse_action(data: Mapping[str, object]) -> Say | Call | None:
    """Parses the action of a step: a text, a call of a tool, or None if it asks for the tools.

    Raises:
        RefusedMessage: VALIDATION_ERROR.
    """
    kind = data.get("type")
    if kind == "list_tools":
        validate(ListTools, data)
        return None
    if kind == "call_tool":
        call = validate(CallTool, data)
        return Call(call.tool_name, call.arguments)
    return validate(Say, data)


def _observation_data(text: str, info: Mapping[str, Any], extra: Mapping[str, Json]) -> dict[str, Json]:
    """Returns `{text, admissible?, metadata: {info, ...extra}}`; info without the legal actions."""
    json_info = to_json(info)
    info_fields = dict(json_info) if isinstance(json_info, dict) else {}
    admissible = info_fields.pop("admissible", None)
    row: dict[str, Json] = {"text": text} if admissible is None else {"text": text, "admissible": admissible}
    return {**row, "metadata": {"info": info_fields, **extra}}


def reset_data(reset_result: ResetResult, task: str) -> dict[str, Json]:
    """Returns the answer to a reset; its reward is null."""
    row = _observation_data(reset_result.observation, reset_result.info, {"task": task, "step": 0, "truncated": False})
    return {"observation": row, "reward": None, "done": False}


def _episode_metadata(result: StepResult, task: str) -> dict[str, Json]:
    return {"task": task, "step": result.step + 1, "truncated": result.truncated}


def step_data(result: StepResult, task: str) -> dict[str, Json]:
    """Returns the answer to a step; a reward of None stays null."""
    row = _observation_data(result.observation, result.info, _episode_metadata(result, task))
    return {"observation": row, "reward": to_json(result.reward), "done": result.is_done}


def call_data(name: str, answer: StepResult | str, task: str) -> dict[str, Json]:
    """Returns the answer to a step that calls a tool; a text is the reason why there was no tool to call."""
    if isinstance(answer, str):
        error: Json = {"error_type": "tool_not_found", "message": answer}
        return {"observation": {"tool_name": name, "result": None, "error": error}, "reward": None, "done": False}
    row = _observation_data(answer.observation, answer.info, _episode_metadata(answer, task))
    row |= {"tool_name": name, "result": call_result(answer), "error": None}
    return {"observation": row, "reward": to_json(answer.reward), "done": answer.is_done}


def call_result(result: StepResult) -> dict[str, Json]:
    """Returns the result of a call: MCP's, with OpenEnv's spelling beside it, and the bare text as `data`."""
    structured: dict[str, Json] = {
        "observation": result.observation,
        "reward": to_json(result.reward),
        "done": result.is_done,
        "truncated": result.truncated,
        "step": result.step + 1,
        "info": to_json(result.info),
    }
    failed = bool(result.info.get("invalid"))
    return {
        "content": [{"type": "text", "text": result.observation}],
        "data": result.observation,
        "structuredContent": structured,
        "structured_content": structured,
        "isError": failed,
        "is_error": failed,
    }


def tool_rows(tools: Sequence[Tool], *keys: str) -> list[Json]:
    """Returns tools as `{name, description, KEY: schema}` for each key."""
    return [
        {"name": tool.name, "description": tool.description, **{key: to_json(tool.parameters) for key in keys}}
        for tool in tools
    ]


def tools_data(tools: Sequence[Tool]) -> dict[str, Json]:
    """Returns the answer to a step that asks for the tools."""
    return {"observation": {"tools": tool_rows(tools, "input_schema")}, "reward": None, "done": False}
