"""The peers of `benchmarks.rollout`: transformers' own ways to generate, behind the engine's interface.

Each takes the asks of one driver, so that worlds, agents and bookkeeping are the same for all; only how tokens are made
differs. None of them computes log-probabilities, which spares them work that ours does.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from evolvent.engine.asks import Ask, Continuation, Finished, Node, SampleAsk, Ticket, Usage


@dataclass(frozen=True, slots=True, eq=False)
class Text:
    """A node: the tokens themselves."""

    ids: list[int]

    @property
    def length(self) -> int:
        return len(self.ids)

    def tokens(self) -> list[int]:
        return list(self.ids)


class Peer:
    """Queues asks; every poll answers up to `width` of them by generating from their whole texts."""

    def __init__(self, policy: Any, *, width: int) -> None:
        self.version, self.context, self.usage = policy.version, policy.context, Usage()
        self.width = width
        self.model = copy.deepcopy(policy.model).eval()
        self.model.generation_config.pad_token_id = 0
        self._tickets = itertools.count()
        self._queue: list[tuple[Ticket, SampleAsk, list[int]]] = []

    def sync(self, policy: Any) -> None:
        raise NotImplementedError(f"version {policy.version}: a peer is measured with one policy")

    def submit(self, ask: Ask) -> Ticket:
        if not isinstance(ask, SampleAsk):
            raise TypeError(f"a peer only samples, not {type(ask).__name__}")
        text = [*(ask.node.tokens() if ask.node else ()), *ask.tokens]
        ticket = next(self._tickets)
        self._queue.append((ticket, ask, text))
        return ticket

    def poll(self) -> Sequence[Finished]:
        batch, self._queue = self._queue[: self.width], self._queue[self.width :]
        if not batch:
            return ()
        room = [min(ask.max_tokens, self.context - len(text)) for _, ask, text in batch]
        stop = sorted(batch[0][1].stop_ids)
        written = self.generate([text for _, _, text in batch], max(room), stop)
        done = []
        for (ticket, _, text), ids, most in zip(batch, written, room, strict=True):
            ends = [at for at, token in enumerate(ids) if token in stop]
            ids = ids[: min(most, ends[0] + 1 if ends else most)]
            self.usage.generated += len(ids)
            new = np.array(ids, np.int32)
            why = "stop" if ends and ends[0] < most else "length"
            done.append(Finished(ticket, (Continuation(Text(text + ids), new, np.zeros(len(ids), np.float32), why),)))
        return done

    def generate(self, texts: Sequence[list[int]], most: int, stop: list[int]) -> list[list[int]]:
        """New tokens of each text."""
        raise NotImplementedError(f"{len(texts)} texts")

    def pending(self) -> int:
        return len(self._queue)

    @contextmanager
    def hold(self, nodes: Sequence[Node]) -> Iterator[None]:
        yield


class Padded(Peer):
    """`model.generate` on a batch, padded on the left; width 1 is one text at a time."""

    def generate(self, texts: Sequence[list[int]], most: int, stop: list[int]) -> list[list[int]]:
        longest = max(map(len, texts))
        ids = torch.zeros((len(texts), longest), dtype=torch.long)
        mask = torch.zeros_like(ids)
        for row, text in enumerate(texts):
            ids[row, longest - len(text) :] = torch.tensor(text)
            mask[row, longest - len(text) :] = 1
        out = self.model.generate(
            input_ids=ids, attention_mask=mask, max_new_tokens=most, do_sample=True, top_k=0, eos_token_id=stop
        )
        self.usage.computed += int(mask.sum()) + len(texts) * (out.shape[1] - longest - 1)
        return [row[longest:].tolist() for row in out]


class Continuous(Peer):
    """`model.generate_batch`: transformers' continuous batching, with buffers that a CPU can hold."""

    def generate(self, texts: Sequence[list[int]], most: int, stop: list[int]) -> list[list[int]]:
        from transformers import ContinuousBatchingConfig, GenerationConfig

        buffers = ContinuousBatchingConfig(
            page_size=32, num_blocks=256, max_batch_tokens=512, use_cuda_graph=False, use_async_batching=False
        )
        config = GenerationConfig(max_new_tokens=most, do_sample=True, top_k=0, eos_token_id=stop, pad_token_id=0)
        out = self.model.generate_batch(
            list(texts),
            generation_config=config,
            continuous_batching_config=buffers,
            persistent_manager=True,
            warmup=False,
        )
        found = {tuple(each.prompt_ids): list(each.generated_tokens) for each in out.values()}
        return [found[tuple(text)] for text in texts]
