"""Appending, streaming, resuming, rotating, asking, sealing: what a store holds after each."""

from __future__ import annotations

import shutil
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from stored import episode

from evolvent.errors import ConfigError, ErrorRecord, SampleInvalid, StoreUnavailable
from evolvent.store import query
from evolvent.store.log import RecoveryReport, list_segments
from evolvent.store.query import read_seal_manifest
from evolvent.store.store import Store
from evolvent.trajectory import Annotation, AnnotationTarget, Branch, Score, Step, Task

TASK = Task("lookup", "1", {"key": "x"}, "fetch", "seen", "train")


def ids(store: Store, **asked) -> list[str]:
    return list(store.ids(**asked))


def test_streamed_equals_appended(tmp_path):
    """begin, step, end leave the same trajectory as append of the whole."""
    whole = replace(episode("a", steps=3), sample=2, group="g", meta={"stage": 1, "new_roots": 0})
    with Store.open(tmp_path / "t", writing=True) as store:
        store.begin("a", whole.task, sample=2, group="g", meta={"stage": 1})
        store.append(episode("b"))
        for step in whole.steps:
            store.step("a", step)
        store.end("a", final_observation="done", score=whole.score, meta={"new_roots": 0})
        assert list(store.trajectories()) == [episode("b"), whole]
        store.seal()
        assert list(store.trajectories()) == [episode("b"), whole]


def test_an_open_episode_reads_as_interrupted_and_gives_way_to_a_later_one(tmp_path):
    steps = episode("a").steps
    with Store.open(tmp_path / "t", writing=True) as store:
        store.begin("a", TASK)
        store.step("a", steps[0])
        store.append(episode("b"))
        with pytest.raises(SampleInvalid, match="already has"):
            store.begin("a", TASK)
    reader = Store.open(tmp_path / "t")
    last = list(reader.trajectories())[-1]
    assert (last.id, last.steps, last.ended_by, last.score, last.rewards) == ("a", steps[:1], "error", Score(), (0.0,))
    assert last.error == ErrorRecord("interrupted", "the process ended before the episode did", 1, True)
    assert reader.recover() == RecoveryReport(num_finished=1, dropped_bytes=0, num_interrupted=1)
    reader.seal()
    assert list(reader.trajectories())[-1] == last
    with Store.open(tmp_path / "t", writing=True) as store:
        store.append(episode("a"))
        for _ in range(2):
            assert list(store.trajectories()) == [episode("b"), episode("a")]
            assert [row for batch in store.scan(columns=["traj"]) for row in batch["traj"].to_pylist()] == ["b", "a"]
            store.seal()
        with pytest.raises(SampleInvalid, match="already has"):
            store.append(episode("a"))
        assert store.path.joinpath("manifest.jsonl").read_bytes().count(b"\n") == 2
    assert Store.open(tmp_path / "t").recover() == RecoveryReport(2, 0, 0)


def test_an_interrupted_error_that_was_appended_gives_way_too(tmp_path):
    stopped = replace(episode("a"), ended_by="error", error=ErrorRecord("interrupted", "stopped", 1))
    with Store.open(tmp_path / "t", writing=True) as store:
        store.append(stopped)
        assert list(store.trajectories()) == [stopped]
        store.append(episode("a"))
        assert list(store.trajectories()) == [episode("a")]
        store.seal()
        assert list(store.trajectories()) == [episode("a")]


@pytest.mark.parametrize("sealing", [False, True])
def test_rotation_keeps_order_and_open_episodes(tmp_path, sealing):
    """Segments end at their size; an episode open across several of them is whole at its end, and never doubled."""
    path = tmp_path / "t"
    with Store.open(path, writing=True, segment_bytes=2000) as store:
        store.begin("long", TASK)
        for i in range(30):
            store.append(episode(f"e{i:02}"))
            if i % 7 == 3:
                store.step("long", Step(f"o{i}", "a", 1.0))
            if sealing and i % 10 == 5:
                store.seal()
            assert ids(Store.open(path))[-1] == "long"
        store.end("long", score=Score(4.0, 1.0, True))
        assert len(list_segments(path)) > (1 if sealing else 5)
        expected = [f"e{i:02}" for i in range(30)] + ["long"]
        assert ids(store) == expected
        assert [s.observation for s in store.get("long").steps] == ["o3", "o10", "o17", "o24"]
        report = store.seal()
        assert list_segments(path) == [] and report.segments > 0
        assert ids(store) == expected and len(store.get("long").steps) == 4
    assert Store.open(path).recover() == RecoveryReport(31, 0, 0)


def test_sealing_again_after_a_kill_gives_the_same_bytes(tmp_path):
    """As if killed before the manifest's line, or before the segment was removed: same files, nothing doubled."""
    path = tmp_path / "t"
    with Store.open(path, writing=True, segment_bytes=2000) as store:
        for i in range(12):
            store.append(episode(f"e{(i * 5) % 12:02}"))
            store.annotate(Annotation(f"e{(i * 5) % 12:02}", "prm", AnnotationTarget(0), i / 4))
        expected = list(store.trajectories())
    shutil.copytree(path / "log", tmp_path / "log")

    def parquet() -> dict[str, bytes]:
        return {str(p.relative_to(path)): p.read_bytes() for p in path.rglob("*.parquet")}

    Store.open(path).seal()
    first, lines = parquet(), (path / "manifest.jsonl").read_bytes().splitlines(keepends=True)
    assert len(lines) > 2 and len(first) > 2 * len(lines)
    for kept in ([], lines[:2], lines):
        shutil.copytree(tmp_path / "log", path / "log", dirs_exist_ok=True)
        (path / "manifest.jsonl").write_bytes(b"".join(kept))
        assert list(Store.open(path).trajectories()) == expected
        Store.open(path).seal()
        assert parquet() == first and (path / "manifest.jsonl").read_bytes() == b"".join(lines)
        assert list_segments(path) == [] and list(Store.open(path).trajectories()) == expected
        assert len(list(Store.open(path).annotations())) == 12


def test_rows_of_a_sealed_part_are_sorted_by_id_and_read_in_append_order(tmp_path):
    with Store.open(tmp_path / "t", writing=True) as store:
        for name in ("c", "a", "b"):
            store.append(episode(name))
        store.seal()
        (part,) = (store.path / "parquet" / "trajectories").iterdir()
        assert pa.parquet.read_table(part)["traj"].to_pylist() == ["a", "b", "c"]
        assert ids(store) == ["c", "a", "b"]


ASKED = [
    {"world": "maze"},
    {"tier": ["evo", "seen"], "success": True},
    {"success": None},
    {"traj": "e3"},
    {"world": "nowhere"},
    {"task": episode("e5", world="maze").task.id},
    {"ended_by": "horizon", "kind": "fetch"},
    {"tier": ()},
    {"group": None, "sample": 0},
    {"run": "r"},
    {"run": "other"},
]


@pytest.mark.parametrize("where", ASKED, ids=str)
def test_where_is_a_filter_over_all(tmp_path, where):
    """Half sealed, half live: the answer is what a plain loop over everything keeps."""
    every = [
        episode(
            f"e{i}",
            world="maze" if i % 2 else "lookup",
            tier="evo" if i % 3 else "combo",
            success=(True, False, None)[i % 3],
            ended_by="horizon" if i % 4 == 0 else "world",
        )
        for i in range(12)
    ]
    with Store.open(tmp_path / "t", writing=True, run="r") as store:
        for i, trajectory in enumerate(every):
            if i == 6:
                store.seal()
            store.append(trajectory)

        def value(t, name):
            values = {
                "world": t.task.world,
                "tier": t.task.tier,
                "success": t.success,
                "traj": t.id,
                "run": "r",
                "task": t.task.id,
                "ended_by": t.ended_by,
                "kind": t.task.kind,
                "group": t.group,
                "sample": t.sample,
            }
            return values[name]

        def fits(t):
            return all(value(t, k) in v if isinstance(v, (list, tuple)) else value(t, k) == v for k, v in where.items())

        kept = [t for t in every if fits(t)]
        assert list(store.trajectories(filters=where)) == kept
        table = pa.Table.from_batches(store.scan(filters=where), _schema(store))
        assert table["traj"].to_pylist() == [t.id for t in kept]
        assert table["length"].to_pylist() == [len(t.steps) for t in kept]
        steps = [
            row
            for batch in store.scan(columns=["traj", "reward"], filters=where, table="steps")
            for row in batch.to_pylist()
        ]
        assert sorted(map(str, steps)) == sorted(str({"traj": t.id, "reward": s.reward}) for t in kept for s in t.steps)


def _schema(store: Store) -> pa.Schema:
    return next(store.scan()).schema


def test_unknown_columns_are_named_with_the_nearest(tmp_path):
    with Store.open(tmp_path / "t", writing=True) as store:
        with pytest.raises(ConfigError, match=r"'succes'.*did you mean 'success'(.|\n)*'wrold'"):
            list(store.trajectories(filters={"succes": True, "wrold": "x"}))
        with pytest.raises(ConfigError, match="'metta'"):
            list(store.scan(columns=["metta"]))


def test_prefix(tmp_path):
    with Store.open(tmp_path / "t", writing=True) as store:
        for name in ("s1/a", "s10/b", "s1/c", "s1/a%_"):
            store.append(episode(name))
        for _ in range(2):
            assert ids(store, prefix="s1/") == ["s1/a", "s1/c", "s1/a%_"]
            assert ids(store, prefix="s1/a%") == ["s1/a%_"] and ids(store, prefix="none") == []
            store.seal()


def test_get(tmp_path):
    with Store.open(tmp_path / "t", writing=True) as store:
        store.append(episode("a"))
        store.seal()
        store.append(episode("ab"))
        assert (store.get("a"), store.get("ab")) == (episode("a"), episode("ab"))
        with pytest.raises(SampleInvalid, match="does not hold a trajectory with this id: got b"):
            store.get("b")


def test_branches_are_joined_with_the_prefix_of_their_parents(tmp_path):
    """a has 4 steps; b leaves it at step 2 and has 3 of its own; c leaves b (5 steps as joined) at step 4."""
    a = episode("a", steps=4)
    b = replace(episode("b", steps=3), branch=Branch("a", 2))
    c = replace(episode("c", steps=1), branch=Branch("b", 4))
    with Store.open(tmp_path / "t", writing=True) as store:
        for trajectory in (
            a,
            b,
            c,
            replace(episode("d"), branch=Branch("e", 1)),
            replace(episode("e"), branch=Branch("d", 1)),
        ):
            store.append(trajectory)
        assert store.get("c") == c
        assert store.get("b", with_parent_steps=True).steps == a.steps[:2] + b.steps
        assert store.get("c", with_parent_steps=True).steps == a.steps[:2] + b.steps[:2] + c.steps
        assert store.get("a", with_parent_steps=True) == a
        with pytest.raises(SampleInvalid, match="branches form a cycle"):
            store.get("d", with_parent_steps=True)


def test_two_column_scan_of_sealed_parts_reads_columns_only(tmp_path):
    with Store.open(tmp_path / "t", writing=True) as store:
        for i in range(5):
            store.append(episode(f"e{i}", success=i % 2 == 0))
        for _ in range(2):
            batches = list(store.scan(columns=["success", "traj"]))
            assert all(batch.schema.names == ["success", "traj"] for batch in batches)
            rows = [row for batch in batches for row in batch.to_pylist()]
            assert rows == [{"success": i % 2 == 0, "traj": f"e{i}"} for i in range(5)]
            store.seal()


def test_misuse_is_refused_by_name(tmp_path):
    with pytest.raises(StoreUnavailable, match="is not a store"):
        Store.open(tmp_path / "none")
    with Store.open(tmp_path / "t", writing=True) as store:
        store.append(episode("a"))
        with pytest.raises(SampleInvalid, match="begin"):
            store.step("x", episode("x").steps[0])
        with pytest.raises(SampleInvalid, match="annotation of an unknown trajectory"):
            store.annotate(Annotation("x", "prm", AnnotationTarget(), 1.0))
        store.begin("b", TASK)
        with pytest.raises(SampleInvalid, match="ended_by and error of an episode contradict each other"):
            store.end("b", ended_by="error")
        with pytest.raises(ConfigError):
            store.seal(older_than=-1)
    with pytest.raises(StoreUnavailable, match="not open for writing"):
        store.append(episode("c"))
    with pytest.raises(StoreUnavailable, match="not open for writing"):
        Store.open(tmp_path / "t").append(episode("c"))
    assert ids(store) == ["a", "b"]


def test_young_segments_are_left_alone(tmp_path):
    with Store.open(tmp_path / "t", writing=True) as store:
        store.append(episode("a"))
        assert store.seal(older_than=3600).segments == 0
        assert store.seal().rows == {"trajectories": 1, "steps": 2, "annotations": 0}
        assert store.seal().segments == 0


def test_a_reader_that_began_before_sealing_goes_on_after_it(tmp_path):
    """Segments that vanish under a reader are read from the parts they became."""
    with Store.open(tmp_path / "t", writing=True, segment_bytes=1500) as store:
        for i in range(12):
            store.append(episode(f"e{i:02}"))
        reading = Store.open(store.path).ids()
        first = next(reading)
        store.seal()
        assert [first, *reading] == [f"e{i:02}" for i in range(12)]


def test_the_manifest_is_read_once_however_many_segments_there_are(tmp_path, monkeypatch):
    with Store.open(tmp_path / "t", writing=True, segment_bytes=1) as store:
        for i in range(8):
            store.append(episode(f"e{i}"))
        store.seal()
        reads = []
        monkeypatch.setattr(query, "read_seal_manifest", lambda root: reads.append(root) or read_seal_manifest(root))
        assert ids(store) == [f"e{i}" for i in range(8)]
        assert len(reads) == 1


def test_numbers_of_numpy_are_stored_as_numbers(tmp_path):
    with Store.open(tmp_path / "t", writing=True) as store:
        store.append(
            replace(episode("a"), steps=(Step("o", "a", np.float32(0.5)),), score=Score(np.float64(2), 1, True))
        )
        (found,) = store.trajectories()
        assert type(found.steps[0].reward) is float and found.score == Score(2.0, 1.0, True)
        for _ in range(2):  # live, then sealed; numpy's numbers are single values to ask for, too
            assert ids(store, filters={"sample": np.int64(0), "success": np.True_}) == ["a"]
            assert ids(store, filters={"sample": np.arange(1, 3)}) == []
            store.seal()
