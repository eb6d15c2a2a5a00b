"""Numbers as bins of equal weight: the tokens of Trajectory Transformer (arXiv 2106.02039, section 2)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from evolvent.errors import SampleInvalid

__all__ = ["QuantileBins"]


@dataclass(frozen=True, slots=True, eq=False)
class QuantileBins:
    """Bins of each of T columns that hold equally many of the data.

    A column with few values has a bin for each. A number beyond the data falls into the bin at that end.

    Attributes:
        borders: for each column the borders between its bins, ascending, one fewer than bins.
        middles: for each column the value that each bin represents: the mean of the data in it.
    Raises:
        SampleInvalid: not one bin more than borders, or numbers that are not finite and ascending.
    """

    borders: tuple[NDArray[np.float64], ...]
    middles: tuple[NDArray[np.float64], ...]

    def __post_init__(self) -> None:
        for borders, middles in zip(self.borders, self.middles, strict=True):
            if (
                borders.ndim != 1
                or middles.shape != (len(borders) + 1,)
                or not np.isfinite(middles).all()
                or not np.isfinite(borders).all()
                or not (np.diff(borders) > 0).all()
            ):
                raise SampleInvalid(
                    "invalid bins",
                    value=(borders.shape, middles.shape),
                    expected="borders [D, bins - 1] and middles [D, bins]",
                )

    @classmethod
    def fit(cls, data: ArrayLike, *, bins: int) -> QuantileBins:
        """Fits bins to data `[N, T]`, at most `bins` a column; raises SampleInvalid for no data or non-finite
        numbers.
        """
        x = np.asarray(data, np.float64)
        if not len(x) or not np.isfinite(x).all():
            raise SampleInvalid("cannot compute bins", value=x.shape, expected="finite numbers")
        columns = [_fit_column(column, bins) for column in x.T]
        return cls(tuple(borders for borders, _ in columns), tuple(middles for _, middles in columns))

    @property
    def counts(self) -> tuple[int, ...]:
        """Returns the number of bins of each column."""
        return tuple(len(middles) for middles in self.middles)

    def encode(self, values: ArrayLike, *, first: int = 0) -> NDArray[np.int64]:
        """Converts numbers `[..., C]` to bins of the columns from `first` on; raises SampleInvalid for non-finite
        numbers.
        """
        x = np.asarray(values, np.float64)
        if not np.isfinite(x).all():
            raise SampleInvalid("number cannot be binned", value=float(x[~np.isfinite(x)].ravel()[0]))
        columns = [np.searchsorted(self.borders[first + i], x[..., i], side="right") for i in range(x.shape[-1])]
        return np.stack(columns, -1).astype(np.int64)

    def decode(self, bins: ArrayLike, *, first: int = 0) -> NDArray[np.float64]:
        """Returns the numbers that bins `[..., C]` represent."""
        index = np.asarray(bins, np.int64)
        return np.stack([self.middles[first + i][index[..., i]] for i in range(index.shape[-1])], -1)


def _fit_column(column: NDArray[np.float64], bins: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    values = np.unique(column)
    if len(values) <= bins:
        return (values[1:] + values[:-1]) / 2.0, values
    # borders are numbers of the data, so that none lies between the same two as another and no bin is empty
    borders = np.unique(np.quantile(column, np.linspace(0.0, 1.0, bins + 1)[1:-1], method="higher"))
    borders = borders[borders > values[0]]  # below the first border there is something
    index = np.searchsorted(borders, column, side="right")
    return borders, np.bincount(index, weights=column) / np.bincount(index)
