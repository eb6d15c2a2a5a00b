"""Fault 23: records of a newer program. Fields it added are kept; a form that cannot be read is refused by name."""

from __future__ import annotations

import json
import zlib
from dataclasses import replace

import pyarrow.parquet as pq
import pytest
from small_store import episode, filled, segment

from evolvent.errors import SampleInvalid, UnknownSchema
from evolvent.store.exchange import read_jsonl, write_jsonl
from evolvent.store.log import encode_line
from evolvent.store.schema import encode_trajectory
from evolvent.store.store import Store


def line_of(record: dict) -> bytes:
    body = json.dumps(record, separators=(",", ":")).encode()
    return body[:-1] + b',"crc":%d}\n' % zlib.crc32(body)


def newer_record() -> dict:
    """An episode with a new field at every level."""
    record = json.loads(encode_line(encode_trajectory(episode(0)), run="r", traj="e0"))
    del record["crc"]
    record |= {"clock": 12.5, "a.b": [1]}
    record["task"]["language"] = "de"
    record["steps"][1]["seconds"] = None
    record["steps"][0]["generations"][0]["entropy"] = [0.5, 1]
    return record


def test_new_fields_live_through_sealing_and_export(tmp_path):
    path = tmp_path / "t"
    filled(path, 1)
    segment(path).write_bytes(line_of(newer_record()))
    for _ in range(2):
        (found,) = Store.open(path).trajectories()
        assert replace(found, meta={}) == episode(0)
        write_jsonl([found], tmp_path / "out.jsonl", run="r")
        written = json.loads((tmp_path / "out.jsonl").read_bytes())
        written.pop("crc")
        assert written == newer_record()
        assert list(read_jsonl(tmp_path / "out.jsonl")) == [found]
        Store.open(path).seal()
    copied = replace(found, id="copy", steps=found.steps[:1])
    with Store.open(path, writing=True) as store:
        store.append(copied)
        assert store.get("copy").steps == found.steps[:1], "a field of a step that is gone stays beside it"
        assert [["steps", 1, "seconds"], None] in store.get("copy").meta["_unknown"]


@pytest.mark.parametrize("version", [2, 99, 0, -1])
def test_another_version_is_refused_with_both_numbers(tmp_path, version):
    path = tmp_path / "t"
    episodes = filled(path, 2)
    file = segment(path)
    raw = file.read_bytes()
    file.write_bytes(raw + line_of({**newer_record(), "v": version}))
    reading = Store.open(path).trajectories()
    assert [next(reading), next(reading)] == episodes
    with pytest.raises(UnknownSchema, match=rf"byte {len(raw)}: got {version}, expected version 1"):
        next(reading)
    with pytest.raises(UnknownSchema):
        Store.open(path, writing=True)
    with pytest.raises(UnknownSchema):
        Store.open(path).seal()
    assert file.read_bytes().startswith(raw)


def test_another_order_of_fields_is_read_all_the_same(tmp_path):
    """The quick way to a record's id depends on the order of its fields; the meaning does not."""
    path = tmp_path / "t"
    filled(path, 1)
    record = newer_record()
    segment(path).write_bytes(line_of(dict(reversed(record.items()))))
    assert replace(next(Store.open(path).trajectories()), meta={}) == episode(0)


@pytest.mark.parametrize(
    "broken",
    [
        {"steps": 3},
        {"task": None},
        {"steps": [{}]},
        {"ended_by": "error"},
        {"score": [1]},
        {"branch": [1]},
        {"steps": [{"observation": {"dtype": "O", "shape": [1], "data": "AAAAAAAAAAA="}, "action": ""}]},
        {
            "steps": [
                {"observation": "", "action": "", "generations": [{"ids": [1, 2], "sampled": "0", "logprobs": ""}]}
            ]
        },
    ],
    ids=str,
)
def test_a_whole_line_that_is_no_trajectory_names_it(tmp_path, broken):
    path = tmp_path / "t"
    filled(path, 1)
    segment(path).write_bytes(line_of({**newer_record(), **broken}))
    with pytest.raises(SampleInvalid, match="'e0' is not a trajectory"):
        list(Store.open(path).trajectories())


def test_a_newer_sealed_part_is_refused(tmp_path):
    path = tmp_path / "t"
    filled(path, 1)
    Store.open(path).seal()
    (part,) = (path / "parquet" / "trajectories").iterdir()
    table = pq.read_table(part)
    pq.write_table(table.replace_schema_metadata({b"evolvent_schema": b"2"}), part)
    with pytest.raises(UnknownSchema, match="got 2, expected version 1"):
        list(Store.open(path).trajectories())
