"""The index of trajectories against reading all of them: sealed, live, streamed, interrupted, damaged, growing."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evolvent.errors import ErrorRecord, SampleInvalid
from evolvent.store.store import Store
from evolvent.trajectory import Annotation, AnnotationTarget, Generation, Score, Step, Task, Trajectory
from evolvent.view.pages import build_address
from evolvent.view.queries import FILTERS, SORTS, Query, TextIndex, TrajectoryIndex


def episode(number, *, stage="evolve-1-collect-ab", won=None, **more):
    """An episode with a few words of its own."""
    rng = np.random.default_rng(number)
    task = Task(
        ("lookup", "maze")[number % 2],
        "1",
        {"Number": number, "goal": f"Émile {number % 3}"},
        f"kind {number % 4}",
        ("seen", "evo")[number % 2],
        ("train", "test")[number % 3 == 0],
    )
    steps = tuple(
        Step(
            f"seen {number}",
            f"Go {('north', 'south')[at % 2]} {number}",
            float(at),
            None,
            (
                Generation(
                    np.array([1, 2, 3], np.int32),
                    np.array([False, True, True]),
                    np.array([0.0, -0.5, -1.0], np.float32),
                ),
            ),
        )
        for at in range(number % 5 + 1)
    )
    won = (True, False, None)[number % 3] if won is None else won
    unit = None if won is None else float(rng.random())
    return Trajectory(
        f"{stage}/{task.id}/{number}",
        task,
        steps,
        f"the end of {number}",
        score=Score(unit, unit, won),
        sample=number,
        **more,
    )


def failed(number):
    one = episode(number, won=None)
    error = ErrorRecord("EnvLost", "The world Broke", 1, True)
    return Trajectory(one.id + "f", one.task, one.steps, ended_by="error", error=error)


def whole(folder, seconds=60.0):
    index = TrajectoryIndex(folder)
    assert index.advance(seconds)
    return index


def ids(index, query=Query(), **more):  # noqa: B008
    return [row["traj"] for row in index.query(query, count=10_000, **more).rows]


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    """Two sealed segments, a live one, one episode that was streamed, one that failed, arrays beside texts."""
    folder = tmp_path_factory.mktemp("store")
    with Store.open(folder, writing=True, run="r") as store:
        for number in range(20):
            store.append(episode(number))
        store.annotate(Annotation(episode(3).id, "judge", AnnotationTarget(step=1), 0.25))
        store.seal()
        for number in range(20, 33):
            store.append(episode(number, stage="control-2-evaluate-cd"))
        store.append(Trajectory("array", Task("control", "1", {}), (Step(np.zeros(3), np.ones(2), 1.0),), np.zeros(3)))
        store.seal()
        for number in range(33, 40):
            store.append(episode(number))
        store.append(failed(41))
        store.begin("streamed", episode(42).task)
        store.step("streamed", Step("x", "wave twice"))
        store.end("streamed", ended_by="agent", score=Score(1.0, 1.0, True))
        store.annotate(Annotation(episode(3).id, "judge", AnnotationTarget(step=0), 0.5))
    return folder


def text_of(one):
    """What is searched, told anew."""
    error = (one.error.kind, one.error.message) if one.error else ()
    said = [step.action for step in one.steps if isinstance(step.action, str)]
    final = one.final_observation if isinstance(one.final_observation, str) else ""
    parts = [
        one.id,
        one.task.id,
        one.task.world,
        one.task.kind,
        one.group or "",
        json.dumps(dict(one.task.spec), ensure_ascii=False),
        *said,
        final,
        *error,
    ]
    return "\n".join(parts).lower()


def fits(one, query):
    outcome = {True: "solved", False: "failed", None: "unscored"}[one.success]
    stage = "/".join(one.id.split("/")[:-2])
    values = {
        "world": one.task.world,
        "tier": one.task.tier,
        "split": one.task.split,
        "kind": one.task.kind,
        "stage": stage,
        "ended_by": one.ended_by,
        "outcome": outcome,
    }
    return all(word in text_of(one) for word in query.text.lower().split()) and all(
        values[name] == value for name, value in query.where.items()
    )


QUERIES = [
    Query(),
    Query("north"),
    Query("GO south 2"),
    Query("evolve-1"),
    Query("broke"),
    Query("wave"),
    Query("the 7"),
    Query("nothing-like-it"),
    Query(where={"outcome": "solved"}),
    Query("go", {"world": "maze", "outcome": "failed"}),
    Query(where={"ended_by": "error"}),
    Query(where={"stage": "control-2-evaluate-cd", "kind": "kind 1"}),
    Query(where={"split": "test", "tier": "evo"}),
]


@pytest.mark.parametrize("query", QUERIES, ids=lambda query: f"{query.text} {dict(query.where)}")
def test_it_finds_what_reading_everything_finds(mixed, query):
    every = list(Store.open(mixed).trajectories())
    assert len(every) == 43
    assert ids(whole(mixed), query) == [one.id for one in every if fits(one, query)]


def test_words_in_sealed_and_live_segments_are_the_same(mixed, tmp_path):
    with Store.open(tmp_path, writing=True, run="r") as store:
        for one in Store.open(mixed).trajectories():
            store.append(one)
    live = whole(tmp_path)
    for word in ("émile", "emile", 'number":7', "seen", "41f", "control", '{"', "end of 31"):
        assert ids(live, Query(word)) == ids(whole(mixed), Query(word)), word


@pytest.mark.parametrize("sort", SORTS)
@pytest.mark.parametrize("down", [False, True])
def test_the_order(mixed, sort, down):
    rows = whole(mixed).query(Query(sort=sort, descending=down), count=100).rows
    assert len(rows) == 43
    if sort == "seq":
        appended = [one.id for one in Store.open(mixed).trajectories()]
        assert [row["traj"] for row in rows] == appended[:: -1 if down else 1]
        return
    values = [row[sort] for row in rows]
    known = [value for value in values if value is not None]
    assert values[: len(known)] == known == sorted(known, reverse=down), "those without a value come last"


def test_pages_fit_together(mixed):
    index, query = whole(mixed), Query("go", sort="unit", descending=True)
    every = ids(index, query)
    pages = [index.query(query, first=first, count=7) for first in range(0, len(every), 7)]
    assert [row["traj"] for page in pages for row in page.rows] == every
    assert all(page.found == len(every) and page.read == 43 for page in pages)
    beyond = index.query(query, first=10_000, count=7)
    assert beyond.first == len(every) - 1 and len(beyond.rows) == 1


def test_neighbours_are_those_of_the_question(mixed):
    index, query = whole(mixed), Query(where={"outcome": "solved"}, sort="length")
    every = ids(index, query)
    assert index.neighbors(query, every[0]) == (None, every[1])
    assert index.neighbors(query, every[3]) == (every[2], every[4])
    assert index.neighbors(query, every[-1]) == (every[-2], None)
    assert index.neighbors(query, episode(1).id) == (None, None), "failed: not among them"


def test_records_come_from_where_they_are(mixed):
    index = whole(mixed)
    for one in Store.open(mixed).trajectories():
        assert index.get(one.id) == one
    assert [note.value for note in index.annotations(episode(3).id)] == [0.25, 0.5]
    assert index.annotations(episode(4).id) == []
    with pytest.raises(SampleInvalid, match="unknown trajectory id"):
        index.get("../../etc/passwd")


def test_choices_are_counted(mixed):
    found = whole(mixed).choices()
    every = list(Store.open(mixed).trajectories())
    assert set(found) == set(FILTERS)
    assert dict(found["world"]) == {w: sum(o.task.world == w for o in every) for w in ("lookup", "maze", "control")}
    assert [count for _, count in found["kind"]] == sorted((count for _, count in found["kind"]), reverse=True)


def test_tasks_are_put_together(tmp_path):
    with Store.open(tmp_path, writing=True) as store:
        for sample, won in enumerate((True, False, True, None)):
            one = episode(6, won=won)
            store.append(Trajectory(f"s/{one.task.id}/{sample}", one.task, (), score=Score(None, None, won)))
    (row,) = whole(tmp_path).task_outcomes().values()
    assert (row["n"], row["won"], row["world"]) == (3, 2, "lookup")


def test_what_is_appended_is_found_and_nothing_is_read_twice(tmp_path, monkeypatch):
    with Store.open(tmp_path, writing=True) as store:
        store.append(episode(0))
        store.begin("open", episode(1).task)
        store.step("open", Step("x", "half way"))
        store.flush()
        index = whole(tmp_path)
        assert ids(index) == [episode(0).id, "open"]
        assert index.query(Query("half")).rows[0]["error"] == "interrupted"
        version = index.version()
        assert index.advance(1) and index.version() == version, "nothing is new"
        from evolvent.view import segments

        begun = []
        plain = segments.read_lines
        monkeypatch.setattr(
            segments, "read_lines", lambda path, **how: begun.append(how["begin"]) or plain(path, **how)
        )
        store.append(episode(2))
        store.step("open", Step("x", "there"))
        store.end("open", score=Score(1.0, 1.0, True))
        store.flush()
        assert index.advance(5) and index.version() > version
        assert begun and min(begun) > 0
        assert ids(index) == [episode(0).id, episode(2).id, "open"]
        assert index.query(Query("there")).rows[0]["outcome"] == "solved"


def test_an_interrupted_episode_gives_way(tmp_path):
    with Store.open(tmp_path, writing=True) as store:
        store.begin("again", episode(1).task)
        store.append(episode(0))
    with Store.open(tmp_path, writing=True) as store:
        index = whole(tmp_path)
        assert ids(index) == [episode(0).id, "again"]
        store.append(Trajectory("again", episode(1).task, (), score=Score(1.0, 1.0, True)))
        store.append(episode(3))
        store.flush()
        assert index.advance(5)
        assert ids(index) == [one.id for one in Store.open(tmp_path).trajectories()]
        assert len(ids(index)) == 3


def test_sealing_meanwhile_changes_nothing(tmp_path):
    with Store.open(tmp_path, writing=True) as store:
        for number in range(6):
            store.append(episode(number))
        store.flush()
        index = whole(tmp_path)
        before = ids(index, Query("north"))
        store.seal()
        assert index.advance(5)
        assert ids(index, Query("north")) == before and len(ids(index)) == 6
        assert index.get(episode(4).id) == episode(4)
        store.append(episode(9))
        store.flush()
        assert index.advance(5) and len(ids(index)) == 7


def test_time_is_kept_and_reading_goes_on(tmp_path):
    with Store.open(tmp_path, writing=True) as store:
        for number in range(600):
            store.append(episode(number))
    index = TrajectoryIndex(tmp_path)
    assert not index.advance(0.0)
    first = index.query(Query())
    assert 0 < first.read < 600 and not first.whole
    stretches = 1
    while not index.advance(0.0):
        stretches += 1
    assert stretches > 3 and index.query(Query()).whole
    assert ids(index) == [episode(number).id for number in range(600)]


def test_damage_is_told_and_what_was_good_stays(tmp_path):
    with Store.open(tmp_path, writing=True) as store:
        for number in range(4):
            store.append(episode(number))
    log = tmp_path / "log" / "seg-000001.jsonl"
    lines = log.read_bytes().splitlines(keepends=True)
    lines[2] = lines[2].replace(b"north", b"NORTH", 1)
    log.write_bytes(b"".join(lines))
    index = TrajectoryIndex(tmp_path)
    assert index.advance(5)
    answer = index.query(Query())
    assert "damaged" in answer.problem and answer.whole
    for _ in (0, 1):  # what comes before is there at once, and stays
        assert ids(index) == [episode(0).id, episode(1).id]
        assert index.advance(5) and "damaged" in index.query(Query()).problem


def test_a_run_begun_anew_in_the_same_folder_is_read_anew(tmp_path):
    root = tmp_path / "trajectories"
    index = TrajectoryIndex(root)
    for numbers in (range(4), range(20, 30), range(20, 22)):  # longer than what was read, then shorter
        with Store.open(root, writing=True) as store:
            for number in numbers:
                store.append(episode(number))
        assert index.advance(5)
        assert ids(index) == [episode(number).id for number in numbers] and not index.query(Query()).problem
        shutil.rmtree(root)
    assert index.advance(5) and not ids(index)


def test_notes_of_a_segment_that_was_sealed_meanwhile(tmp_path):
    with Store.open(tmp_path, writing=True) as store:
        store.append(episode(3))
        store.annotate(Annotation(episode(3).id, "judge", AnnotationTarget(step=1), 0.25))
        store.flush()
        index = whole(tmp_path)
        before = index.annotations(episode(3).id)
        store.seal()
        assert len(before) == 1 and index.annotations(episode(3).id) == before


def test_no_store_has_no_rows(tmp_path):
    index = whole(tmp_path / "nowhere")
    assert index.query(Query("x")).found == 0 and index.choices()["world"] == []
    assert not (tmp_path / "nowhere").exists(), "looking makes nothing"


TEXTS = st.lists(st.text("abß\nc\u20ac ", max_size=12), min_size=1, max_size=20)


@settings(max_examples=150, deadline=None)
@given(TEXTS, st.lists(st.text("abß\u20acc ", min_size=1, max_size=3), max_size=3), st.integers(0, 5))
def test_words_are_found_as_python_finds_them(texts, words, cut):
    ended = [f"{text}\n" for text in texts]
    column = pa.chunked_array([pa.array(["x\n", *ended[:cut]], pa.string())[1:], pa.array(ended[cut:], pa.string())])
    found = TextIndex(column).contains_all(words).tolist()
    assert found == [all(word in text for word in words) for text in ended]


def test_ids_and_names_that_no_file_could_hold_are_known_to_nobody(mixed):
    known = episode(3).id
    assert whole(mixed).select_stored(["\ud800", known, "né"]) == {known}
    assert build_address("/run/a/trees", name="\udcff") == "/run/a/trees?name=%3F"


def test_the_title_is_the_first_line_of_the_task_live_and_sealed(tmp_path):
    observations = ["\n  boss of Ann?\nYou may ask twice.", "one line", np.zeros(3, np.float32), "x" * 500]
    task = Task("lookup", "1", {"goal": "Ann"}, "2=2")
    episodes = [
        Trajectory(f"eval-1/{task.id}/{at}", task, (Step(text, "go", 0.0), Step("later", "go", 1.0)), "done", sample=at)
        for at, text in enumerate(observations)
    ]
    episodes.append(Trajectory(f"eval-1/{task.id}/9", task, (), "never begun\nat all", sample=9))
    expected = ["boss of Ann?", "one line", "", "x" * 120, "never begun"]
    with Store.open(tmp_path / "t", writing=True) as store:
        for one in episodes:
            store.append(one)
    for _ in ("live", "sealed"):
        index = TrajectoryIndex(tmp_path / "t")
        assert index.advance(60)
        assert [row["title"] for row in index.query(Query(sort="seq")).rows] == expected
        Store.open(tmp_path / "t").seal()
