"""Rebuilds the table of scores with scikit-learn: `python -m evolvent.worlds.datasci.rebuild`.

5-fold stratified cross-validation with a fixed seed; the score is the mean of the folds' areas under the ROC curve, of
one class versus the rest and averaged over classes where there are more than two. It takes about twenty minutes on one
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
from numpy.typing import NDArray

from evolvent.errors import MissingExtra
from evolvent.worlds.datasci.pipelines import Pipeline, pipelines
from evolvent.worlds.datasci.sets import SETS, DataSet, describe_data, load_set
from evolvent.worlds.datasci.table import DIGITS, Table, table_path

__all__ = ["FOLDS", "SEED", "folds_of", "rebuild", "score_pipelines"]

FOLDS = 5
SEED = 0


def folds_of(data: DataSet) -> list[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Returns the (train, test) row numbers of the folds."""
    from sklearn.model_selection import StratifiedKFold

    return list(StratifiedKFold(FOLDS, shuffle=True, random_state=SEED).split(data.rows, data.labels))


def score_pipelines(data: DataSet, selection: Sequence[Pipeline] | None = None) -> dict[str, float]:
    """Computes, per canonical pipeline, its cross-validated ROC-AUC on this data set, except those that need more
    columns.

    The steps that pipelines share (scaler, selection) are fitted once a fold.

    Args:
        data: the data set.
        selection: the pipelines (None: all).
    Raises:
        MissingExtra: scikit-learn is not installed.
    """
    try:
        import sklearn.metrics as metrics
    except ImportError as error:
        raise MissingExtra("datasci", "scoring pipelines") from error
    columns = data.rows.shape[1]
    applicable = [
        pipeline
        for pipeline in (pipelines() if selection is None else selection)
        if pipeline.count_selected(columns) <= columns
    ]
    areas_by_pipeline: dict[str, list[float]] = {str(pipeline): [] for pipeline in applicable}
    multi_class_options = {"multi_class": "ovr", "labels": list(range(data.classes))} if data.classes > 2 else {}
    with _hide_warnings():
        for train, test in folds_of(data):
            for fit_x, score_x, group in _prepare_groups(data, applicable, train, test):
                for pipeline in group:
                    probabilities = _build_model(pipeline).fit(fit_x, data.labels[train]).predict_proba(score_x)
                    probabilities = probabilities if multi_class_options else probabilities[:, 1]
                    areas_by_pipeline[str(pipeline)].append(
                        metrics.roc_auc_score(data.labels[test], probabilities, **multi_class_options)
                    )
    return {text: round(float(np.mean(areas)), DIGITS) for text, areas in areas_by_pipeline.items()}


def _prepare_groups(
    data: DataSet, applicable: Sequence[Pipeline], train: Any, test: Any
) -> Iterator[tuple[Any, Any, list[Pipeline]]]:
    """Yields the scaled and selected rows of a fold, and the pipelines that share them."""
    for scale in dict.fromkeys(pipeline.scale for pipeline in applicable):
        scaled = _apply(_build_scaler(scale), data.rows[train], data.labels[train], data.rows[test])
        same_scale = [pipeline for pipeline in applicable if pipeline.scale == scale]
        for size in dict.fromkeys(
            (pipeline.select, pipeline.count_selected(data.rows.shape[1])) for pipeline in same_scale
        ):
            selected_rows = _apply(_build_selector(*size), scaled[0], data.labels[train], scaled[1])
            group = [
                pipeline
                for pipeline in same_scale
                if (pipeline.select, pipeline.count_selected(data.rows.shape[1])) == size
            ]
            yield *selected_rows, group


def _apply(step: Any, train: Any, labels: Any, test: Any) -> tuple[Any, Any]:
    return (train, test) if step is None else (step.fit(train, labels).transform(train), step.transform(test))


def _build_scaler(scale: str) -> Any:
    from sklearn import preprocessing

    names = {"standard": "StandardScaler", "minmax": "MinMaxScaler", "robust": "RobustScaler", "maxabs": "MaxAbsScaler"}
    return getattr(preprocessing, names[scale])() if scale else None


def _build_selector(select: str, size: int) -> Any:
    from sklearn.decomposition import PCA
    from sklearn.feature_selection import SelectKBest

    if not select:
        return None
    return SelectKBest(k=size) if select == "kbest" else PCA(size, svd_solver="full", random_state=SEED)


def _build_model(pipeline: Pipeline) -> Any:
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.naive_bayes import GaussianNB
    from sklearn.neighbors import KNeighborsClassifier
    from sklearn.tree import DecisionTreeClassifier

    parameters = dict(pipeline.params)
    depth = None if parameters.get("depth") in (None, "none") else int(parameters["depth"])
    if pipeline.model == "logreg":
        return LogisticRegression(C=float(parameters["C"]))
    if pipeline.model == "knn":
        return KNeighborsClassifier(int(parameters["k"]))
    if pipeline.model == "tree":
        return DecisionTreeClassifier(max_depth=depth, random_state=SEED)
    if pipeline.model == "forest":
        return RandomForestClassifier(int(parameters["trees"]), max_depth=depth, random_state=SEED)
    return GaussianNB()


@contextmanager
def _hide_warnings() -> Iterator[None]:
    """Hides warnings: a fit that does not converge, or a constant column, is a worse pipeline but not an error."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        yield


def rebuild(path: Path | None = None, names: Iterable[str] = tuple(SETS)) -> Table:
    """Scores every pipeline on every data set and writes the table.

    Args:
        path: where to write (None: into the package).
        names: the data sets.
    Raises:
        MissingExtra: scikit-learn is not installed. NoSpace, StoreUnavailable: the file cannot be written.
    """
    scores, facts = {}, {}
    for name in names:
        data = load_set(name)
        scores[name], facts[name] = score_pipelines(data), describe_data(data)
    import sklearn

    table = Table(scores, facts, sklearn.__version__)
    table.write(path or table_path())
    return table


if __name__ == "__main__":
    rebuild(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
