"""The table of scores, made anew with scikit-learn: `python -m evolvent.worlds.datasci.rebuild`.

5-fold stratified cross-validation with a fixed seed; the score is the mean of the folds' areas under the ROC curve, of
one class versus the rest and averaged over classes where there are more than two. It takes about twenty minutes of one
core.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from evolvent.errors import MissingExtra
from evolvent.worlds.datasci.pipelines import Pipeline, pipelines
from evolvent.worlds.datasci.sets import SETS, DataSet, facts_of, load_set
from evolvent.worlds.datasci.table import DIGITS, Table, table_path

__all__ = ["FOLDS", "SEED", "folds_of", "rebuild", "scores_of"]

FOLDS = 5
SEED = 0


def folds_of(data: DataSet) -> list[tuple[Any, Any]]:
    """The (train, test) row numbers of the folds."""
    from sklearn.model_selection import StratifiedKFold

    return list(StratifiedKFold(FOLDS, shuffle=True, random_state=SEED).split(data.rows, data.labels))


def scores_of(data: DataSet, chosen: Sequence[Pipeline] | None = None) -> dict[str, float]:
    """Canonical pipeline -> its cross-validated ROC-AUC on this data set, without those that need more columns.

    What pipelines have in common (scaler, selection) is fitted once a fold.

    Args:
        chosen: the pipelines (None: all).
    Raises:
        MissingExtra: scikit-learn is not installed.
    """
    try:
        import sklearn.metrics as metrics
    except ImportError as error:
        raise MissingExtra("datasci", "scoring pipelines") from error
    columns = data.rows.shape[1]
    kept = [one for one in (pipelines() if chosen is None else chosen) if one.kept(columns) <= columns]
    found: dict[str, list[float]] = {str(one): [] for one in kept}
    several = {"multi_class": "ovr", "labels": list(range(data.classes))} if data.classes > 2 else {}
    with _quiet():
        for train, test in folds_of(data):
            for fit_x, score_x, of in _prepared(data, kept, train, test):
                for one in of:
                    chances = _model(one).fit(fit_x, data.labels[train]).predict_proba(score_x)
                    chances = chances if several else chances[:, 1]
                    found[str(one)].append(metrics.roc_auc_score(data.labels[test], chances, **several))
    return {text: round(float(np.mean(areas)), DIGITS) for text, areas in found.items()}


def _prepared(
    data: DataSet, kept: Sequence[Pipeline], train: Any, test: Any
) -> Iterator[tuple[Any, Any, list[Pipeline]]]:
    """The scaled and selected rows of a fold, and the pipelines that have them in common."""
    for scale in dict.fromkeys(one.scale for one in kept):
        scaled = _apply(_scaler(scale), data.rows[train], data.labels[train], data.rows[test])
        alike = [one for one in kept if one.scale == scale]
        for size in dict.fromkeys((one.select, one.kept(data.rows.shape[1])) for one in alike):
            chosen = _apply(_selector(*size), scaled[0], data.labels[train], scaled[1])
            of = [one for one in alike if (one.select, one.kept(data.rows.shape[1])) == size]
            yield *chosen, of


def _apply(step: Any, train: Any, labels: Any, test: Any) -> tuple[Any, Any]:
    return (train, test) if step is None else (step.fit(train, labels).transform(train), step.transform(test))


def _scaler(scale: str) -> Any:
    from sklearn import preprocessing

    names = {"standard": "StandardScaler", "minmax": "MinMaxScaler", "robust": "RobustScaler", "maxabs": "MaxAbsScaler"}
    return getattr(preprocessing, names[scale])() if scale else None


def _selector(select: str, size: int) -> Any:
    from sklearn.decomposition import PCA
    from sklearn.feature_selection import SelectKBest

    if not select:
        return None
    return SelectKBest(k=size) if select == "kbest" else PCA(size, svd_solver="full", random_state=SEED)


def _model(one: Pipeline) -> Any:
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.naive_bayes import GaussianNB
    from sklearn.neighbors import KNeighborsClassifier
    from sklearn.tree import DecisionTreeClassifier

    given = dict(one.params)
    depth = None if given.get("depth") in (None, "none") else int(given["depth"])
    if one.model == "logreg":
        return LogisticRegression(C=float(given["C"]))
    if one.model == "knn":
        return KNeighborsClassifier(int(given["k"]))
    if one.model == "tree":
        return DecisionTreeClassifier(max_depth=depth, random_state=SEED)
    if one.model == "forest":
        return RandomForestClassifier(int(given["trees"]), max_depth=depth, random_state=SEED)
    return GaussianNB()


@contextmanager
def _quiet() -> Iterator[None]:
    """A fit that does not converge, or a column without spread, is a worse pipeline and no error: it gets its score."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        yield


def rebuild(path: Path | None = None, names: Iterable[str] = tuple(SETS)) -> Table:
    """Score every pipeline on every data set and write the table.

    Args:
        path: where to write (None: into the package).
        names: the data sets.
    Raises:
        MissingExtra: scikit-learn is not installed. NoSpace, StoreUnavailable: the file cannot be written.
    """
    scores, facts = {}, {}
    for name in names:
        data = load_set(name)
        scores[name], facts[name] = scores_of(data), facts_of(data)
    import sklearn

    table = Table(scores, facts, sklearn.__version__)
    table.write(path or table_path())
    return table


if __name__ == "__main__":
    rebuild(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
