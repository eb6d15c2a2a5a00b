"""SGLang as an endpoint: token ids in and out by its native routes, which weights wrote a reply, and other weights.

    POST /generate {"input_ids", "sampling_params", "return_logprob": true}
         -> {"text", "output_ids", "meta_info": {"output_token_logprobs": [[LOGPROB, ID, null], ...], ...}}
    POST /v1/chat/completions {..., "return_token_ids": true}   ids are in `response_token_ids`, labels in `metadata`
    POST /tokenize {"prompt"}
    POST /update_weights_from_disk {"model_path", "weight_version"}
    GET  /model_info                                             "weight_version" of what is served

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
from evolvent.engine.labels import one_label, same_weights, weights_label
from evolvent.engine.replies import SESSION_HEADER, Reply, read_reply
from evolvent.errors import ConfigError, EndpointError, Problem, TokensMissing, WeightsChanged
from evolvent.messages import Message

__all__ = ["SglangEndpoint"]


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
        """As `Endpoint.chat`. Raises ConfigError too: ids demanded of a distribution with top-k or top-p."""
        if self.tokens:
            _check_whole(sampling)
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
        """What follows these token ids, by `/generate`. Raises what `chat` raises, and WeightsChanged in its middle."""
        _check_whole(sampling)
        params = {
            "max_new_tokens": max_tokens,
            "temperature": sampling.temperature,
            "sampling_seed": seed,
            "stop": list(stop) or None,
        }
        ids = [int(token) for token in prompt]
        body = {
            "sampling_params": {key: value for key, value in params.items() if value is not None},
            **self._extra,
            "input_ids": ids,
            "return_logprob": True,
        }
        url, headers = f"{self.root}/generate", {} if session is None else {SESSION_HEADER: session}
        said = {key: value for key, value in body.items() if value is not None}
        row = self._answered("POST", url, said, headers, wait_s=self.timeout_s)
        return self._counted(_generated(row, ids, where=f"POST {url}"))

    def tokens_of(self, text: str) -> NDArray[np.int32]:
        """`[P]`, how its tokenizer reads a text. Raises EndpointError, TokensMissing."""
        url = f"{self.root}/tokenize"
        row = self._answered("POST", url, {"model": self.model, "prompt": text}, {}, wait_s=self.timeout_s)
        ids = row.get("tokens") if isinstance(row, Mapping) else None
        if not isinstance(ids, list) or not all(type(token) is int for token in ids):
            raise TokensMissing(f"POST {url}: no token ids", value=ascii(ids)[:80], expected='{"tokens": [...]}')
        return np.array(ids, np.int32)

    def hand_over(self, folder: Path, *, wait_s: float = 600.0) -> str:
        """Have it take the weights of a model folder, under their label. What is under way is answered before.

        Args:
            folder: as the server is to find it.
            wait_s: for all tries together.
        Returns:
            the label of what is served now, `evolvent-vVERSION-DIGEST`.
        Raises:
            EndpointError: it takes no weights, not these, or did not answer in time.
            WeightsChanged: it serves another label afterwards. Incomplete: a folder without weights.
        """
        label, deadline = weights_label(folder), Deadline(wait_s)
        self._taken({"model_path": str(folder), "weight_version": label}, wait_s=wait_s)
        info = self._answered("GET", f"{self.root}/model_info", None, {}, wait_s=max(0.001, deadline.left()))
        served = str(info.get("weight_version", "")) if isinstance(info, Mapping) else ""
        if not same_weights(served, label):
            raise WeightsChanged(
                "SGLang serves other weights than were handed over",
                value=served,
                expected=label,
                hint="let one run alone use it",
            )
        return served

    def _read(self, row: object, *, chat: bool, tokens: bool, where: str) -> Reply:
        """A chat's reply, whose ids have a name of their own here."""
        if not isinstance(row, Mapping):
            return super()._read(row, chat=chat, tokens=tokens, where=where)
        choices = row.get("choices")
        first = choices[0] if isinstance(choices, list) and choices else None
        if isinstance(first, Mapping) and "response_token_ids" in first:
            row = {**row, "choices": [{**first, "token_ids": first["response_token_ids"]}]}
        reply = super()._read(row, chat=chat, tokens=tokens, where=where)
        told = row.get("metadata")
        told = told if isinstance(told, Mapping) else {}
        label = one_label(told.get("weight_version"), told.get("weight_versions"), where=where)
        return replace(reply, fingerprint=label) if label else reply


def _generated(row: object, prompt: list[int], *, where: str) -> Reply:
    """A reply of `/generate` as it would be told by `/completions`, and read as strictly."""
    meta = row.get("meta_info") if isinstance(row, Mapping) else None
    if not isinstance(row, Mapping) or not isinstance(meta, Mapping):
        raise EndpointError(f"{where}: an answer without meta_info", value=ascii(row)[:200], expected="a generation")
    ended = meta.get("finish_reason")
    pairs = meta.get("output_token_logprobs")
    good = isinstance(pairs, list) and all(isinstance(pair, list) and len(pair) >= 2 for pair in pairs)
    told = pairs if isinstance(pairs, list) and good else []
    ids = [pair[1] for pair in told]
    if meta.get("prompt_tokens", len(prompt)) != len(prompt):
        raise EndpointError(
            f"{where}: it read other tokens than it was given",
            value=meta.get("prompt_tokens"),
            expected=f"the {len(prompt)} token ids of the prompt",
        )
    if row.get("output_ids", ids) != ids:
        raise TokensMissing(
            f"{where}: log-probabilities are of other tokens than were written",
            value=ascii(ids)[:80],
            expected=ascii(row["output_ids"])[:80],
        )
    choice = {
        "text": row.get("text"),
        "finish_reason": ended.get("type") if isinstance(ended, Mapping) else ended,
        "prompt_token_ids": prompt,
        "token_ids": ids,
        "logprobs": {"token_logprobs": [pair[0] for pair in told]},
    }
    usage = {"prompt_tokens": len(prompt), "completion_tokens": meta.get("completion_tokens")}
    label = one_label(meta.get("weight_version"), meta.get("weight_versions"), where=where)
    whole = {"choices": [choice], "usage": usage, "system_fingerprint": label}
    return read_reply(whole, chat=False, tokens=True, where=where)


def _check_whole(sampling: Sampling) -> None:
    """Refuse to cut the distribution: the log-probabilities that come back would be of the uncut one."""
    if sampling.top_k or sampling.top_p < 1:
        what = f"top_k {sampling.top_k}, top_p {sampling.top_p}: SGLang's log-probabilities are of what was not cut"
        raise ConfigError([Problem("sampling", what, "sample with the temperature alone")])
