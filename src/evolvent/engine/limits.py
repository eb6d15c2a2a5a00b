"""What one continuation may be: one of listed token sequences, or what a constraint lets through.

The mask of a limit is applied where temperature and top-k are (`sampling.distribution`), so that the log-probabilities
of what is sampled are those of the limited distribution. Samples of one ask have a state each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from evolvent.engine.asks import Ask, Constraint, SampleAsk
from evolvent.engine.sampling import ChoiceTrie

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Limit", "limit_of"]


class Limit:
    """The limit of one continuation, at what was written so far.

    Attributes:
        fault: why nothing may follow, where that is a failure; empty: it is none.
    """

    def __init__(self, trie: ChoiceTrie | None, constraint: Constraint | None) -> None:
        self._trie, self._constraint = trie, constraint
        self._written: tuple[int, ...] = ()
        self.fault = ""

    def copy(self) -> Limit:
        """The same limit for another continuation."""
        other = Limit(self._trie, None if self._constraint is None else self._constraint.copy())
        other._written = self._written
        return other

    def fill(self, allowed: Tensor) -> None:
        """Write into `allowed [V]` bool which tokens may follow."""
        import torch

        allowed.fill_(False)
        if self._trie is not None:
            allowed[self._trie.allowed(self._written)] = True
        if self._constraint is not None:
            mask = torch.tensor(self._constraint.allowed()[: len(allowed)])  # a model may have rows for no token
            allowed[: len(mask)] = mask.to(allowed.device)

    def take(self, token: int) -> str:
        """A token was written; why that is the end ("choice", "stop", "fault"), or empty: it goes on."""
        if self._trie is not None:
            self._written = (*self._written, token)
            return "" if self._trie.allowed(self._written) else "choice"
        if self._constraint is None:
            return ""
        self._constraint.advance(token)
        if self._constraint.allowed().any():
            return ""
        self.fault = self._constraint.fault
        return "fault" if self.fault else "stop"


def limit_of(ask: Ask) -> Limit | None:
    """The limit of an ask's continuations; None: there is none."""
    if not isinstance(ask, SampleAsk) or (ask.choices is None and ask.constraint is None):
        return None
    return Limit(None if ask.choices is None else ChoiceTrie(ask.choices), ask.constraint)
