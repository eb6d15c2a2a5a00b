"""The best snapshots of a training by any metric that is measured while it trains.

    RUN/best/best.json         the kept snapshots, best first: step, metric, value, folder
    RUN/best/step-000123/      a model folder that `load_policy` and transformers read

A training keeps its newest snapshots only. Those that rank among the best are copied here while they are leased, and
the worst of more than `keep` is removed.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from pydantic import Field

from evolvent.bench.measures import Measure
from evolvent.config import Config
from evolvent.errors import ConfigError, CorruptRecord, unknown_name_problem
from evolvent.files import TEMPORARY_SUFFIX, disk_errors, safe_join, write_atomic
from evolvent.models.snapshots import Snapshot

__all__ = ["BestConfig", "BestSnapshots", "RankedSnapshot"]

_RANKING = "best.json"
_LOWER_IS_BETTER = ("perplexity", "loss")


class BestConfig(Config):
    """Settings of the snapshots that stay for good."""

    metric: str = Field(default="", description="keep the best snapshots by it: perplexity, generation/bleu, ...")
    keep: int = Field(default=3, ge=1, description="how many of the best snapshots stay")
    order: Literal["auto", "min", "max"] = Field(
        default="auto", description="which value is best; auto: the least of perplexity and loss, else the most"
    )


@dataclass(frozen=True, slots=True)
class RankedSnapshot:
    """A kept snapshot.

    Attributes:
        step: the update after which it was taken.
        value: its value of the metric.
        folder: its name in `RUN/best`.
        metric: the metric.
    """

    step: int
    value: float
    folder: str
    metric: str


class BestSnapshots:
    """Keeps the best snapshots of one run.

    Args:
        run: folder of the run.
        config: the metric, as `METRIC` or `EVALUATOR/METRIC`, and how many stay.
    Raises:
        ConfigError: no metric, or the run's ranking is by another one.
        CorruptRecord: the ranking cannot be read.
    """

    def __init__(self, run: Path, config: BestConfig) -> None:
        if not config.metric:
            raise ConfigError("no metric to rank snapshots by", value="", expected="perplexity, generation/bleu, ...")
        self.folder, self._config = run / "best", config
        self.ranking = _read_ranking(self.folder)
        other_metrics = sorted({entry.metric for entry in self.ranking} - {config.metric})
        if other_metrics:
            raise ConfigError(
                f"{self.folder} ranks snapshots by another metric",
                value=config.metric,
                expected=other_metrics[0],
                hint="move the folder away, or name that metric",
            )

    @property
    def is_lower_better(self) -> bool:
        """Returns whether the least value is the best."""
        if self._config.order != "auto":
            return self._config.order == "min"
        return self._config.metric.rpartition("/")[2] in _LOWER_IS_BETTER

    def check_metric(self, names: Iterable[str]) -> None:
        """Raises ConfigError where no evaluator measures the metric; `names` are `EVALUATOR/METRIC`, of all of them."""
        choices = {choice for name in names for choice in (name, name.partition("/")[2])}
        if self._config.metric not in choices:
            raise ConfigError([unknown_name_problem("metric", self._config.metric, choices, location="best.metric")])

    def consider(self, snapshot: Snapshot, evaluator: str, measures: Sequence[Measure]) -> bool:
        """Copies a snapshot that is among the best, and removes the one that no longer is; returns whether it stays.

        The caller holds a lease of the snapshot. A value that is withheld or not finite ranks nowhere; among equal
        values the earlier snapshot is better.

        Raises:
            NoSpace, StoreUnavailable: the copy cannot be written.
        """
        value = self._find_value(evaluator, measures)
        if value is None or any(entry.step == snapshot.step for entry in self.ranking):
            return False
        entry = RankedSnapshot(snapshot.step, value, snapshot.path.name, self._config.metric)
        sign = 1.0 if self.is_lower_better else -1.0
        ranking = sorted([*self.ranking, entry], key=lambda ranked: (sign * ranked.value, ranked.step))
        best_entries = ranking[: self._config.keep]
        if entry not in best_entries:
            return False
        self._copy(snapshot)
        self.ranking = best_entries
        rows = [asdict(ranked) for ranked in best_entries]
        write_atomic(self.folder / _RANKING, json.dumps(rows, indent=1) + "\n")
        for ranked in ranking[self._config.keep :]:
            shutil.rmtree(self.folder / ranked.folder, ignore_errors=True)
        return True

    def _find_value(self, evaluator: str, measures: Sequence[Measure]) -> float | None:
        for measure in measures:
            names = (measure.metric, f"{evaluator}/{measure.metric}")
            if self._config.metric in names and measure.value is not None and math.isfinite(measure.value):
                return measure.value
        return None

    def _copy(self, snapshot: Snapshot) -> None:
        target = self.folder / snapshot.path.name
        temporary = self.folder / f"{snapshot.path.name}{TEMPORARY_SUFFIX}"
        with disk_errors(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            for leftover in (temporary, target):
                shutil.rmtree(leftover, ignore_errors=True)
            shutil.copytree(snapshot.path, temporary)
            temporary.rename(target)


def _read_ranking(folder: Path) -> list[RankedSnapshot]:
    path = folder / _RANKING
    if not path.exists():
        return []
    try:
        rows: list[Mapping[str, object]] = json.loads(path.read_text(encoding="utf-8"))
        ranking = [
            RankedSnapshot(int(str(row["step"])), float(str(row["value"])), str(row["folder"]), str(row["metric"]))
            for row in rows
        ]
        for ranked in ranking:
            safe_join(folder, ranked.folder)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CorruptRecord(f"{path} does not rank snapshots: {error}", offset=0) from error
    return ranking
