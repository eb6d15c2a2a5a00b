"""Measured or computed concentrations on a regular grid, usable as the field of a plume episode.

Two files are read, both of numbers only: CSV with the header `x,y,concentration`, one row a node in any order, and npz
with the arrays `x` [nx], `y` [ny] and `concentration` [ny, nx] (pickled arrays are refused). Metres and grams per cubic
metre. Between nodes values are interpolated bilinearly, outside the grid they are 0.
"""

from __future__ import annotations

import csv
import math
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from evolvent.errors import ConfigError, SampleInvalid, boundary

__all__ = ["ConcentrationGrid", "read_grid"]

LARGEST = 64_000_000  # bytes of a file, and of each of its arrays
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class ConcentrationGrid:
    """Concentrations at the nodes of a grid; called with places it is a `field` for `PlumeBatch`.

    Args:
        x: [nx] and y: [ny], metres, rising, at least two of each.
        values: [ny, nx] grams per cubic metre, finite and not negative.
    Raises:
        ConfigError: axes that do not rise, values of another shape, negative or not finite.
    """

    x: Floats
    y: Floats
    values: Floats

    def __post_init__(self) -> None:
        for name, axis in (("x", self.x), ("y", self.y)):
            if axis.ndim != 1 or len(axis) < 2 or not np.isfinite(axis).all() or not (np.diff(axis) > 0).all():
                raise ConfigError(
                    f"the axis {name} of a grid does not rise",
                    value=axis.reshape(-1)[:5].tolist(),
                    expected="two finite numbers or more, in order",
                )
        if self.values.shape != (len(self.y), len(self.x)):
            raise ConfigError("wrong shape of the grid", value=self.values.shape, expected=(len(self.y), len(self.x)))
        bad = np.argwhere(~(np.isfinite(self.values) & (self.values >= 0)))
        if len(bad):
            row, column = bad[0]
            raise ConfigError(
                "invalid concentration",
                value=float(self.values[row, column]),
                expected="finite and 0 or more",
                hint=f"check the node at x = {self.x[column]:g}, y = {self.y[row]:g}",
            )

    def __call__(self, position: Floats, source: Floats | None = None) -> Floats:
        """Estimates [M] concentrations at places [M, 3] by bilinear interpolation; heights and sources do not
        matter.
        """
        px, py = np.asarray(position)[..., 0], np.asarray(position)[..., 1]
        inside = (px >= self.x[0]) & (px <= self.x[-1]) & (py >= self.y[0]) & (py <= self.y[-1])
        i = np.clip(np.searchsorted(self.x, px, side="right") - 1, 0, len(self.x) - 2)
        j = np.clip(np.searchsorted(self.y, py, side="right") - 1, 0, len(self.y) - 2)
        u = (px - self.x[i]) / (self.x[i + 1] - self.x[i])
        v = (py - self.y[j]) / (self.y[j + 1] - self.y[j])
        low = (1 - u) * self.values[j, i] + u * self.values[j, i + 1]
        high = (1 - u) * self.values[j + 1, i] + u * self.values[j + 1, i + 1]
        concentrations: Floats = np.where(inside, (1 - v) * low + v * high, 0.0)
        return concentrations


def read_grid(path: Path) -> ConcentrationGrid:
    """Reads the grid of a CSV or npz file.

    Raises:
        ConfigError: no such file, one of another kind or larger than 64 MB, or numbers that make no grid.
        SampleInvalid: a file that cannot be read as what it is; with the line for a CSV.
    """
    if not path.is_file() or path.suffix not in (".csv", ".npz"):
        raise ConfigError("unsupported file of a concentration grid", value=str(path), expected="a .csv or .npz file")
    if path.stat().st_size > LARGEST:
        raise ConfigError("the grid is too large", value=path.stat().st_size, expected=f"at most {LARGEST} bytes")
    with boundary(SampleInvalid, f"{path}: no grid can be read from it"):
        return _read_csv(path) if path.suffix == ".csv" else _read_npz(path)


def _read_csv(path: Path) -> ConcentrationGrid:
    rows: dict[tuple[float, float], float] = {}
    with path.open(newline="", encoding="utf-8") as file:
        lines = csv.reader(file)
        header = [name.strip().lower() for name in next(lines, [])]
        if header != ["x", "y", "concentration"]:
            raise SampleInvalid(f"{path}, line 1: invalid grid header", value=header, expected="x,y,concentration")
        for row in lines:
            if not row:
                continue
            try:
                x, y, value = map(float, row)
            except ValueError as error:
                raise SampleInvalid(f"{path}, line {lines.line_num}: not three numbers", value=row) from error
            if (x, y) in rows or not (math.isfinite(x) and math.isfinite(y)):
                raise SampleInvalid(f"{path}, line {lines.line_num}: duplicate or non-finite node", value=row)
            rows[x, y] = value
    xs, ys = sorted({x for x, _ in rows}), sorted({y for _, y in rows})
    missing = next(((x, y) for y in ys for x in xs if (x, y) not in rows), None)
    if missing is not None:
        raise SampleInvalid(f"{path}: a node is missing", value=missing, expected=f"all {len(xs)} x {len(ys)} nodes")
    values = np.array([[rows[x, y] for x in xs] for y in ys], dtype=np.float64).reshape(len(ys), len(xs))
    return ConcentrationGrid(np.array(xs), np.array(ys), values)


def _read_npz(path: Path) -> ConcentrationGrid:
    with zipfile.ZipFile(path) as archive:  # a small file may hold large arrays
        largest = max((entry.file_size for entry in archive.infolist()), default=0)
    if largest > LARGEST:
        raise ConfigError("the grid is too large", value=largest, expected=f"at most {LARGEST} bytes")
    with np.load(path, allow_pickle=False) as arrays:
        columns = [np.asarray(arrays[name], dtype=np.float64) for name in ("x", "y", "concentration")]
    return ConcentrationGrid(*columns)
