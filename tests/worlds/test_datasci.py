"""The language of pipelines, the shipped table and the world over it: by hand, by brute force, against scikit-learn."""

from __future__ import annotations

import json
from collections import Counter
from functools import partial
from itertools import permutations
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evolvent.errors import ConfigError, CorruptRecord, HashMismatch, SessionGone, UnknownSchema, VersionMismatch
from evolvent.trajectory import Task
from evolvent.worlds.audit import audit
from evolvent.worlds.base import SPLITS
from evolvent.worlds.check import check_env
from evolvent.worlds.crafting import words_of
from evolvent.worlds.datasci.pipelines import MODELS, WORDS, Pipeline, pipelines, read_pipeline
from evolvent.worlds.datasci.sets import SETS
from evolvent.worlds.datasci.table import Table, read_table
from evolvent.worlds.datasci.tasks import FORMS, HINTS
from evolvent.worlds.datasci.world import DataSci
from evolvent.worlds.panel import Sizes, digest

TABLE = read_table()
WORLD = DataSci(table=TABLE)
KNN, GNB = "model knn k 5 ; end", "scale standard ; model gnb ; end"


def small(**areas: float) -> Table:
    """A table of one data set with two pipelines, everything else missing."""
    facts = dict(TABLE.facts["iris"])
    return Table({"iris": {KNN: areas.get("knn", 0.75), GNB: areas.get("gnb", 0.5)}}, {"iris": facts}, "0")


def task_of(world: DataSci, **changes: object) -> Task:
    spec = {"data": "iris", "form": FORMS["dev"][0], "hint": [], "table": world.table.digest[:16]}
    return Task(world.name, world.version, {**spec, **changes})


def test_there_are_720_pipelines_of_3_to_15_words():
    every = pipelines()
    assert len(every) == len(set(map(str, every))) == 5 * 9 * 16
    lengths = [len(str(one).replace(";", "").split()) for one in every]
    assert (min(lengths), max(lengths)) == (3, 12)  # 15 with the marks between clauses
    assert max(len(str(one).split()) for one in every) == 15
    assert {word for one in every for word in str(one).split()} == set(WORDS)
    assert all(read_pipeline(str(one)) == one for one in every)


def test_the_canonical_form():
    """Omitted clauses are absent, parameters stand in any order, defaults are filled in."""
    wanted = "scale standard ; select pca 5 ; model forest trees 50 depth none ; end"
    for text in (
        wanted,
        "scale standard;select pca 5;model forest;end",
        "SCALE Standard ; Select PCA 5 ; model forest depth none trees 50 ; END",
        "  scale standard ; select pca 5 ; model forest trees 50 ; end\n",
    ):
        assert str(read_pipeline(text)) == wanted
    plain = {"logreg": "C 1", "knn": "k 5", "tree": "depth none", "forest": "trees 50 depth none", "gnb": ""}
    for model, params in plain.items():
        assert str(read_pipeline(f"model {model} ; end")) == f"model {model} {params} ; end".replace("  ", " ")
    for number in ("0.1", ".1", "0 . 1", ". 1"):
        assert str(read_pipeline(f"model logreg C {number} ; end")) == "model logreg C 0.1 ; end"
    assert str(read_pipeline("model logreg c 10 ; end")) == "model logreg C 10 ; end"
    for pairs in permutations(("trees 10", "depth 4")):
        assert str(read_pipeline(f"model forest {' '.join(pairs)} ; end")) == "model forest trees 10 depth 4 ; end"


def test_what_is_no_pipeline_is_told_why():
    said = {
        "": "the last clause is end",
        "model knn": "the last clause is end",
        "end": "expected a clause model",
        "knn ; end": "knn begins no clause : expected scale , select or model",
        "fit knn ; end": "that begins no clause : expected scale , select or model",
        "; end": "that begins no clause : expected scale , select or model",
        "model knn ; scale standard ; end": "the order is scale ; select ; model ; end",
        "model knn ; model gnb ; end": "the order is scale ; select ; model ; end",
        "scale big ; model gnb ; end": "expected scale and one of standard , minmax , robust , maxabs",
        "select 5 ; model gnb ; end": "expected select and one of kbest , pca",
        "select pca 7 ; model gnb ; end": "expected pca and one of 2 , 5 , 10 , half",
        "model svm ; end": "expected model and one of logreg , knn , tree , forest , gnb",
        "model knn k 3 ; end": "expected k and one of 1 5 15",
        "model knn k ; end": "expected k and one of 1 5 15",
        "model gnb k 5 ; end": "gnb takes no parameter , not k",
        "model forest k 5 ; end": "forest takes trees and depth , not k",
        "model forest C 10 ; end": "forest takes trees and depth , not C",
        "model knn k 5 k 5 ; end": "k is given twice",
        "x" * 401: "too long",
    }
    assert {text: read_pipeline(text) for text in said} == said


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from([*WORDS, "svm", ".", "0", "?"]), max_size=16).map(" ".join) | st.text(max_size=60))
def test_any_text_is_a_pipeline_or_refused_with_known_words(text):
    found = read_pipeline(text)
    if isinstance(found, Pipeline):
        assert found in pipelines() and read_pipeline(str(found)) == found
    else:
        assert 0 < len(words_of(found)) <= 16
        assert set(words_of(found)) <= set(WORLD.vocabulary())


@pytest.mark.parametrize("word", WORDS)
def test_what_is_said_of_any_word_in_any_place_is_known(word):
    """A policy over the world's words must be able to read the answer to what it wrote."""
    known = set(WORLD.vocabulary())
    for text in (
        f"{word} ; end",
        f"scale {word} ; end",
        f"select {word} 2 ; end",
        f"model {word} ; end",
        *(f"model {model} {word} 1 ; end" for model in MODELS),
    ):
        found = read_pipeline(text)
        assert isinstance(found, Pipeline) or set(words_of(found)) <= known


def test_the_shipped_table_is_whole():
    """Every data set, every pipeline that its columns allow and no other, areas in 0..1."""
    assert set(TABLE.scores) == set(TABLE.facts) == set(SETS)
    assert Counter(SETS.values()) == {"train": 12, "dev": 3, "test": 5}
    columns = {"iris": 4, "wine": 13, "digits": 64, "breast_cancer": 30}
    for name, of in TABLE.scores.items():
        assert all(0 <= area <= 1 for area in of.values())
        if name in columns:
            assert list(of) == [str(one) for one in pipelines() if one.count_selected(columns[name]) <= columns[name]]
    assert len(TABLE.scores["iris"]) == 5 * 5 * 16 and len(TABLE.scores["digits"]) == 720
    assert len({TABLE.best(name) for name in SETS}) >= 12  # no one pipeline is best everywhere


def test_marks_by_hand():
    """The lowest score that at most a tenth reach: of 20 the second; where the best are too many, the best."""

    def mark(areas: list[float]) -> float:
        texts = map(str, pipelines())
        return Table({"x": dict(zip(texts, areas, strict=False))}, {"x": {}}, "0").success_threshold("x")

    assert mark([n / 20 for n in range(20)]) == 18 / 20
    assert mark([0.1] * 17 + [0.8, 0.8, 0.9]) == 0.9
    assert mark([0.1] * 15 + [0.9] * 5) == 0.9
    for name, of in TABLE.scores.items():
        reach = sum(area >= TABLE.success_threshold(name) for area in of.values()) / len(of)
        assert 0 < reach <= 0.1 or TABLE.success_threshold(name) == max(of.values())


def test_a_table_survives_its_file_and_damage_is_seen(tmp_path: Path):
    path = tmp_path / "t.parquet"
    small().write(path)
    again = read_table(path)
    assert (again.scores, again.facts, again.sklearn, again.digest) == (
        small().scores,
        small().facts,
        "0",
        small().digest,
    )
    assert small(knn=0.7501).digest != small().digest
    read = pq.read_table(path)
    changed = read.set_column(2, "auc", [[0.75, 0.6]])
    pq.write_table(changed, path)
    with pytest.raises(HashMismatch):
        read_table(path)
    head = {**json.loads(read.schema.metadata[b"evolvent"]), "format": 99}
    pq.write_table(read.replace_schema_metadata({b"evolvent": json.dumps(head).encode()}), path)
    with pytest.raises(UnknownSchema):
        read_table(path)
    path.write_bytes(b"no parquet")
    with pytest.raises(CorruptRecord, match="rebuild"):
        read_table(path)
    with pytest.raises(CorruptRecord):
        read_table(tmp_path / "missing.parquet")


def test_an_episode():
    """An error costs 1 and tells; a pipeline earns its area and ends the episode."""
    world = DataSci(table=small())
    env = world.make(task_of(world, hint=["model"]))
    text, info = env.reset()
    assert text == (
        "these data have few rows , under 5 columns , three classes , even scales , light tails , even balance . find "
        "a pipeline . hint : model knn"
    )
    assert info["admissible"] == (KNN, GNB)
    text, reward, over, _, info = env.step("model svm ; end")
    assert (text, reward, over) == ("expected model and one of logreg , knn , tree , forest , gnb", -1.0, False)
    assert info["invalid"] and info["expected"].startswith("svm; allowed: scale")
    assert env.step("select kbest 10 ; model gnb ; end")[:2] == ("the data have fewer columns than 10", -1.0)
    text, reward, over, _, info = env.step("scale standard ; model gnb ; end")
    assert (text, reward, over, info["won"], info["auc"], info["mark"]) == ("scored", 0.5, True, False, 0.5, 0.75)
    assert world.score([-1.0, -1.0, 0.5], info).raw == -1.5 and world.score([0.5], info).success is False
    with pytest.raises(SessionGone):
        env.step(KNN)
    env.reset()
    _, reward, _, _, info = env.step("model knn ; end")
    assert reward == 0.75 and info["won"] and world.score([reward], info).unit == 0.75
    assert world.score([None, 0.75], info).success is None


def test_panels_hold_out_data_sets_and_wordings():
    seen: dict[str, set[str]] = {}
    for split in SPLITS:
        for task in WORLD.tasks(split, "seen"):
            for what in (task.spec["data"], task.spec["form"]):
                seen.setdefault(what, set()).add(split)
    assert all(len(splits) == 1 for splits in seen.values())
    assert len(HINTS) == 8 and sum(map(len, FORMS.values())) == len({form for of in FORMS.values() for form in of})
    assert [len(WORLD.tasks(split, "seen")) for split in SPLITS] == [12 * 5 * 8, 3 * 3 * 8, 5 * 5 * 8]
    assert len(DataSci(table=TABLE, sizes=Sizes(10, 5, 5)).tasks("train", "seen")) == 10
    assert {task.spec["data"] for task in WORLD.tasks("test", "seen")[:40]} == {
        name for name, split in SETS.items() if split == "test"
    }


def test_committed_digests():
    """A change of a panel, or of the table, is a new study."""
    found = {split: digest(WORLD.tasks(split, "seen"))[:16] for split in SPLITS}
    assert found == {"train": "3e881afad70fa717", "dev": "a995c6443ba50357", "test": "d5dc352f8d266d77"}
    assert TABLE.digest[:16] == WORLD.tasks("dev", "seen")[0].spec["table"]


def test_the_panels_are_sound():
    assert audit(WORLD, "test", limit=100).problems == ()


def test_experts_win_with_known_words_and_hints_are_true():
    known = set(WORLD.vocabulary())
    for split in SPLITS:
        for task in WORLD.tasks(split, "seen")[::7]:
            env = WORLD.make(task)
            text, info = env.reset()
            (best,) = WORLD.expert(task)
            assert set(words_of(f"{text} {best}")) <= known
            found = read_pipeline(best)
            assert isinstance(found, Pipeline) and ("no hint" in text) == (not task.spec["hint"])
            assert ("model" in task.spec["hint"]) == (f"model {found.model}" in text)
            text, reward, over, _, info = env.step(best)
            assert over and info["won"] and reward == max(TABLE.scores[task.spec["data"]].values())


def test_environments_keep_their_promises():
    assert check_env(partial(WORLD.make, WORLD.tasks("dev", "seen")[0]), forkable=True) == []


def test_tasks_and_settings_that_are_none():
    with pytest.raises(ConfigError) as caught:
        WORLD.make(task_of(WORLD, data="titanic", form="{facts}", hint=["model", "scale"]))
    assert len(caught.value.problems) == 3
    with pytest.raises(VersionMismatch, match="another table"):
        WORLD.make(task_of(WORLD, table="0" * 16))
    with pytest.raises(VersionMismatch):
        WORLD.make(Task("datasci", "0", {}))
    with pytest.raises(ConfigError) as caught:
        DataSci(table=TABLE, penalty=0.5, horizon=0)
    assert len(caught.value.problems) == 2
    assert set(MODELS) == {"logreg", "knn", "tree", "forest", "gnb"}
