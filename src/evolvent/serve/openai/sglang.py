"""SGLang's native routes for a served policy: token ids in and out, and the version of the served weights.

    POST /generate     {"input_ids": [...] or "text", "sampling_params": {...}, "return_logprob": true}
    POST /tokenize     {"prompt": "text"}
    GET  /model_info   (also /get_model_info)
    POST /load_lora_adapter, /unload_lora_adapter, where the server takes weights

Several prompts, or `n` samples of one, are answered with a list. The label of the weights is the fingerprint. An
unsupported field that would change a reply is refused by its name, as on the other routes; a stream is one of those.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from evolvent.errors import ConfigError, Problem
from evolvent.serve.openai.generator import Generator
from evolvent.serve.openai.reply import Choice, ReplyFormat
from evolvent.serve.openai.request import CompletionRequest
from evolvent.trajectory import JsonObject

__all__ = ["GenerateFormat", "GenerateRequest", "TokenizeRequest", "describe_model", "parse_generate", "parse_tokenize"]

# Fields that are accepted where they ask for what is done anyway: (their neutral values).
_NEUTRAL_VALUES: Mapping[str, tuple[object, ...]] = {
    "stream": (False,),
    "logprob_start_len": (-1,),
    "top_logprobs_num": (0,),
    "return_text_in_logprobs": (False,),
    "add_special_tokens": (True,),
    "ignore_eos": (False,),
    "skip_special_tokens": (True,),
    "no_stop_trim": (False,),
    "spaces_between_special_tokens": (True,),
    "min_new_tokens": (0,),
    "min_p": (0,),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
}
_DEFAULT_TOKENS = 128  # of a reply whose length nobody names, as SGLang has it
M = TypeVar("M", bound=BaseModel)
List = Annotated[list[Any], Field(fail_fast=True)]


class _SamplingParams(BaseModel):
    """Sampling parameters, in SGLang's names."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
    max_new_tokens: int | None = Field(default=None, ge=1, description="most tokens of a reply")
    temperature: float | None = Field(default=None, description="0: the likeliest token")
    top_p: float | None = Field(default=None, description="the share of probability that is kept")
    top_k: int | None = Field(default=None, description="how many tokens are kept; -1: all")
    stop: str | List | None = Field(default=None, description="texts that end a reply")
    sampling_seed: int | None = Field(default=None, description="what the random numbers derive from; none: drawn")
    n: int | None = Field(default=None, description="samples of each prompt")


class GenerateRequest(BaseModel):
    """The body of `/generate`."""

    model_config = ConfigDict(extra="forbid", strict=True)
    input_ids: List | None = Field(default=None, description="token ids of one prompt, or of several")
    text: str | List | None = Field(default=None, description="a prompt as text, or several")
    sampling_params: _SamplingParams = Field(default=_SamplingParams(), description="how to sample")
    return_logprob: bool = Field(default=False, description="give the log-probability of every token written")
    rid: str | None = Field(default=None, max_length=200, description="names the request")
    session_id: str | None = Field(default=None, max_length=200, description="about the caller only")
    lora_path: str | None = Field(default=None, max_length=200, description="name of a loaded adapter; none: the base")

    def to_completion(self, model: str) -> CompletionRequest:
        """Converts to a request of `/v1/completions`, where its values are checked. Raises ConfigError."""
        if (self.input_ids is None) == (self.text is None):
            raise ConfigError(
                [Problem("input_ids", "got both or neither of input_ids and text", "set exactly one of them")]
            )
        params = self.sampling_params
        row = {
            "model": model,
            "prompt": self.input_ids if self.text is None else self.text,
            "n": params.n,
            "max_tokens": params.max_new_tokens or _DEFAULT_TOKENS,
            "temperature": params.temperature,
            "top_p": params.top_p,
            "top_k": params.top_k,
            "seed": params.sampling_seed,
            "stop": params.stop or None,
            "logprobs": 0,
        }
        return _parse_model(CompletionRequest, row)

    @property
    def has_list_answer(self) -> bool:
        """Returns whether the answer is a list."""
        lists = isinstance(self.text, list) if self.text is not None else isinstance((self.input_ids or [0])[0], list)
        return lists or (self.sampling_params.n or 1) > 1


class TokenizeRequest(BaseModel):
    """The body of `/tokenize`."""

    model_config = ConfigDict(extra="forbid", strict=True)
    prompt: str = Field(description="the text")
    model: str | None = Field(default=None, description="there is one only")


def parse_generate(row: object) -> GenerateRequest:
    """Parses the request. Raises ConfigError with every mistake at once."""
    fields = _drop_neutral(row) if isinstance(row, Mapping) else row
    if isinstance(fields, dict) and isinstance(fields.get("sampling_params"), Mapping):
        fields["sampling_params"] = _drop_neutral(fields["sampling_params"])
    return _parse_model(GenerateRequest, fields)


def parse_tokenize(row: object) -> TokenizeRequest:
    """Parses the request. Raises ConfigError with every mistake at once."""
    return _parse_model(TokenizeRequest, row)


def _drop_neutral(row: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of a row that are not neutral."""
    return {key: value for key, value in row.items() if value is not None and value not in _NEUTRAL_VALUES.get(key, ())}


def _parse_model(model_class: type[M], row: object) -> M:
    if not isinstance(row, Mapping):
        raise ConfigError([Problem("body", f"got {type(row).__name__}, expected a JSON object")])
    try:
        return model_class.model_validate(_drop_neutral(row))
    except ValidationError as error:
        raise ConfigError(
            [
                Problem(
                    ".".join(map(str, detail["loc"]))[:80] or "body", f"{detail['msg']}, got {detail['input']!r:.80}"
                )
                for detail in error.errors(include_url=False, include_context=False)[:8]
            ]
        ) from error


@dataclass(frozen=True)
class GenerateFormat(ReplyFormat):
    """The replies of `/generate`: `{"replies": [one a sample]}`.

    Args:
        stop_ids: tokens that end a reply.
        request: name of the request.
    """

    stop_ids: frozenset[int] = frozenset()
    request: str | None = None

    def body(self, choices: Sequence[Choice]) -> JsonObject:
        """Returns all samples, prompt by prompt."""
        return {"replies": [self._reply_row(choice, len(choices) > 1) for choice in choices]}

    def _reply_row(self, choice: Choice, is_one_of_many: bool) -> dict[str, Any]:
        ids, sample = choice.sample.ids.tolist(), choice.sample
        finish_reason: dict[str, Any] = {"type": "length", "length": len(ids)}
        if choice.finish_reason == "stop":
            finish_reason = {"type": "stop", "matched": ids[-1] if ids and ids[-1] in self.stop_ids else None}
        name = self.request or self.id
        meta = {
            "id": f"{name}_{choice.index}" if is_one_of_many else name,
            "finish_reason": finish_reason,
            "prompt_tokens": len(choice.prompt),
            "completion_tokens": len(ids),
            "weight_version": sample.fingerprint,
        }
        if self.with_logprobs:
            pairs = zip(map(float, sample.logprobs), ids, strict=True)
            meta["output_token_logprobs"] = [[value, token, None] for value, token in pairs]
        return {"text": choice.text, "output_ids": ids, "meta_info": meta}


def describe_model(generator: Generator, name: str) -> dict[str, object]:
    """Returns the answer of `/model_info`. It holds no path of this machine: the model is called by its name."""
    config = generator.policy.model.config
    return {
        "model_path": name,
        "served_model_name": name,
        "tokenizer_path": name,
        "is_generation": True,
        "preferred_sampling_params": None,
        "weight_version": generator.fingerprint,
        "model_type": getattr(config, "model_type", None),
        "architectures": getattr(config, "architectures", None),
    }
