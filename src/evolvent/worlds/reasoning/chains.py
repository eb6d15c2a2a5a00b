"""Chains of parts and the tiers they belong to: how a world of questions decides what is shown and what is held out.

The kind of a task is a chain, such as add-times-halve. Of the pairs that can stand side by side two thirds are
demonstrated. `seen` and `combo` chains hold only such pairs, and no `combo` chain is ever trained as a whole; `evo`
chains hold at least one other pair; `longer` chains are one part longer than any trained, of demonstrated pairs.
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
_PATIENCE = 500  # draws of one chain before its length is given up


@dataclass(frozen=True, slots=True)
class Chains:
    """All chains of a world.

    Args:
        name: the world's; draws and halves depend on it.
        parts: what chains are made of.
        most: parts of the longest chain that is trained, the end included.
        fewest: parts of the shortest.
        ends: what a chain ends with, where that is something else than the parts.
    """

    name: str
    parts: tuple[str, ...]
    most: int
    fewest: int = 2
    ends: tuple[str, ...] = ()

    @property
    def tiers(self) -> tuple[str, ...]:
        """The tiers there are: `combo` needs chains of three."""
        return tuple(tier for tier in TIERS if tier != "combo" or self.most > 2)

    def valid(self, chain: Sequence[object]) -> bool:
        """Whether these parts are a chain of this world, of a length that some tier has."""
        if not self.fewest <= len(chain) <= self.most + 1:
            return False
        return all(part in self.parts for part in chain[:-1]) and chain[-1] in (self.ends or self.parts)

    def shown(self, first: str, then: str) -> bool:
        """Whether demonstrations show these two parts side by side: every third diagonal is kept back."""
        after = self.ends if then in self.ends else self.parts  # no part is an end
        return (self.parts.index(first) + after.index(then)) % 3 != 0

    def tier(self, chain: Chain) -> str | None:
        """The tier of a chain; None for one that is in no tier."""
        plain = all(self.shown(first, then) for first, then in pairwise(chain))
        if len(chain) > self.most:
            return "longer" if plain else None
        if not plain:
            return "evo"
        kept_back = len(chain) > 2 and sample_seed(self.name, "seen", *chain) % 2 == 0
        return "combo" if kept_back else "seen"

    def draw(self, tier: str) -> Iterator[Chain]:
        """Chains of a tier without end, of every length in turn, always the same ones."""
        least = max(self.fewest, {"evo": 2, "combo": 3}.get(tier, 1))
        lengths = (self.most + 1,) if tier == "longer" else range(least, self.most + 1)
        for turn in count():
            rng = Random(sample_seed(self.name, "chains", tier, turn))
            for length in lengths:
                drawn = (self._drawn(length, rng, plain=tier != "evo") for _ in range(_PATIENCE))
                found = next((chain for chain in drawn if self.tier(chain) == tier), None)
                if found is not None:
                    yield found

    def _drawn(self, length: int, rng: Random, *, plain: bool) -> Chain:
        """Parts drawn one after another; `plain`: of demonstrated pairs only."""
        chain: list[str] = []
        while len(chain) < length:
            end = bool(self.ends) and len(chain) == length - 1
            chain.append(rng.choice(_followers(self, chain[-1] if plain and chain else None, end)))
        return tuple(chain)


@lru_cache(maxsize=1 << 12)
def _followers(chains: Chains, first: str | None, end: bool) -> tuple[str, ...]:
    """What can come next, an end or a part; after `first`, of demonstrated pairs only."""
    after = chains.ends if end else chains.parts
    return tuple(part for part in after if first is None or chains.shown(first, part))
