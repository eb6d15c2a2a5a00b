"""Chains of parts and their tiers: how a world of questions decides which chains are demonstrated and which held
out.

The kind of a task is a chain, such as add-times-halve. Two thirds of the possible adjacent pairs are
demonstrated. `seen` and `combo` chains contain only demonstrated pairs, and no `combo` chain is ever trained as
a whole. `evo` chains contain at least one other pair. `longer` chains are one part longer than any trained
chain and contain only demonstrated pairs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import count, pairwise
from random import Random

from evolvent.trajectory import sample_seed
from evolvent.worlds.base import TIERS

__all__ = ["Chain", "Chains"]

Chain = tuple[str, ...]
_MAX_DRAWS = 500  # draws of one chain before its length is given up


@dataclass(frozen=True, slots=True)
class Chains:
    """All chains of a world.

    Args:
        name: name of the world; draws and the split between `seen` and `combo` depend on it.
        parts: the parts of chains.
        max_length: number of parts of the longest trained chain, the end included.
        min_length: number of parts of the shortest chain.
        ends: the possible last parts, if they are not ordinary parts.
    """

    name: str
    parts: tuple[str, ...]
    max_length: int
    min_length: int = 2
    ends: tuple[str, ...] = ()

    @property
    def tiers(self) -> tuple[str, ...]:
        """Returns the tiers of this world; `combo` needs chains of three parts."""
        return tuple(tier for tier in TIERS if tier != "combo" or self.max_length > 2)

    def is_valid(self, chain: Sequence[object]) -> bool:
        """Returns whether the parts are a chain of this world with a length that some tier has."""
        if not self.min_length <= len(chain) <= self.max_length + 1:
            return False
        return all(part in self.parts for part in chain[:-1]) and chain[-1] in (self.ends or self.parts)

    def is_demonstrated(self, first: str, second: str) -> bool:
        """Returns whether demonstrations contain the pair of parts: every third diagonal is held back."""
        successors = self.ends if second in self.ends else self.parts  # no part is an end
        return (self.parts.index(first) + successors.index(second)) % 3 != 0

    def tier_of(self, chain: Chain) -> str | None:
        """Returns the tier of a chain, or None if it belongs to no tier."""
        all_demonstrated = all(self.is_demonstrated(first, second) for first, second in pairwise(chain))
        if len(chain) > self.max_length:
            return "longer" if all_demonstrated else None
        if not all_demonstrated:
            return "evo"
        is_held_back = len(chain) > 2 and sample_seed(self.name, "seen", *chain) % 2 == 0
        return "combo" if is_held_back else "seen"

    def draw(self, tier: str) -> Iterator[Chain]:
        """Yields chains of a tier without end, cycling through the lengths, always the same chains."""
        shortest = max(self.min_length, {"evo": 2, "combo": 3}.get(tier, 1))
        lengths = (self.max_length + 1,) if tier == "longer" else range(shortest, self.max_length + 1)
        for round_index in count():
            rng = Random(sample_seed(self.name, "chains", tier, round_index))
            for length in lengths:
                candidates = (self._draw_chain(length, rng, demonstrated_only=tier != "evo") for _ in range(_MAX_DRAWS))
                match = next((chain for chain in candidates if self.tier_of(chain) == tier), None)
                if match is not None:
                    yield match

    def _draw_chain(self, length: int, rng: Random, *, demonstrated_only: bool) -> Chain:
        """Draws the parts of a chain one after another; with `demonstrated_only` from demonstrated pairs alone."""
        chain: list[str] = []
        while len(chain) < length:
            is_end = bool(self.ends) and len(chain) == length - 1
            chain.append(rng.choice(_list_successors(self, chain[-1] if demonstrated_only and chain else None, is_end)))
        return tuple(chain)


@lru_cache(maxsize=1 << 12)
def _list_successors(chains: Chains, first: str | None, is_end: bool) -> tuple[str, ...]:
    """Lists the parts, or the ends, that can come next; after `first` only those of demonstrated pairs."""
    candidates = chains.ends if is_end else chains.parts
    return tuple(part for part in candidates if first is None or chains.is_demonstrated(first, part))
