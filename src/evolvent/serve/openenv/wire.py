"""OpenEnv's messages: what a client may send, what it is answered, and the codes of refusals.

The protocol is that of `openenv-core` 0.2.3 and 0.3.0 (the same on the wire). Three things are ours and harm nobody:
`task` and `index` in a reset, `request_id` in a message of the WebSocket (echoed where it was given, never otherwise),
and `metadata` in an observation, which holds the world's info and how the episode stands.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from evolvent.messages import Call, Tool
from evolvent.serve.host import Seen, Stepped
from evolvent.serve.seats import Choice
from evolvent.serve.wire import plain
from evolvent.trajectory import Json

__all__ = [
    "FEATURE",
    "CallTool",
    "Envelope",
    "ListTools",
    "Observation",
    "Refused",
    "Reset",
    "Say",
    "State",
    "StepBody",
    "acted",
    "call_result",
    "called_data",
    "checked",
    "envelope",
    "listed_data",
    "seen_data",
    "stepped_data",
    "tool_rows",
]

_MOST_KEYS = 64  # of a message or an action; each wrong one is an error in the answer
FEATURE = "evolvent"  # the key of /metadata that says that request_id, task and index are understood
Name = Annotated[str, StringConstraints(max_length=255)]
M = TypeVar("M", bound=BaseModel)


class Refused(Exception):
    """A message that is refused with a code of the protocol; the connection stays open."""

    def __init__(self, code: str, message: str, errors: Sequence[Json] = ()) -> None:
        self.code, self.message, self.errors = code, message, list(errors)
        super().__init__(message)

    @property
    def data(self) -> dict[str, Json]:
        """The `data` of the error message."""
        return {"message": self.message, "code": self.code, **({"errors": self.errors} if self.errors else {})}


class Reset(BaseModel):
    """The parameters of a reset; those of other environments are ignored, as OpenEnv's server does."""

    model_config = ConfigDict(extra="ignore")
    seed: int | None = Field(None, ge=0, description="Picks the task of this number, modulo their count.")
    episode_id: Name | None = Field(None, description="A name for the episode, told by the state.")
    task: Name | None = Field(None, description="The id of the task to play.")
    index: int | None = Field(None, ge=0, description="The number of the task to play.")

    @property
    def choice(self) -> Choice:
        return Choice(self.task, self.index, self.seed)


class StepBody(Reset):
    """The body of a step over HTTP, where every request has an environment of its own."""

    action: dict[str, Any] = Field(description="The fields of the action.")
    timeout_s: float | None = Field(None, gt=0, description="Ignored: the server has its own deadlines.")
    request_id: Name | None = Field(None, description="Ignored: an answer belongs to its request.")

    @property
    def choice(self) -> Choice:
        """The first task where none is named."""
        chosen = super().choice
        return Choice(index=0) if chosen == Choice() else chosen


class Say(BaseModel):
    """The action of a text world."""

    model_config = ConfigDict(extra="forbid")
    message: str = Field(description="The text of the action.")
    metadata: dict[str, Any] = Field(default_factory=dict, description="Ignored.")


class CallTool(BaseModel):
    """The action that calls a tool."""

    model_config = ConfigDict(extra="forbid")
    type: Literal["call_tool"] = Field(description="What tells it from other actions.")
    tool_name: str = Field(description="The name of the tool.")
    arguments: dict[str, Any] = Field(default_factory=dict, description="Its arguments, as its schema says.")
    metadata: dict[str, Any] = Field(default_factory=dict, description="Ignored.")


class ListTools(BaseModel):
    """The action that asks for the tools; it is no step."""

    model_config = ConfigDict(extra="forbid")
    type: Literal["list_tools"] = Field(description="What tells it from other actions.")
    metadata: dict[str, Any] = Field(default_factory=dict, description="Ignored.")


class Observation(BaseModel):
    """What a text world answers (described for `/schema`)."""

    text: str = Field(description="What is seen.")
    admissible: list[str] | None = Field(None, description="The legal actions, where they are few.")
    metadata: dict[str, Any] = Field(default_factory=dict, description="info, task, step, truncated")


class State(BaseModel):
    """Where an episode stands (described for `/schema`)."""

    episode_id: str | None = Field(None, description="The name of the episode, as the reset gave it or drawn.")
    step_count: int = Field(0, ge=0, description="How many steps were taken.")
    world: str = Field("", description="The world's name.")
    task: str | None = Field(None, description="The id of the task; null before the first reset.")


@dataclass(frozen=True, slots=True)
class Envelope:
    """A message of the WebSocket."""

    type: str
    data: Mapping[str, Any] = field(default_factory=dict)
    request_id: Json = None


_BARE = ("state", "close")  # types without data
_TYPES = ("reset", "step", "mcp", *_BARE)


def envelope(value: Json) -> Envelope:
    """The message that a JSON value is.

    Raises:
        Refused: UNKNOWN_TYPE; VALIDATION_ERROR for unknown keys, and data that is missing or no object.
    """
    if not isinstance(value, dict):
        raise Refused("VALIDATION_ERROR", "Invalid message", [_wrong("dict_type", [], "a message is an object")])
    kind = value.get("type", "")
    if kind not in _TYPES:
        raise Refused("UNKNOWN_TYPE", f"Unknown message type: {str(kind)[:100]}")
    known = {"type", "request_id"} | (set() if kind in _BARE else {"data"})
    strange = [key for key in value if key not in known]
    wrong = [_wrong("extra_forbidden", [key[:100]], "an unknown key") for key in strange[:_MOST_KEYS]]
    data = value.get("data", {} if kind in ("reset", *_BARE) else None)
    if not isinstance(data, dict):
        wrong.append(_wrong("missing" if data is None else "dict_type", ["data"], "data is an object"))
    if wrong:
        raise Refused("VALIDATION_ERROR", "Invalid message", wrong)
    return Envelope(str(kind), data if isinstance(data, dict) else {}, value.get("request_id"))


def _wrong(kind: str, where: Sequence[str], what: str) -> Json:
    return {"type": kind, "loc": list(where), "msg": what}


def checked(model: type[M], value: object) -> M:
    """The value as a model; Refused (VALIDATION_ERROR, with the errors) where it is none."""
    if isinstance(value, Mapping) and len(value) > _MOST_KEYS:
        told = _wrong("too_long", [], f"{len(value)} keys, at most {_MOST_KEYS}")
        raise Refused("VALIDATION_ERROR", "Invalid message", [told])
    try:
        return model.model_validate(value)
    except ValidationError as error:
        errors = error.errors(include_url=False, include_context=False, include_input=False)
        raise Refused("VALIDATION_ERROR", "Invalid message", [plain(dict(row)) for row in errors]) from error


def acted(data: Mapping[str, Any]) -> Say | Call | None:
    """The action of a step: a text, a call of a tool, or None where the tools are asked for.

    Raises:
        Refused: VALIDATION_ERROR.
    """
    kind = data.get("type")
    if kind == "list_tools":
        checked(ListTools, data)
        return None
    if kind == "call_tool":
        call = checked(CallTool, data)
        return Call(call.tool_name, call.arguments)
    return checked(Say, data)


def _observation(text: str, info: Mapping[str, Any], marks: Mapping[str, Json]) -> dict[str, Json]:
    """`{text, admissible?, metadata: {info, ...marks}}`; info without what admissible says."""
    told = plain(info)
    rest = dict(told) if isinstance(told, dict) else {}
    legal = rest.pop("admissible", None)
    row: dict[str, Json] = {"text": text} if legal is None else {"text": text, "admissible": legal}
    return {**row, "metadata": {"info": rest, **marks}}


def seen_data(seen: Seen, task: str) -> dict[str, Json]:
    """The answer to a reset; nothing has been earned."""
    row = _observation(seen.observation, seen.info, {"task": task, "step": 0, "truncated": False})
    return {"observation": row, "reward": None, "done": False}


def _marks(stepped: Stepped, task: str) -> dict[str, Json]:
    return {"task": task, "step": stepped.step + 1, "truncated": stepped.truncated}


def stepped_data(stepped: Stepped, task: str) -> dict[str, Json]:
    """The answer to a step; a reward of None stays null."""
    row = _observation(stepped.observation, stepped.info, _marks(stepped, task))
    return {"observation": row, "reward": plain(stepped.reward), "done": stepped.done}


def called_data(name: str, answer: Stepped | str, task: str) -> dict[str, Json]:
    """The answer to a step that calls a tool; a text says why there was none to call."""
    if isinstance(answer, str):
        error: Json = {"error_type": "tool_not_found", "message": answer}
        return {"observation": {"tool_name": name, "result": None, "error": error}, "reward": None, "done": False}
    row = _observation(answer.observation, answer.info, _marks(answer, task))
    row |= {"tool_name": name, "result": call_result(answer), "error": None}
    return {"observation": row, "reward": plain(answer.reward), "done": answer.done}


def call_result(stepped: Stepped) -> dict[str, Json]:
    """The result of a call: MCP's, with OpenEnv's spelling beside it, and the bare text as `data`."""
    told: dict[str, Json] = {
        "observation": stepped.observation,
        "reward": plain(stepped.reward),
        "done": stepped.done,
        "truncated": stepped.truncated,
        "step": stepped.step + 1,
        "info": plain(stepped.info),
    }
    failed = bool(stepped.info.get("invalid"))
    return {
        "content": [{"type": "text", "text": stepped.observation}],
        "data": stepped.observation,
        "structuredContent": told,
        "structured_content": told,
        "isError": failed,
        "is_error": failed,
    }


def tool_rows(tools: Sequence[Tool], *keys: str) -> list[Json]:
    """Tools as `{name, description, KEY: schema}` for each key."""
    return [
        {"name": tool.name, "description": tool.description, **{key: plain(tool.parameters) for key in keys}}
        for tool in tools
    ]


def listed_data(tools: Sequence[Tool]) -> dict[str, Json]:
    """The answer to a step that asks for the tools."""
    return {"observation": {"tools": tool_rows(tools, "input_schema")}, "reward": None, "done": False}
