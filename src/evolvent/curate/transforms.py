"""Stages over rows of function calls: masking online, and what it takes to keep it invertible."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from evolvent.curate.irrelevance import read_row, row_of
from evolvent.curate.masking import MaskSpec, mask
from evolvent.curate.shards import Row
from evolvent.trajectory import canonical_json, sample_rng

__all__ = ["Masking"]


@dataclass(frozen=True, slots=True)
class Masking:
    """Masks every sample as its id, the seed and the epoch draw it; `names` of a row says what became what.

    The row of a sample that was not drawn stays as it is, with empty `names`.
    """

    spec: MaskSpec
    seed: int = 0
    epoch: int = 0
    name: str = "mask"
    version: int = 1

    def parameters(self) -> Mapping[str, Any]:
        """The spec, the seed and the epoch."""
        spec = {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self.spec).items()}
        return {"spec": spec, "seed": self.seed, "epoch": self.epoch}

    def __call__(self, row: Row) -> Sequence[Row]:
        """The masked row. Raises SampleInvalid for what is no sample, or cannot be masked."""
        sample = read_row(row)
        made, names = mask(sample, sample_rng(self.seed, self.epoch, sample.id), self.spec)
        return [{**row_of(made), "names": canonical_json(dict(names.tools))}]
