"""Records: the form of a line, and that reading gives the same bits, from the log, from Parquet and from both."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import zlib
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stored import INF, annotations, bits, episode, generation, several

from evolvent.errors import SampleInvalid
from evolvent.store.columns import add_missing_fields, step_table
from evolvent.store.log import encode_line
from evolvent.store.schema import decode_trajectory, encode_trajectory
from evolvent.store.store import Store
from evolvent.trajectory import Score, Step


def test_a_line_by_hand():
    """The documented form, field by field, and its checksum computed anew."""
    trajectory = replace(episode("s/1", steps=1), score=Score(INF, 0.5, True))
    line = encode_line(encode_trajectory(trajectory), run="r", traj="s/1")
    assert line.endswith(b"}\n")
    row = json.loads(line)
    assert list(row)[:5] == ["v", "run", "traj", "n", "kind"]
    assert (row["v"], row["run"], row["traj"], row["n"], row["kind"]) == (1, "r", "s/1", 0, "trajectory")
    assert row["steps"] == [
        {
            "observation": "room 0",
            "action": "go 0",
            "reward": 0.0,
            "generations": [{"ids": [7, 0, 3], "sampled": "011", "logprobs": "AAAAAAAAwL4=", "policy_version": 0}],
        }
    ]
    assert row["score"] == ["inf", 0.5, True]
    body = line[: line.rindex(b',"crc":')] + b"}"
    assert row["crc"] == zlib.crc32(body)


def test_logprobs_are_left_out_only_where_they_are_plus_zero():
    one = generation(1, 2, 3, 4, read=2)
    negative = replace(one, logprobs=np.array([0, -0.0, -1, -2], np.float32))
    for kept, count in ((one, 2), (negative, 4)):
        trajectory = replace(episode("a", steps=0), steps=(Step("o", "a", generations=(kept,)),))
        row = encode_trajectory(trajectory)
        written = base64.b64decode(row["steps"][0]["generations"][0]["logprobs"])
        assert len(written) == 4 * count
        assert bits(decode_trajectory({**row, "traj": "a"})) == bits(trajectory)


def test_parquet_of_a_version_without_a_field_of_generations_is_read():
    """`model_logprobs` came later: older parts have no such column, and batches of both make one table."""
    step = Step("o", "a", generations=(generation(7, 1), generation(7, 2)))
    new = step_table([replace(episode("a"), steps=(step, Step("o", "b")))])
    generations = new.column("generations").combine_chunks()
    names = [field.name for field in generations.values.type if field.name != "model_logprobs"]
    structs = pa.StructArray.from_arrays([generations.values.field(name) for name in names], names)
    old = new.set_column(
        new.schema.get_field_index("generations"),
        "generations",
        pa.ListArray.from_arrays(generations.offsets, structs),
    )
    assert old.schema != new.schema
    upgraded = add_missing_fields(old)
    assert upgraded.equals(new) and add_missing_fields(new) is new
    assert pa.concat_tables([upgraded, new]).num_rows == 4
    assert add_missing_fields(old.drop_columns(["generations"])).num_rows == 2


@given(several(), st.integers(0, 5))
@settings(deadline=None, max_examples=50)
def test_log_and_parquet_and_both_are_equal(tmp_path_factory, wanted, cut):
    """Whatever is appended is read back bit by bit in the same order, however much of it is sealed."""
    folder = tmp_path_factory.mktemp("run") / "trajectories"
    ordered = [t for t in wanted if t.error is None or t.error.kind != "interrupted"]
    with Store.open(folder, writing=True) as store:
        for i, trajectory in enumerate(ordered):
            if i == cut:
                store.seal()
            store.append(trajectory)
        live = list(store.trajectories())
        store.seal()
        sealed = list(Store.open(folder).trajectories())
    assert live == sealed == ordered
    assert [bits(t) for t in live] == [bits(t) for t in sealed] == [bits(t) for t in ordered]
    assert all(store.get(t.id) == t for t in ordered[:2])


@given(st.lists(annotations, min_size=1, max_size=4))
@settings(deadline=None, max_examples=30)
def test_annotations_are_equal_too(tmp_path_factory, notes):
    with Store.open(tmp_path_factory.mktemp("run") / "t", writing=True) as store:
        store.append(episode("a"))
        for note in notes:
            store.annotate(note)
        assert list(store.annotations(trajectory="a")) == notes
        store.seal()
        assert list(store.annotations()) == notes
        assert list(store.annotations(scorer=notes[0].scorer)) == [n for n in notes if n.scorer == notes[0].scorer]
        assert list(store.annotations(trajectory="b")) == []


@pytest.mark.parametrize(
    "bad",
    [
        replace(episode("a"), score=Score(float("nan"), 1.0, True)),
        replace(episode("a"), steps=(Step("o", "a", reward=float("nan")),)),
        replace(episode("a"), meta={"loss": float("nan")}),
        replace(episode("a"), meta={"limit": INF}),
        replace(episode("a"), meta={"tool": object()}),
        replace(episode("a"), steps=(Step(np.array([None]), "a"),)),
        replace(episode("a"), steps=(Step(3, "a"),)),
        replace(
            episode("a"),
            steps=(
                Step("o", "a", generations=(replace(generation(1, 2), logprobs=np.array([0, np.nan], np.float32)),)),
            ),
        ),
        replace(episode("a"), id=""),
        replace(episode("a"), id="a\nb"),
    ],
)
def test_what_cannot_be_stored_is_refused_and_nothing_is_written(tmp_path, bad):
    with Store.open(tmp_path / "t", writing=True) as store:
        store.append(episode("first"))
        with pytest.raises(SampleInvalid):
            store.append(bad)
        store.append(episode("a"))
        assert [t.id for t in store.trajectories()] == ["first", "a"]


def test_half_surrogates_are_replaced_and_counted(tmp_path):
    """UTF-8 has no half surrogates; an episode that holds one is kept with a mark, not lost."""
    broken = replace(episode("a", steps=1), final_observation="left \ud800\udfff right")
    whole = replace(episode("b"), final_observation="\U0001f600 é")
    with Store.open(tmp_path / "t", writing=True) as store:
        store.append(broken)
        store.append(whole)
        expected = [replace(broken, final_observation="left \ufffd\ufffd right", meta={"replaced": 2}), whole]
        assert list(store.trajectories()) == expected
        store.seal()
        assert list(store.trajectories()) == expected


def test_none_stays_none(tmp_path):
    """A reward or score of None is not 0, in either form."""
    unscored = replace(episode("a", success=None), steps=(Step("o", "a", None), Step("o", "a", 0.0)))
    with Store.open(tmp_path / "t", writing=True) as store:
        store.append(unscored)
        for _ in range(2):
            (found,) = store.trajectories()
            assert found.rewards == (None, 0.0) and found.score == Score(None, None, None)
            store.seal()


def test_arrays_that_come_back_can_be_written(tmp_path):
    """PyTorch warns about read-only arrays; what the store gives is the reader's own."""
    with Store.open(tmp_path / "t", writing=True) as store:
        store.append(replace(episode("a"), final_observation=np.arange(3)))
        for _ in range(2):
            (found,) = store.trajectories()
            one = found.steps[0].generations[0]
            assert all(a.flags.writeable for a in (one.ids, one.sampled, one.logprobs, found.final_observation))
            assert (one.ids.dtype, one.sampled.dtype, one.logprobs.dtype) == (np.int32, np.bool_, np.float32)
            store.seal()


def test_the_log_needs_no_arrow():
    code = (
        "import sys, evolvent.store.log, evolvent.store.store; print('pyarrow' in sys.modules, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
