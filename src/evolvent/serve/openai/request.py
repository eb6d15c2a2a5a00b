"""Requests in OpenAI's form, parsed strictly: an unsupported field that would change a reply is refused by its name."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator, model_validator

from evolvent.engine.asks import Sampling
from evolvent.errors import ConfigError, Problem, SampleInvalid, unknown_name_problem
from evolvent.messages import Call, Message
from evolvent.serve.wire import replace_surrogates, to_json
from evolvent.trajectory import JsonObject, sample_seed

__all__ = [
    "BaseCompletionRequest",
    "ChatRequest",
    "CompletionRequest",
    "SamplingSpec",
    "StreamOptions",
    "merge_turns",
    "parse_request",
    "read_response_schema",
]

_MAX_SAMPLES = 128  # samples of one request
_MAX_STOPS, _MAX_STOP_CHARS = 64, 1000  # each is looked for after every token
_MAX_TOOLS = 128  # of one request, as OpenAI has it
_MAX_FIELDS = 128  # of a request; each wrong one is told of
_MAX_TOKENS = 2**31  # largest max_tokens that is read; the context bounds a reply anyway
_MAX_BIASES = 1024  # tokens of a request with a bias
_MAX_TOP = 20  # most alternatives of a token, as OpenAI has it
_DEFAULT_TOKENS = 16  # of a completion without max_tokens, as OpenAI has it
# Fields that are accepted where they ask for nothing: (their neutral values).
_NEUTRAL_VALUES: Mapping[str, tuple[object, ...]] = {
    "repetition_penalty": (1,),
    "min_p": (0,),
    "tools": ([],),
    "functions": ([],),
    "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (True, False),
    "modalities": (["text"],),
    "best_of": (1,),
    "reasoning_effort": ("medium",),
    "verbosity": ("medium",),
    "length_penalty": (1,),
    "add_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "suffix": ("",),
    "ignore_eos": (False,),
    "use_beam_search": (False,),
    "min_tokens": (0,),
    "skip_special_tokens": (True,),
    "add_generation_prompt": (True,),
    "continue_final_message": (False,),
    "chat_template_kwargs": ({},),
    "include_stop_str_in_output": (False,),
}
_IGNORED_FIELDS = (
    "user",
    "metadata",
    "store",
    "service_tier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "safety_identifier",
    "prediction",
    "priority",
)  # about the caller, or about speed only
R = TypeVar("R", bound="BaseCompletionRequest")
T = TypeVar("T")
Text = Annotated[str, Field(min_length=1, max_length=_MAX_STOP_CHARS)]
TokenName = Annotated[str, Field(pattern=r"^[0-9]{1,9}$")]
Bias = Annotated[float, Field(ge=-100, le=100)]
List = Annotated[list[T], Field(fail_fast=True)]  # the first wrong part is told of, not millions of them


class StreamOptions(BaseModel):
    """Options of a stream beside the reply."""

    model_config = ConfigDict(extra="forbid", strict=True)
    include_usage: bool = Field(default=False, description="a last chunk with the counts of tokens")
    include_obfuscation: bool = Field(default=False, description="accepted; chunks are not padded")


class BaseCompletionRequest(BaseModel):
    """The fields that both kinds of completions share."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
    model: str = Field(description="the name of the model")
    n: int = Field(default=1, ge=1, le=_MAX_SAMPLES, description="samples")
    temperature: float = Field(default=1.0, ge=0, le=100, description="0: the likeliest token")
    top_p: float = Field(default=1.0, gt=0, le=1, description="the share of probability that is kept")
    top_k: int = Field(default=0, ge=-1, le=2**31, description="how many tokens are kept; 0 or -1: all")
    max_tokens: int | None = Field(default=None, ge=1, le=_MAX_TOKENS, description="most tokens of a reply")
    frequency_penalty: float = Field(default=0.0, ge=-2, le=2, description="taken from a token's logit for each use")
    presence_penalty: float = Field(default=0.0, ge=-2, le=2, description="taken from the logits of used tokens")
    logit_bias: dict[TokenName, Bias] = Field(
        default={}, max_length=_MAX_BIASES, description="by token id, what is added to its logit"
    )
    stop: Text | Annotated[List[Text], Field(max_length=_MAX_STOPS)] = Field(
        default=[], description="texts that end a reply; they are not part of it"
    )
    seed: int | None = Field(default=None, description="what the random numbers derive from; none: drawn")
    stream: bool = Field(default=False, description="send the reply as it is written")
    stream_options: StreamOptions = Field(default=StreamOptions(), description="what a stream tells beside it")
    return_token_ids: bool = Field(default=False, description="also give the ids of what was read and written")
    return_weight_versions: bool = Field(default=False, description="also tell whose weights wrote it, in vLLM's form")
    lora_path: str | None = Field(
        default=None, max_length=200, description="name of a loaded adapter, as SGLang has it"
    )

    def sampling_spec(self, context: int) -> SamplingSpec:
        """Returns how to sample. The seed and the sample's index give the sample's seed; the first sample has the
        seed itself.

        Args:
            context: maximum number of tokens of a text; the limit of a reply without max_tokens.
        """
        base = secrets.randbits(63) if self.seed is None else self.seed
        seeds = (base, *(sample_seed(base, number) for number in range(1, self.n)))
        stops = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)
        sampling = Sampling(self.temperature, max(0, self.top_k), self.top_p)
        return SamplingSpec(sampling, min(self.reply_limit(context), context), stops, seeds)

    def reply_limit(self, context: int) -> int:
        """Returns the maximum number of tokens of a reply."""
        return self.max_tokens or context


class ChatRequest(BaseCompletionRequest):
    """The body of `/v1/chat/completions`."""

    messages: List[dict[str, object]] = Field(
        min_length=1, description="the conversation; the user's message is the last"
    )
    max_completion_tokens: int | None = Field(
        default=None, ge=1, le=_MAX_TOKENS, description="the newer name of max_tokens"
    )
    logprobs: bool = Field(default=False, description="give the log-probability of every token written")
    top_logprobs: int = Field(default=0, ge=0, le=_MAX_TOP, description="likeliest tokens to give at every position")
    response_format: dict[str, object] = Field(
        default={"type": "text"}, description="text, json_object, or json_schema with the schema that a reply fits"
    )
    tools: List[dict[str, Any]] = Field(default=[], max_length=_MAX_TOOLS, description="functions that may be called")
    tool_choice: str | dict[str, object] = Field(
        default="auto", description="whether calls are made: auto, none, required, or the function that is called"
    )
    parallel_tool_calls: bool = Field(default=True, description="whether one reply may make several calls")

    @field_validator("top_logprobs")
    @classmethod
    def _check_logprobs(cls, top_logprobs: int, info: ValidationInfo) -> int:
        if top_logprobs and not info.data.get("logprobs"):
            raise ValueError("top_logprobs needs logprobs: set logprobs to true")
        return top_logprobs

    def conversation(self) -> list[Message]:
        """Returns the messages as turns, without unknown fields. Raises ConfigError for invalid messages."""
        try:
            messages = [Message.of_openai(row) for row in self.messages]
            cleaned = [
                replace(
                    message,
                    content=replace_surrogates(message.text),
                    calls=tuple(map(_clean_call, message.calls)),
                    extra={},
                )
                for message in messages
            ]
            return merge_turns(cleaned)
        except SampleInvalid as error:
            raise ConfigError([Problem("messages", str(error))]) from error

    def reply_limit(self, context: int) -> int:
        """Returns the maximum number of tokens of a reply; without a limit, the context."""
        return self.max_completion_tokens or self.max_tokens or context


class CompletionRequest(BaseCompletionRequest):
    """The body of `/v1/completions`."""

    prompt: str | List[int] | List[str] | List[List[int]] = Field(description="a text or token ids, or several")
    max_tokens: int | None = Field(
        default=None, ge=0, le=_MAX_TOKENS, description="most tokens of a reply; 0: none, to score a prompt with echo"
    )
    logprobs: int | None = Field(
        default=None, ge=0, le=_MAX_TOP, description="give log-probabilities, and so many likeliest tokens beside each"
    )
    echo: bool = Field(default=False, description="begin the text, and its log-probabilities, with the prompt")
    best_of: int | None = Field(default=None, description="how many samples the best are chosen from: n")

    @model_validator(mode="after")
    def _check_best_of(self) -> CompletionRequest:
        if self.best_of not in (None, self.n):
            raise ValueError("best_of other than n is not supported: leave it out, or use the value of n")
        return self

    @model_validator(mode="after")
    def _check_echo(self) -> CompletionRequest:
        if self.echo and self.stream:
            raise ValueError("a stream does not echo its prompt: leave out echo or stream")
        if self.max_tokens == 0 and self.stream:
            raise ValueError("a stream of no tokens is empty: leave out stream, or raise max_tokens")
        return self

    def prompts(self) -> list[str | list[int]]:
        """Returns the prompts one by one. Raises ConfigError if there is none, or an empty one."""
        prompt_field: Any = self.prompt
        prompts = (
            [prompt_field]
            if isinstance(prompt_field, str) or (prompt_field and isinstance(prompt_field[0], int))
            else list(prompt_field)
        )
        if not prompts or not all(prompts):
            raise ConfigError(
                [
                    Problem(
                        "prompt", f"got {prompt_field!r:.80}, which has nothing to continue", "pass a text or token ids"
                    )
                ]
            )
        if len(prompts) * self.n > _MAX_SAMPLES:
            raise ConfigError(
                [
                    Problem(
                        "prompt", f"got {len(prompts)} prompts with n {self.n}, expected at most {_MAX_SAMPLES} samples"
                    )
                ]
            )
        return [replace_surrogates(prompt) if isinstance(prompt, str) else prompt for prompt in prompts]

    def reply_limit(self, context: int) -> int:
        """Returns the maximum number of tokens of a reply."""
        return _DEFAULT_TOKENS if self.max_tokens is None else self.max_tokens


@dataclass(frozen=True, slots=True)
class SamplingSpec:
    """How replies are sampled: the distribution, the maximum number of tokens, stop texts, and one seed per sample."""

    sampling: Sampling
    max_tokens: int
    stops: tuple[str, ...]
    seeds: tuple[int, ...]


def merge_turns(messages: Sequence[Message]) -> list[Message]:
    """Returns a conversation with one system message at most, the first, and no two turns of the user in a row.

    Chat templates and dialects are written for that form; clients also send several system messages, or one before a
    later turn. Those at the beginning become one. A later one is told by the user, where it stands: its place in front
    would change what earlier replies were sampled after. Neighbors are joined by an empty line; speakers of different
    names, and messages with calls, stay as they are.

    >>> turns = merge_turns([Message("system", "Be kind."), Message("developer", "Be short."), Message("user", "Hi")])
    >>> [(message.role, message.text) for message in turns]
    [('system', 'Be kind.\\n\\nBe short.'), ('user', 'Hi')]
    """
    turns: list[Message] = []
    for message in messages:
        role = message.role
        if role in ("system", "developer"):
            role = "system" if all(turn.role == "system" for turn in turns) else "user"
        last = turns[-1] if turns else None
        if last is not None and role == last.role and role in ("system", "user") and _is_joined(last, message):
            texts = [text for text in (last.text, message.text) if text]
            turns[-1] = replace(last, content="\n\n".join(texts))
        else:
            turns.append(replace(message, role=role))
    return turns


def _is_joined(last: Message, message: Message) -> bool:
    """Returns whether a message may become a part of the one before it: of the same speaker, and texts alone."""
    has_same_name = last.extra.get("name") == message.extra.get("name")
    return has_same_name and not last.calls and not message.calls


def _clean_call(call: Call) -> Call:
    """Returns a call without halves of surrogate pairs. Raises SampleInvalid if its arguments are not JSON."""
    arguments = json.loads(replace_surrogates(json.dumps(to_json(dict(call.arguments)), ensure_ascii=False)))
    return Call(replace_surrogates(call.name), arguments, call.id)


def parse_request(request_class: type[R], row: object) -> R:
    """Parses a request; reports every mistake at once.

    Raises:
        ConfigError: fields of a wrong type or value, unknown fields (with the nearest name), or unsupported ones.
    """
    if not isinstance(row, Mapping):
        raise ConfigError([Problem("body", f"got {type(row).__name__}, expected a JSON object", '{"model": ..., ...}')])
    if len(row) > _MAX_FIELDS:
        raise ConfigError([Problem("body", f"got {len(row)} fields, expected at most {_MAX_FIELDS}")])
    fields_given = {key: value for key, value in row.items() if value is not None and key not in _IGNORED_FIELDS}
    fields = set(request_class.model_fields)
    problems = []
    for key in [key for key in fields_given if key not in fields]:
        value = fields_given.pop(key)
        if key not in _NEUTRAL_VALUES:
            problems.append(unknown_name_problem("parameter", key[:80], {*fields, *_NEUTRAL_VALUES}, location=key[:80]))
        elif value not in _NEUTRAL_VALUES[key]:
            allowed = " or ".join(map(repr, _NEUTRAL_VALUES[key]))
            problems.append(Problem(key, f"{value!r:.80} is not supported", f"leave it out, or use {allowed}"))
    try:
        request = request_class.model_validate(fields_given)
    except ValidationError as error:
        for detail in error.errors(include_url=False, include_context=False):
            path = ".".join(map(str, detail["loc"])) or "body"
            problems.append(Problem(path, f"{detail['msg']}, got {detail['input']!r:.80}"))
        raise ConfigError(problems) from error
    if problems:
        raise ConfigError(problems)
    return request


def read_response_schema(response_format: JsonObject) -> JsonObject | None:
    """Returns the schema that a reply has to fit; None: it is free text.

    Raises:
        ConfigError: an unknown type, or no schema.

    >>> read_response_schema({"type": "json_object"})
    {'type': 'object'}
    """
    kind, kinds = response_format.get("type"), ("text", "json_object", "json_schema")
    if kind not in kinds:
        location = "response_format.type"
        raise ConfigError([unknown_name_problem("type", str(kind)[:80], kinds, location=location)])
    if kind == "text":
        return None
    if kind == "json_object":
        return {"type": "object"}
    described = response_format.get("json_schema")
    schema = described.get("schema") if isinstance(described, Mapping) else None
    if not isinstance(schema, Mapping):
        hint = 'for example {"type": "json_schema", "json_schema": {"name": "answer", "schema": {...}}}'
        raise ConfigError([Problem("response_format.json_schema.schema", "is missing", hint)])
    return dict(schema)
