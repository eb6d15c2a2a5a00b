"""SGLang as an endpoint: token ids in and out by its native routes, which weights wrote a reply, and other weights.

    POST /generate {"input_ids", "sampling_params", "return_logprob": true}
         -> {"text", "output_ids", "meta_info": {"output_token_logprobs": [[LOGPROB, ID, null], ...], ...}}
    POST /v1/chat/completions {..., "return_token_ids": true}   ids are in `response_token_ids`, labels in `metadata`
    POST /tokenize {"prompt"}
    POST /update_weights_from_disk {"model_path", "weight_version"}
    GET  /model_info                                             "weight_version" of what is served
    POST /load_lora_adapter, /unload_lora_adapter                an adapter over the base (`served_adapters`)

Its log-probabilities are of the logits over the temperature, before top-k and top-p; at temperature 0 of the logits
themselves. Written from SGLang 0.5.23 as it is published. `evolvent serve --policy` answers the same routes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from evolvent.deadline import Deadline
from evolvent.engine.asks import Sampling
from evolvent.engine.endpoint import Endpoint
from evolvent.engine.labels import reply_label, same_weights, weights_label
from evolvent.engine.replies import SESSION_HEADER, Reply, read_reply
from evolvent.errors import ConfigError, EndpointError, Problem, TokensMissing, WeightsChanged
from evolvent.messages import Message
from evolvent.trajectory import Json

__all__ = ["SglangEndpoint"]

_MESSAGE_CHARS = 500  # characters of the server's own message that an error shows


class SglangEndpoint(Endpoint):
    """A model that SGLang serves. Arguments and errors are those of `Endpoint`.

    `processed` is true of it where nothing but the temperature shapes the distribution, unless it was started with
    SGLANG_RETURN_ORIGINAL_LOGPROB. A seed counts where it was started with `--enable-deterministic-inference`.
    """

    def chat(
        self,
        messages: Sequence[Message],
        *,
        sampling: Sampling,
        max_tokens: int,
        seed: int | None = None,
        stop: Sequence[str] = (),
        session: str | None = None,
    ) -> Reply:
        """Returns the next message, as `Endpoint.chat`. Also raises ConfigError for ids demanded with top-k or
        top-p.
        """
        if self.tokens:
            _check_untruncated(sampling)
        return super().chat(messages, sampling=sampling, max_tokens=max_tokens, seed=seed, stop=stop, session=session)

    def complete(
        self,
        prompt: Sequence[int],
        *,
        sampling: Sampling,
        max_tokens: int,
        seed: int | None = None,
        stop: Sequence[str] = (),
        session: str | None = None,
    ) -> Reply:
        """Returns the continuation of token ids by `/generate`. Raises the errors of `chat`, and WeightsChanged
        mid-reply.
        """
        _check_untruncated(sampling)
        params = {
            "max_new_tokens": max_tokens,
            "temperature": sampling.temperature,
            "sampling_seed": seed,
            "stop": list(stop) or None,
        }
        ids = [int(token) for token in prompt]
        body = {
            "sampling_params": {key: value for key, value in params.items() if value is not None},
            **self._adapter_fields(),
            **self._extra,
            "input_ids": ids,
            "return_logprob": True,
        }
        url, headers = f"{self.root}/generate", {} if session is None else {SESSION_HEADER: session}
        payload = {key: value for key, value in body.items() if value is not None}

        def request() -> Reply:
            row = self._request_json("POST", url, payload, headers, wait_s=self.timeout_s)
            return self._count_tokens(_parse_generation(row, ids, request_name=f"POST {url}"))

        return self._request_reply(request)

    def tokenize(self, text: str) -> NDArray[np.int32]:
        """Returns the token ids `[P]` that its tokenizer makes of a text. Raises EndpointError, TokensMissing."""
        url = f"{self.root}/tokenize"
        row = self._request_json("POST", url, {"model": self.model, "prompt": text}, {}, wait_s=self.timeout_s)
        ids = row.get("tokens") if isinstance(row, Mapping) else None
        if not isinstance(ids, list) or not all(type(token) is int for token in ids):
            raise TokensMissing(
                f"POST {url}: the answer has no token ids", value=ascii(ids)[:80], expected='{"tokens": [...]}'
            )
        return np.array(ids, np.int32)

    def load_weights(self, folder: Path, *, wait_s: float = 600.0) -> str:
        """Loads the weights of a model folder under their label; running requests are answered first.

        Args:
            folder: as the server finds it.
            wait_s: for all tries together.
        Returns:
            the label of the served weights, `evolvent-vVERSION-DIGEST`.
        Raises:
            EndpointError: it does not load weights, refuses these, or did not answer in time.
            WeightsChanged: it serves another label afterwards. Incomplete: a folder without weights.
        """
        label, deadline = weights_label(folder), Deadline(wait_s)
        self._post_weights({"model_path": str(folder), "weight_version": label}, wait_s=wait_s)
        info = self._request_json("GET", f"{self.root}/model_info", None, {}, wait_s=max(0.001, deadline.left()))
        served = str(info.get("weight_version", "")) if isinstance(info, Mapping) else ""
        if not same_weights(served, label):
            raise WeightsChanged(
                "SGLang serves different weights than it received",
                value=served,
                expected=label,
                hint="use the server for one run at a time",
            )
        return served

    def check_adapters(self) -> None:
        """Checks that the server has the route that loads adapters; see `Endpoint.check_adapters`."""
        self._check_route("/load_lora_adapter", hint="start SGLang with --enable-lora", lacking="loads no adapters")

    def _post_adapter(self, verb: str, body: Json, *, wait_s: float) -> None:
        url = f"{self.root}/{verb}_lora_adapter"
        row = self._request_json("POST", url, body, {}, wait_s=wait_s, final_statuses=frozenset({500}))
        if not isinstance(row, Mapping) or row.get("success") is not True:
            raise EndpointError(
                f"POST {url}: the endpoint refused the adapter",
                value=ascii(row)[:_MESSAGE_CHARS],
                expected='{"success": true}',
            )

    def _adapter_fields(self) -> dict[str, str]:
        return {} if self._adapter is None else {"lora_path": self._adapter.name}

    def _parse_reply(self, row: object, *, chat: bool, tokens: bool, request_name: str) -> Reply:
        """Parses a chat reply, whose token ids have another field name here."""
        if not isinstance(row, Mapping):
            return super()._parse_reply(row, chat=chat, tokens=tokens, request_name=request_name)
        choices = row.get("choices")
        first = choices[0] if isinstance(choices, list) and choices else None
        if isinstance(first, Mapping) and "response_token_ids" in first:
            row = {**row, "choices": [{**first, "token_ids": first["response_token_ids"]}]}
        reply = super()._parse_reply(row, chat=chat, tokens=tokens, request_name=request_name)
        metadata = row.get("metadata")
        metadata = metadata if isinstance(metadata, Mapping) else {}
        label = reply_label(metadata.get("weight_version"), metadata.get("weight_versions"), request_name=request_name)
        return replace(reply, fingerprint=label) if label else reply


def _parse_generation(row: object, prompt: list[int], *, request_name: str) -> Reply:
    """Converts a reply of `/generate` to the form of `/completions`, and parses it as strictly."""
    meta = row.get("meta_info") if isinstance(row, Mapping) else None
    if not isinstance(row, Mapping) or not isinstance(meta, Mapping):
        raise EndpointError(
            f"{request_name}: the answer has no meta_info", value=ascii(row)[:200], expected="a generation"
        )
    finish = meta.get("finish_reason")
    pairs = meta.get("output_token_logprobs")
    is_valid = isinstance(pairs, list) and all(isinstance(pair, list) and len(pair) >= 2 for pair in pairs)
    token_pairs = pairs if isinstance(pairs, list) and is_valid else []
    ids = [pair[1] for pair in token_pairs]
    if meta.get("prompt_tokens", len(prompt)) != len(prompt):
        raise EndpointError(
            f"{request_name}: SGLang read a different number of tokens than it received",
            value=meta.get("prompt_tokens"),
            expected=f"the {len(prompt)} token ids of the prompt",
        )
    if row.get("output_ids", ids) != ids:
        raise TokensMissing(
            f"{request_name}: log-probabilities do not match the generated tokens",
            value=ascii(ids)[:80],
            expected=ascii(row["output_ids"])[:80],
        )
    choice = {
        "text": row.get("text"),
        "finish_reason": finish.get("type") if isinstance(finish, Mapping) else finish,
        "prompt_token_ids": prompt,
        "token_ids": ids,
        "logprobs": {"token_logprobs": [pair[0] for pair in token_pairs]},
    }
    usage = {"prompt_tokens": len(prompt), "completion_tokens": meta.get("completion_tokens")}
    label = reply_label(meta.get("weight_version"), meta.get("weight_versions"), request_name=request_name)
    completion = {"choices": [choice], "usage": usage, "system_fingerprint": label}
    return read_reply(completion, chat=False, tokens=True, request_name=request_name)


def _check_untruncated(sampling: Sampling) -> None:
    """Refuses a truncated distribution: the returned log-probabilities would be of the untruncated one."""
    if sampling.top_k or sampling.top_p < 1:
        message = (
            f"top_k {sampling.top_k}, top_p {sampling.top_p}: the log-probabilities of SGLang ignore truncated sampling"
        )
        raise ConfigError([Problem("sampling", message, "set only temperature")])
