"""The peers of `benchmarks.search_cost`: transformers' own models and caches, replaying the expansions of a search.

A peer is handed an expansion as it was: the path to a node and the tokens of its children. It computes what its way of
searching has to compute for it, draws from the logits as a sampler does, and takes the given tokens instead of what it
drew, so that all sides compute the same tree. Of a child it tells the mean log-probability and the value, which must be
those of the search. It decides nothing, keeps no statistics and makes no text: that is spared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer

from evolvent.models.heads import ValueHead
from evolvent.search.records import SearchResult

__all__ = ["Opened", "PathCopied", "Peer", "Reprefill", "Told", "differences", "refed", "rounds_of"]


@dataclass(frozen=True, slots=True)
class Opened:
    """One expansion: the node, the tokens of prompt and text before it, and its children with `[W, T]` tokens.

    `again` says of each child whether it is expanded later. `listed`: the children are the likeliest tokens; otherwise
    they were sampled.
    """

    node: int
    path: tuple[int, ...]
    children: tuple[int, ...]
    tokens: tuple[tuple[int, ...], ...]
    again: tuple[bool, ...]
    listed: bool


def rounds_of(result: SearchResult, *, together: bool, listed: bool) -> list[list[Opened]]:
    """The expansions of a search in their order.

    Args:
        together: those of one depth are one round, as in beam search; otherwise each is a round of its own.
        listed: as of `Opened`.
    """
    tree = result.tree
    nodes = sorted((node for node in range(len(tree)) if tree.is_expanded(node)), key=lambda node: tree.first[node])
    rounds: dict[int, list[Opened]] = {}
    for number, node in enumerate(nodes):
        state, children = tree.states[node], range(len(tree))[tree.children(node)]
        opened = Opened(
            node,
            (*state.prompt, *state.written),
            tuple(children),
            tuple(tree.states[child].written[len(state.written) :] for child in children),
            tuple(tree.is_expanded(child) for child in children),
            listed,
        )
        rounds.setdefault(int(tree.depth[node]) if together else number, []).append(opened)
    return list(rounds.values())


@dataclass(slots=True)
class Told:
    """What a peer found for the children: mean log-probability and value by node."""

    logprobs: dict[int, float] = field(default_factory=dict)
    values: dict[int, float] = field(default_factory=dict)

    def note(self, opened: Opened, logprobs: Tensor, values: Tensor) -> None:
        """Add the children of an expansion: `logprobs [W, T]`, `values [W]`."""
        means = logprobs.double().mean(1).tolist()
        self.logprobs.update(zip(opened.children, means, strict=True))
        self.values.update(zip(opened.children, values.tolist(), strict=True))


class Peer:
    """A policy, a model that judges, and a head on it.

    Attributes:
        fed: tokens that went through the two models, counted by hooks on their forwards. forwards: of both.
    """

    def __init__(self, policy: Any, judge: Any, head: ValueHead) -> None:
        self.policy, self.judge, self.head = policy, judge, head
        self.fed = self.forwards = 0

    def replay(self, rounds: Sequence[Sequence[Opened]]) -> Told:
        """Compute expansions in their order."""
        told = Told()
        hooks = [
            model.register_forward_pre_hook(self._count, with_kwargs=True)
            for model in (self.policy.model, self.judge.model)
        ]
        try:
            with torch.inference_mode():
                self.run(rounds, told)
        finally:
            for hook in hooks:
                hook.remove()
        return told

    def run(self, rounds: Sequence[Sequence[Opened]], told: Told) -> None:
        """The peer's way."""
        raise NotImplementedError(f"{len(rounds)} rounds")

    def _count(self, module: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        self.fed += named["input_ids"].numel()
        self.forwards += 1

    def write(self, ids: Tensor, cache: Cache) -> Tensor:
        """Feed tokens to the policy; the logits `[B, V]` after the last."""
        out = self.policy(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
        logits: Tensor = out.logits[:, -1]
        return logits

    def worth(self, ids: Tensor, cache: Cache | None = None) -> Tensor:
        """Feed tokens to the judge; the values `[B]` at the last."""
        out = self.judge.model(input_ids=ids, past_key_values=cache, use_cache=cache is not None)
        values: Tensor = self.head(out.last_hidden_state[:, -1])
        return values

    @staticmethod
    def choose(logits: Tensor, given: Tensor, *, listed: bool) -> Tensor:
        """Draw from `logits [B, V]`, or list the likeliest, and take `given [B]` (or `[W]` of one row) instead."""
        logprobs = logits.log_softmax(-1)
        if listed:
            logprobs.topk(len(given))
            return logprobs.expand(len(given), -1).gather(1, given.unsqueeze(1)).squeeze(1)
        torch.multinomial(logprobs.exp(), 1)
        return logprobs.gather(1, given.unsqueeze(1)).squeeze(1)


class Reprefill(Peer):
    """Nothing outlives an expansion, as in the published code.

    For each expansion a batch of W copies of the path is fed anew and continued with transformers' cache; then every
    child's whole text is fed to the judge, W at a time. (OpenR hands its judge one text after another, TS-LLM a batch:
    a batch is the faster of the two.) At token level one copy of the path gives the likeliest tokens.
    """

    def run(self, rounds: Sequence[Sequence[Opened]], told: Told) -> None:
        for opened in (one for group in rounds for one in group):
            tokens, path = torch.tensor(opened.tokens), torch.tensor([opened.path])
            width, length = tokens.shape
            cache = Cache(layer_class_to_replicate=DynamicLayer)
            logits = self.write(path if opened.listed else path.expand(width, -1), cache)
            found = [self.choose(logits, tokens[:, 0], listed=opened.listed)]
            for at in range(1, length):
                logits = self.write(tokens[:, at - 1 : at], cache)
                found.append(self.choose(logits, tokens[:, at], listed=False))
            values = self.worth(torch.cat([path.expand(width, -1), tokens], 1))
            told.note(opened, torch.stack(found, 1), values)


def refed(rounds: Sequence[Sequence[Opened]]) -> int:
    """Tokens that `Reprefill` feeds for all expansions."""
    tokens = 0
    for opened in (one for group in rounds for one in group):
        length, (width, span) = len(opened.path), np.shape(opened.tokens)
        written = length if opened.listed else width * (length + span - 1)
        tokens += written + width * (length + span)
    return tokens


@dataclass(frozen=True, slots=True)
class _Kept:
    """The row of a batch of caches that holds a path."""

    cache: Cache
    row: int


class PathCopied(Peer):
    """Every node that goes on keeps the cache of its path, copied for each child; only new tokens are fed.

    The nodes of a round are one batch: a beam is what transformers' own beam search does with `batch_select_indices`
    and `batch_repeat_interleave`. Copies are made as late and as seldom as they can be, and let go after their last
    use. Every token is fed once, as in a trie; what is left is the copying, at each fork and (transformers' caches grow
    by concatenation) at each token.
    """

    def run(self, rounds: Sequence[Sequence[Opened]], told: Told) -> None:
        self._written: dict[int, _Kept] = {}
        self._judged: dict[int, _Kept] = {}
        for group in rounds:
            tokens = torch.tensor([own for opened in group for own in opened.tokens])
            width = len(group[0].tokens)
            logprobs = self._write(group, tokens, width)
            values = self._judge(group, tokens, width)
            for at, opened in enumerate(group):
                own = slice(at * width, (at + 1) * width)
                told.note(opened, logprobs[own], values[own])

    def _write(self, group: Sequence[Opened], tokens: Tensor, width: int) -> Tensor:
        """The log-probabilities `[n W, T]` of the children; their last tokens are not fed."""
        root = group[0].node == 0
        cache = _copied([self._written.pop(opened.node) for opened in group]) if not root else _empty()
        fed = torch.tensor([opened.path if root else opened.path[-1:] for opened in group])
        logits = self.write(fed, cache)
        if group[0].listed:
            listed = tokens.view(len(group), width)
            found = [self.choose(logits[at : at + 1], own, listed=True) for at, own in enumerate(listed)]
            self._keep(group, self._written, cache, each=1)
            return torch.cat(found).unsqueeze(1)
        drawn = [self.choose(logits.repeat_interleave(width, 0), tokens[:, 0], listed=False)]
        cache.batch_repeat_interleave(width)
        for at in range(1, tokens.shape[1]):
            logits = self.write(tokens[:, at - 1 : at], cache)
            drawn.append(self.choose(logits, tokens[:, at], listed=False))
        self._keep(group, self._written, cache, each=width)
        return torch.stack(drawn, 1)

    def _judge(self, group: Sequence[Opened], tokens: Tensor, width: int) -> Tensor:
        """The values `[n W]` of the children."""
        if group[0].node == 0:
            cache = _empty()
            self.worth(torch.tensor([opened.path for opened in group]), cache)
        else:
            cache = _copied([self._judged.pop(opened.node) for opened in group])
        cache.batch_repeat_interleave(width)
        values = self.worth(tokens, cache)
        self._keep(group, self._judged, cache, each=width)
        return values

    def _keep(self, group: Sequence[Opened], kept: dict[int, _Kept], cache: Cache, *, each: int) -> None:
        """Keep the cache for the children that go on; `each`: rows of the cache for an expanded node, W or 1."""
        for at, opened in enumerate(group):
            for number, (child, again) in enumerate(zip(opened.children, opened.again, strict=True)):
                if again:
                    kept[child] = _Kept(cache, at * each + (number if each > 1 else 0))


def _empty() -> Cache:
    return Cache(layer_class_to_replicate=DynamicLayer)


def _copied(kept: Sequence[_Kept]) -> Cache:
    """One cache with a row for each path, copied once."""
    layers = []
    for index in range(len(kept[0].cache.layers)):
        layer, parts = DynamicLayer(), [(each.cache.layers[index], each.row) for each in kept]
        keys = torch.cat([part.keys[row : row + 1] for part, row in parts])
        layer.lazy_initialization(keys, keys)
        layer.keys, layer.values = keys, torch.cat([part.values[row : row + 1] for part, row in parts])
        layers.append(layer)
    return Cache(layers=layers)


def differences(result: SearchResult, told: Told) -> float:
    """The largest difference between what a search was told of its children and what a peer found."""
    tree = result.tree
    nodes = sorted(told.values)
    logprobs = np.array([told.logprobs[node] for node in nodes]) - tree.logprob[nodes]
    values = np.array([told.values[node] for node in nodes]) - tree.value[nodes]
    return float(max(np.abs(logprobs).max(), np.abs(values).max()))
