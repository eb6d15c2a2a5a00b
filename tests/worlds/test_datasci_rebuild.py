"""The table against scikit-learn itself: whole pipelines, cross-validated by its own functions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evolvent.errors import ConfigError
from evolvent.worlds.datasci.pipelines import Pipeline, read_pipeline
from evolvent.worlds.datasci.rebuild import FOLDS, rebuild, score_pipelines
from evolvent.worlds.datasci.sets import SETS, describe_data, load_set
from evolvent.worlds.datasci.table import read_table

sklearn = pytest.importorskip("sklearn")


def of_scikit_learn() -> dict[str, Any]:
    """Pipelines made of scikit-learn's own parts, for data of four columns, where half is two."""
    from sklearn.feature_selection import SelectKBest
    from sklearn.linear_model import LogisticRegression
    from sklearn.neighbors import KNeighborsClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import RobustScaler, StandardScaler
    from sklearn.tree import DecisionTreeClassifier

    tree = DecisionTreeClassifier(max_depth=4, random_state=0)
    return {
        "scale standard ; model logreg C 1 ; end": make_pipeline(StandardScaler(), LogisticRegression(C=1.0)),
        "scale robust ; select kbest 2 ; model knn k 5 ; end": make_pipeline(
            RobustScaler(), SelectKBest(k=2), KNeighborsClassifier(5)
        ),
        "select kbest half ; model tree depth 4 ; end": make_pipeline(SelectKBest(k=2), tree),
    }


def parsed(text: str) -> Pipeline:
    found = read_pipeline(text)
    assert isinstance(found, Pipeline)
    return found


@pytest.mark.parametrize("name", ["iris", "rings"])
def test_scores_are_those_of_scikit_learn(name):
    """Three classes (one versus the rest) and two."""
    from sklearn.model_selection import StratifiedKFold, cross_val_score

    known = of_scikit_learn()
    data = load_set(name)
    assert data.rows.shape[1] == 4
    found = score_pipelines(data, [parsed(text) for text in (*known, "select pca 10 ; model gnb ; end")])
    scoring = "roc_auc_ovr" if data.classes > 2 else "roc_auc"
    folds = StratifiedKFold(FOLDS, shuffle=True, random_state=0)
    expected = {
        text: cross_val_score(pipeline, data.rows, data.labels, cv=folds, scoring=scoring).mean()
        for text, pipeline in known.items()
    }
    assert found == pytest.approx(expected, abs=6e-5)  # and nothing for the ten columns that there are not
    if sklearn.__version__ == read_table().sklearn:
        assert found == {text: read_table().scores[name][text] for text in known}


def test_facts_are_those_of_the_data():
    table = read_table()
    for name in SETS:
        data = load_set(name)
        assert describe_data(data) == table.facts[name]
        assert np.isfinite(data.rows).all() and set(data.labels) == set(range(data.classes))
        again = load_set(name)
        assert (again.rows == data.rows).all() and (again.labels == data.labels).all()
    assert load_set("digits").rows.shape == (500, 64) and load_set("iris").rows.shape == (150, 4)
    assert len({tuple(facts.values()) for facts in table.facts.values()}) >= 12
    with pytest.raises(ConfigError, match="did you mean 'iris'"):
        load_set("irish")


@pytest.mark.long
def test_a_rebuilt_data_set_is_the_shipped_one(tmp_path: Path):
    path = tmp_path / "table.parquet"
    made = rebuild(path, ["rings"])
    assert read_table(path).digest == made.digest
    shipped = read_table()
    tolerance = 0.0 if shipped.sklearn == sklearn.__version__ else 0.02
    assert made.scores["rings"] == pytest.approx(shipped.scores["rings"], abs=tolerance)
