"""The data sets: four that ship with scikit-learn, and sixteen that are generated with fixed seeds.

Whole data sets are held out: those of dev and test are never trained on. The generated sets include some that need a
nonlinear boundary (moons, circles), few columns of many, other scales, or a model that is robust to outliers, so that
no single pipeline is best everywhere. Of the digits only the first 500 rows are used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evolvent.errors import ConfigError, MissingExtra, unknown_name_problem

__all__ = ["SETS", "DataSet", "describe_data", "load_set"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
_ROWS = 300  # of most generated sets


@dataclass(frozen=True, slots=True)
class DataSet:
    """A data set: numbers and classes.

    Args:
        name: of `SETS`.
        rows: `[N, C]`.
        labels: `[N]`, 0 to classes - 1.
    """

    name: str
    rows: Floats
    labels: Ints

    @property
    def classes(self) -> int:
        return int(self.labels.max()) + 1


_Draw = Callable[[Any, np.random.Generator, int], tuple[Floats, Ints]]


def _load_bundled(name: str, max_rows: int | None = None) -> _Draw:
    """Returns a loader of a set that ships with scikit-learn, or of its first rows."""

    def draw(datasets: Any, rng: np.random.Generator, seed: int) -> tuple[Floats, Ints]:
        rows, labels = getattr(datasets, f"load_{name}")(return_X_y=True)
        return rows[:max_rows], labels[:max_rows]

    return draw


def _generate(function: str, *, noise: int = 0, spread: float = 0.0, tails: float = 0.0, **settings: Any) -> _Draw:
    """Returns a loader that runs a generator of scikit-learn and adds noise columns, uneven scales and heavy tails."""

    def draw(datasets: Any, rng: np.random.Generator, seed: int) -> tuple[Floats, Ints]:
        arguments = {"n_samples": _ROWS, **settings}
        rows, labels = getattr(datasets, f"make_{function}")(random_state=seed, **arguments)
        if labels.dtype.kind == "f" and len(np.unique(labels)) > 2:  # a regression: above or below its middle
            labels = labels > np.median(labels)
        rows = np.concatenate([rows, rng.normal(size=(len(rows), noise))], axis=1)
        if tails:
            rows = rows + tails * rng.standard_t(1.5, size=rows.shape) * (rng.random(rows.shape) < 0.05)
        return rows * 10 ** rng.uniform(-spread, spread, rows.shape[1]), labels

    return draw


_KINDS: Mapping[str, tuple[str, _Draw]] = MappingProxyType(
    {
        "breast_cancer": ("train", _load_bundled("breast_cancer")),
        "iris": ("dev", _load_bundled("iris")),
        "wine": ("test", _load_bundled("wine")),
        "digits": ("test", _load_bundled("digits", max_rows=500)),
        "plain": ("train", _generate("classification", n_features=12, n_informative=5, flip_y=0.05)),
        "noisy": ("train", _generate("classification", n_features=30, n_informative=3, flip_y=0.1)),
        "uneven": ("train", _generate("classification", n_features=8, n_informative=4, spread=3.0)),
        "tailed": ("train", _generate("classification", n_features=10, n_informative=4, tails=60.0)),
        "clustered": ("train", _generate("classification", n_features=8, n_informative=4, n_clusters_per_class=4)),
        "rare": ("train", _generate("classification", n_features=12, n_informative=4, weights=[0.9], n_samples=500)),
        "five": ("train", _generate("classification", n_features=16, n_informative=8, n_classes=5)),
        "moons": ("train", _generate("moons", noise=4)),
        "rings": ("train", _generate("circles", noise=2, factor=0.5)),
        "shells": ("train", _generate("gaussian_quantiles", n_features=6, n_classes=3)),
        "curve": ("train", _generate("friedman1", n_features=12)),
        "sharp": ("dev", _generate("classification", n_features=20, n_informative=4, class_sep=0.5, spread=2.0)),
        "squares": ("dev", _generate("hastie_10_2", n_samples=400)),
        "stretched": ("test", _generate("moons", noise=3, spread=3.0)),
        "crowded": ("test", _generate("classification", n_features=40, n_informative=4, n_classes=3, tails=40.0)),
        "circuit": ("test", _generate("friedman2", noise=4)),
    }
)
SETS: Mapping[str, str] = MappingProxyType({name: split for name, (split, _) in _KINDS.items()})
"""Data set -> its split."""


def load_set(name: str) -> DataSet:
    """Loads the data set of a name, always the same under one version of scikit-learn; no download.

    Raises:
        ConfigError: no such set. MissingExtra: scikit-learn is not installed.
    """
    if name not in _KINDS:
        raise ConfigError([unknown_name_problem("data set", name, _KINDS)])
    try:
        from sklearn import datasets
    except ImportError as error:
        raise MissingExtra("datasci", "the data sets of the world 'datasci'") from error
    seed = 1 + list(_KINDS).index(name)  # so new sets go to the end of the table
    rows, labels = _KINDS[name][1](datasets, np.random.default_rng(seed), seed)
    _, numbered = np.unique(labels, return_inverse=True)
    return DataSet(name, np.asarray(rows, np.float64), np.asarray(numbered, np.int64))


def describe_data(data: DataSet) -> dict[str, str]:
    """Describes a data set by six facts in a few words each, the same words for many sets."""
    rows, columns = data.rows.shape
    spreads = data.rows.std(axis=0)
    spreads = spreads[spreads > 0]
    centred = np.abs(data.rows - np.median(data.rows, axis=0))
    median_distance = np.median(centred, axis=0)
    outlier_share = float((centred[:, median_distance > 0] > 10 * median_distance[median_distance > 0]).mean())
    smallest_class_ratio = np.bincount(data.labels).min() * data.classes / rows
    return {
        "rows": "few" if rows < 200 else "some" if rows < 1000 else "many",
        "columns": "under 5" if columns < 5 else "under 10" if columns < 10 else "10 or more",
        "classes": {2: "two", 3: "three"}.get(data.classes, "many"),
        "scales": "uneven" if spreads.max() > 10 * spreads.min() else "even",
        "tails": "heavy" if outlier_share > 0.005 else "light",
        "balance": "rare" if smallest_class_ratio < 0.5 else "even",
    }
