"""One look at episodes with a policy's weights: what it says of every learned token, in one forward and no gradient.

Log-probabilities under the distribution that was sampled from (before the first update they are the ratio's
denominator, and against the sampler's own they show a mismatch), state values, and the tokens that top-k kept.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from evolvent.engine.sampling import ChoiceTrie
from evolvent.errors import BatchMismatch
from evolvent.learn.forward import calm, fitting, outputs, target_logits
from evolvent.learn.objectives import Outputs
from evolvent.learn.packing import Batch
from evolvent.learn.prefix_sharing import Sharing, batches
from evolvent.learn.token_sequences import Parts
from evolvent.models.policy import Policy
from evolvent.trajectory import Trajectory

__all__ = ["Look", "chosen_supports", "look", "said_of", "supports"]

Look = Literal["logprobs", "values", "entropy"]
_WORDS: tuple[Look, ...] = ("logprobs",)
Reader = Callable[[Any, Batch], Mapping[str, Tensor]]
_LOGITS = 1 << 27  # of one forward: half a gibibyte in float32
_LESS = "lower train.micro_tokens"


def look(
    policy: Policy,
    chains: Sequence[Parts],
    *,
    needs: Collection[Look] = _WORDS,
    temperature: float = 1.0,
    tokens: int | None = None,
    dtype: torch.dtype = torch.float32,
    sharing: Sharing | None = None,
) -> list[dict[str, NDArray[np.float32]]]:
    """For every chain, a column `[T]` of each need; 0 at tokens without weight.

    The value at a token is that of the prefix before it. Where a chain has the column "support", log-probabilities and
    entropy are of its tokens alone (see `Objective.temperature`).

    Args:
        needs: "values" are those of the policy's value head.
        temperature: that the tokens were sampled at.
        tokens: most tokens of a forward, padding included; None: as many as give half a gibibyte of logits.
        dtype: float32, or bfloat16 for an autocast forward.
        sharing: how chains share rows; None: each has its own.
    Raises:
        DeviceMemory: a forward does not fit.
    """

    def read(model: Any, batch: Batch) -> Mapping[str, Tensor]:
        found: Outputs = outputs(model, batch, needs=tuple(needs), dtype=dtype, temperature=temperature)
        return {name: getattr(found, name) for name in needs}

    with _valued(policy) if "values" in needs else nullcontext():
        return said_of(policy.model, chains, read, tokens=tokens, sharing=sharing)


def supports(
    policy: Policy,
    chains: Sequence[Parts],
    *,
    top_k: int,
    temperature: float,
    tokens: int | None = None,
    sharing: Sharing | None = None,
) -> list[Parts]:
    """The chains with column "support" `[T, K]` int32: the tokens that top-k left at every learned token.

    Of the weights that sampled, before any update: later the same tokens stay the support, so that a ratio compares two
    distributions over one set. A sampled token that rounding pushed out of it takes the last place.
    """

    def read(model: Any, batch: Batch) -> Mapping[str, Tensor]:
        logits = target_logits(model, batch).float() / temperature
        kept = logits.topk(min(top_k, logits.shape[-1]), dim=-1).indices
        missing = ~(kept == batch.targets[:, None]).any(-1)
        kept[:, -1] = torch.where(missing, batch.targets, kept[:, -1])
        return {"support": kept.int()}

    found = said_of(policy.model, chains, read, tokens=tokens, sharing=sharing)
    return [replace(chain, columns={**chain.columns, **column}) for chain, column in zip(chains, found, strict=True)]


def chosen_supports(played: Sequence[Trajectory], chains: Sequence[Parts]) -> list[Parts]:
    """The chains with column "support" `[T, K]` int32: the tokens that could still become one of the listed actions.

    For episodes whose actions were drawn among the world's possible ones (`LanguageAgent(choose=True)`), from what
    their steps noted.

    Raises:
        BatchMismatch: a learned step that did not note what it chose from.
    """
    known = {one.id: one for one in played}
    allowed = [_allowed(known[chain.trajectory], chain) for chain in chains]
    most = max((len(ids) for each in allowed for ids in each.values()), default=1)
    made = []
    for chain, each in zip(chains, allowed, strict=True):
        support = np.full((len(chain), most), -1, np.int32)
        for place, ids in each.items():
            support[place, : len(ids)] = ids
        made.append(replace(chain, columns={**chain.columns, "support": support}))
    return made


def _allowed(trajectory: Trajectory, chain: Parts) -> dict[int, list[int]]:
    """For every learned place of a chain, the tokens that were possible there."""
    found: dict[int, list[int]] = {}
    tries: dict[int, ChoiceTrie] = {}
    written: tuple[int, ...] = ()
    before = -1
    for place in np.flatnonzero((chain.weight != 0) & chain.sampled).tolist():
        number = int(chain.step[place])
        if number not in tries:
            choices = trajectory.steps[number].info.get("choices")
            if not choices:
                raise BatchMismatch(
                    f"step {number} of {trajectory.id!r} does not say what it chose from",
                    hint="play it with choose=True",
                )
            tries[number] = ChoiceTrie(choices)
        written = written if number == before else ()
        found[place], before = tries[number].allowed(written), number
        written = (*written, int(chain.ids[place]))
    return found


def said_of(
    model: Any, chains: Sequence[Parts], read: Reader, *, tokens: int | None = None, sharing: Sharing | None = None
) -> list[dict[str, NDArray[Any]]]:
    """What `read` says of the targets of each chain, spread over its tokens `[T, ...]`.

    Args:
        read: takes the model and a batch on its device; returns tensors `[N, ...]`, one entry a target.
    """
    rows = int(model.get_input_embeddings().weight.shape[0])
    budget, rng = tokens or max(1, _LOGITS // rows), np.random.default_rng(0)
    found: list[dict[str, NDArray[Any]]] = [{} for _ in chains]
    learned = [index for index, chain in enumerate(chains) if chain.feed]
    with torch.inference_mode(), calm(model):
        for batch in batches(chains, learned, most=budget, rng=rng, sharing=sharing):
            with fitting(tuple(batch.ids.shape), _LESS):
                said = {name: each.cpu().numpy() for name, each in read(model, batch.to(model.device)).items()}
            _spread(found, chains, batch.samples, said)
    return found


def _spread(
    found: Sequence[dict[str, NDArray[Any]]],
    chains: Sequence[Parts],
    samples: Sequence[int],
    said: Mapping[str, NDArray[Any]],
) -> None:
    at = 0
    for index in samples:
        places = 1 + np.flatnonzero(chains[index].weight[1:])
        for name, values in said.items():
            column = np.zeros((len(chains[index]), *values.shape[1:]), values.dtype)
            column[places] = values[at : at + len(places)]
            found[index][name] = column
        at += len(places)


@contextmanager
def _valued(policy: Policy) -> Iterator[None]:
    """The policy's value head on its model, where the forward looks for it."""
    before = getattr(policy.model, "value_head", None)
    if before is policy.value_head:
        yield
        return
    policy.model.value_head = policy.value_head
    try:
        yield
    finally:
        if before is None:
            del policy.model.value_head
        else:
            policy.model.value_head = before
