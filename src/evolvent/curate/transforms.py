"""Data stages over rows of function calls: masking that can be inverted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from evolvent.curate.irrelevance import row_to_sample, sample_to_row
from evolvent.curate.masking import MaskSpec, mask_sample
from evolvent.curate.shards import Row
from evolvent.trajectory import JsonObject, canonical_json, sample_rng

__all__ = ["Masking"]


@dataclass(frozen=True, slots=True)
class Masking:
    """Masks every sample by its id, the seed and the epoch; `names` of a row maps old to new tool names.

    The row of a sample that was not drawn stays as it is, with empty `names`.
    """

    spec: MaskSpec
    seed: int = 0
    epoch: int = 0
    name: str = "mask"
    version: int = 1

    def parameters(self) -> JsonObject:
        """Returns the spec, the seed and the epoch."""
        spec = {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self.spec).items()}
        return {"spec": spec, "seed": self.seed, "epoch": self.epoch}

    def __call__(self, row: Row) -> Sequence[Row]:
        """Masks a row. Raises SampleInvalid for a row that is not a sample, or cannot be masked."""
        sample = row_to_sample(row)
        masked_sample, names = mask_sample(sample, sample_rng(self.seed, self.epoch, sample.id), self.spec)
        return [{**sample_to_row(masked_sample), "names": canonical_json(dict(names.tools))}]
