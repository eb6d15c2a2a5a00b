"""Requests of the OpenAI form, read strictly: what would change a reply and is not done here is refused by its name."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from evolvent.engine.asks import Sampling
from evolvent.errors import ConfigError, Problem, SampleInvalid, unknown
from evolvent.messages import Call, Message
from evolvent.serve.wire import plain, text_of
from evolvent.trajectory import sample_seed

__all__ = ["ChatRequest", "CompletionRequest", "Request", "StreamOptions", "Wanted", "read_request"]

_TOGETHER = 128  # samples of one request
_STOPS, _STOP_CHARS = 64, 1000  # each is looked for after every token
_TOOLS = 128  # of one request, as OpenAI has it
_MOST_FIELDS = 128  # of a request; each wrong one is told of
_DEFAULT_TOKENS = 16  # of a completion without max_tokens, as OpenAI has it
# Fields that are accepted where they ask for nothing: (their neutral values).
_NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "min_p": (0,),
    "logit_bias": ({},),
    "tools": ([],),
    "functions": ([],),
    "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (True, False),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
    "ignore_eos": (False,),
    "use_beam_search": (False,),
    "min_tokens": (0,),
    "top_logprobs": (0,),
    "skip_special_tokens": (True,),
    "add_generation_prompt": (True,),
    "continue_final_message": (False,),
    "chat_template_kwargs": ({},),
    "include_stop_str_in_output": (False,),
}
_IDLE = ("user", "metadata", "store", "service_tier", "prompt_cache_key", "safety_identifier")  # about the caller only
R = TypeVar("R", bound="Request")
T = TypeVar("T")
Text = Annotated[str, Field(min_length=1, max_length=_STOP_CHARS)]
List = Annotated[list[T], Field(fail_fast=True)]  # the first wrong part is told of, not millions of them


class StreamOptions(BaseModel):
    """What a stream tells beside the reply."""

    model_config = ConfigDict(extra="forbid", strict=True)
    include_usage: bool = Field(default=False, description="a last chunk with the counts of tokens")


class Request(BaseModel):
    """What both kinds of completions take."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
    model: str = Field(description="the name of the model")
    n: int = Field(default=1, ge=1, le=_TOGETHER, description="samples")
    temperature: float = Field(default=1.0, ge=0, le=100, description="0: the likeliest token")
    top_p: float = Field(default=1.0, gt=0, le=1, description="the share of probability that is kept")
    top_k: int = Field(default=0, ge=-1, le=2**31, description="how many tokens are kept; 0 or -1: all")
    max_tokens: int | None = Field(default=None, ge=1, description="most tokens of a reply")
    stop: Text | Annotated[List[Text], Field(max_length=_STOPS)] = Field(
        default=[], description="texts that end a reply; they are not part of it"
    )
    seed: int | None = Field(default=None, description="what the random numbers derive from; none: drawn")
    stream: bool = Field(default=False, description="send the reply as it is written")
    stream_options: StreamOptions = Field(default=StreamOptions(), description="what a stream tells beside it")
    return_token_ids: bool = Field(default=False, description="also give the ids of what was read and written")
    return_weight_versions: bool = Field(default=False, description="also tell whose weights wrote it, in vLLM's form")

    def wanted(self, context: int) -> Wanted:
        """How to sample. A seed and the number of a sample give the seed of the sample; the first has the seed itself.

        Args:
            context: most tokens of a text; what a reply without max_tokens may fill.
        """
        base = secrets.randbits(63) if self.seed is None else self.seed
        seeds = (base, *(sample_seed(base, number) for number in range(1, self.n)))
        stops = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)
        sampling = Sampling(self.temperature, max(0, self.top_k), self.top_p)
        return Wanted(sampling, min(self.most(context), context), stops, seeds)

    def most(self, context: int) -> int:
        """Most tokens of a reply."""
        return self.max_tokens or context


class ChatRequest(Request):
    """The body of `/v1/chat/completions`."""

    messages: List[dict[str, Any]] = Field(min_length=1, description="the conversation; the user's message is the last")
    max_completion_tokens: int | None = Field(default=None, ge=1, description="the newer name of max_tokens")
    logprobs: bool = Field(default=False, description="give the log-probability of every token written")
    tools: List[dict[str, Any]] = Field(default=[], max_length=_TOOLS, description="functions that may be called")
    tool_choice: str | dict[str, Any] = Field(
        default="auto", description="whether calls are made: auto, none, required, or the function that is called"
    )
    parallel_tool_calls: bool = Field(default=True, description="whether one reply may make several calls")

    def conversation(self) -> list[Message]:
        """The messages, without fields of which nothing is known. Raises ConfigError for what is none."""
        try:
            messages = [Message.of_openai(row) for row in self.messages]
            return [
                replace(one, content=text_of(one.text), calls=tuple(map(_whole, one.calls)), extra={})
                for one in messages
            ]
        except SampleInvalid as error:
            raise ConfigError([Problem("messages", str(error))]) from error

    def most(self, context: int) -> int:
        """Most tokens of a reply; without a limit, what the context leaves."""
        return self.max_completion_tokens or self.max_tokens or context


class CompletionRequest(Request):
    """The body of `/v1/completions`."""

    prompt: str | List[int] | List[str] | List[List[int]] = Field(description="a text or token ids, or several")
    logprobs: int | None = Field(default=None, ge=0, le=1, description="give log-probabilities of the tokens written")

    def prompts(self) -> list[str | list[int]]:
        """The prompts one by one. Raises ConfigError for none at all, or an empty one."""
        given: Any = self.prompt
        several = [given] if isinstance(given, str) or (given and isinstance(given[0], int)) else list(given)
        if not several or not all(several):
            raise ConfigError([Problem("prompt", f"nothing to continue: {given!r:.80}", "a text or token ids")])
        if len(several) * self.n > _TOGETHER:
            raise ConfigError([Problem("prompt", f"{len(several)} prompts with n {self.n}", f"{_TOGETHER} samples")])
        return [text_of(prompt) if isinstance(prompt, str) else prompt for prompt in several]

    def most(self, context: int) -> int:
        """Most tokens of a reply."""
        return self.max_tokens or _DEFAULT_TOKENS


@dataclass(frozen=True, slots=True)
class Wanted:
    """How replies are sampled: the distribution, most tokens, texts that end one, and one seed per sample."""

    sampling: Sampling
    max_tokens: int
    stops: tuple[str, ...]
    seeds: tuple[int, ...]


def _whole(call: Call) -> Call:
    """A call without halves of surrogate pairs. Raises SampleInvalid: arguments that are no JSON."""
    arguments = json.loads(text_of(json.dumps(plain(dict(call.arguments)), ensure_ascii=False)))
    return Call(text_of(call.name), arguments, call.id)


def read_request(kind: type[R], row: object) -> R:
    """A request from its parsed body; every mistake at once.

    Raises:
        ConfigError: fields of a wrong type or value, unknown ones (with the nearest name), or ones not done here.
    """
    if not isinstance(row, Mapping):
        raise ConfigError([Problem("body", f"no object: {type(row).__name__}", '{"model": ..., ...}')])
    if len(row) > _MOST_FIELDS:
        raise ConfigError([Problem("body", f"{len(row)} fields", f"at most {_MOST_FIELDS}")])
    given = {key: value for key, value in row.items() if value is not None and key not in _IDLE}
    fields = set(kind.model_fields)
    problems = []
    for key in [key for key in given if key not in fields]:
        value = given.pop(key)
        if key not in _NEUTRAL:
            problems.append(unknown("parameter", key[:80], {*fields, *_NEUTRAL}, where=key[:80]))
        elif value not in _NEUTRAL[key]:
            allowed = " or ".join(map(repr, _NEUTRAL[key]))
            problems.append(Problem(key, f"{value!r:.80} is not done here", f"leave it out, or {allowed}"))
    try:
        request = kind.model_validate(given)
    except ValidationError as error:
        for one in error.errors(include_url=False, include_context=False):
            where = ".".join(map(str, one["loc"])) or "body"
            problems.append(Problem(where, f"{one['msg']}, got {one['input']!r:.80}"))
        raise ConfigError(problems) from error
    if problems:
        raise ConfigError(problems)
    return request
