"""Stages over shards: the bytes of one worker, whoever works; a killed run goes on; bad rows are told."""

import hashlib
import json
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from repeating_stages import Slow, Times

from evolvent.curate.shards import list_shards, read_shard, write_rows
from evolvent.curate.stages import apply_stages, shard_cache_path, transform
from evolvent.errors import ConfigError, CorruptRecord, NothingToLearn, SampleInvalid

ROWS = [{"n": n, "text": f"row {n} \u2028 ä"} for n in range(25)]


def written(path, rows=ROWS):
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


def all_rows(path, rows=1000):
    return [row for shard in list_shards(path, rows=rows) for _, row in read_shard(shard)]


@pytest.mark.parametrize("size", [1, 4, 25, 1000])
def test_every_form_reads_alike(tmp_path, size):
    lines = written(tmp_path / "a.jsonl")
    (tmp_path / "b.json").write_text(json.dumps(ROWS))
    pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / "c.parquet", row_group_size=7)
    datasets.Dataset.from_list(ROWS).save_to_disk(str(tmp_path / "d"))
    for path in (lines, tmp_path / "b.json", tmp_path / "c.parquet", tmp_path / "d"):
        found = list_shards(path, rows=size)
        assert all_rows(path, size) == ROWS
        assert sum(shard.count for shard in found) == 25 and len(found) == -(-25 // size)
        assert [place for shard in found for place, _ in read_shard(shard)] == list(range(25))
    assert len(all_rows(tmp_path)) == 100, "a folder is all its files"


@settings(max_examples=30, deadline=None)
@given(st.lists(st.text(max_size=8), max_size=12), st.integers(1, 5))
def test_any_lines_are_read_or_told(tmp_path_factory, lines, size):
    path = tmp_path_factory.mktemp("lines") / "x.jsonl"
    path.write_bytes("\n".join(lines).encode("utf-8", "replace"))
    data = [line for line in path.read_bytes().split(b"\n") if line.strip()]
    found = [row for shard in list_shards(path, rows=size) for _, row in read_shard(shard)]
    assert len(found) == len(data)


def test_workers_give_the_bytes_of_one(tmp_path):
    shards = list_shards(written(tmp_path / "a.jsonl"), rows=4)
    sums = set()
    for workers in (1, 2, 5):
        done = transform(
            shards, [Times()], tmp_path / f"{workers}.jsonl", cache=tmp_path / f"c{workers}", workers=workers
        )
        sums.add(hashlib.sha256((tmp_path / f"{workers}.jsonl").read_bytes()).hexdigest())
        assert (done.read, done.rows, done.refused, done.reused) == (25, 42, {"a multiple of seven": 4}, 0)
        assert done.messages[0].startswith("a.jsonl, row 0: a multiple of seven")
    assert sums == {done.sha256}
    assert all_rows(tmp_path / "1.jsonl") == list(apply_stages([Times()], ROWS))


def test_finished_shards_are_found_again(tmp_path):
    path, cache = written(tmp_path / "a.jsonl"), tmp_path / "cache"
    transform(list_shards(path, rows=5), [Times()], tmp_path / "o.jsonl", cache=cache)
    whole = (tmp_path / "o.jsonl").read_bytes()
    told = []
    done = transform(
        list_shards(path, rows=5), [Times()], tmp_path / "o.jsonl", cache=cache, progress=lambda *at: told.append(at)
    )
    assert done.reused == done.shards == 5 and not told and (tmp_path / "o.jsonl").read_bytes() == whole
    written(path, [*ROWS[:-1], {"n": 100, "text": "another"}])
    done = transform(
        list_shards(path, rows=5), [Times()], tmp_path / "o.jsonl", cache=cache, progress=lambda *at: told.append(at)
    )
    assert done.reused == 4 and told == [(5, 5)]
    first = list_shards(path)[0]
    prints = {
        shard_cache_path(stages, first, cache)
        for stages in ([], [Times()], [Times(3)], [Times(), Times()], [replace(Times(), version=2)], [Slow(2, "slow")])
    }
    assert len(prints) == 6


def test_a_killed_run_goes_on_to_the_same_bytes(tmp_path):
    path, cache = written(tmp_path / "a.jsonl"), tmp_path / "cache"
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); from pathlib import Path; "
        "from repeating_stages import Slow; "
        "from evolvent.curate.shards import list_shards; from evolvent.curate.stages import transform; "
        "folder = Path(sys.argv[2]); transform(list_shards(folder / 'a.jsonl', rows=2), [Slow()], "
        "folder / 'o.jsonl', cache=folder / 'cache')"
    )
    process = subprocess.Popen([sys.executable, "-c", program, str(Path(__file__).parent), str(tmp_path)])
    while len(list(cache.glob("*.json"))) < 3:
        assert process.poll() is None
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (tmp_path / "o.jsonl").exists()
    done = transform(list_shards(path, rows=2), [Slow()], tmp_path / "o.jsonl", cache=cache)
    assert 3 <= done.reused < done.shards == 13
    assert all_rows(tmp_path / "o.jsonl") == list(apply_stages([Times()], ROWS))


def test_bad_rows_are_told_and_the_others_go_on(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"n": 1}\n[1]\n\nno json\n{"n": 2}\n\xff\xfe\n' + b'{"n":' + b"[" * 100_000)
    done = transform(list_shards(path), [Times(1)], tmp_path / "o.jsonl", cache=tmp_path / "c")
    assert (done.read, done.rows) == (6, 2) and done.refused == {"the row is not an object": 4}
    assert [line.split(":")[0] for line in done.messages][:2] == ["a.jsonl, row 1", "a.jsonl, row 3"]
    with pytest.raises(NothingToLearn, match="no row is left"):
        transform(
            list_shards(written(tmp_path / "b.jsonl", [{"n": 7}])),
            [Times()],
            tmp_path / "o.jsonl",
            cache=tmp_path / "c",
        )
    empty = transform(
        list_shards(written(tmp_path / "b.jsonl", [{"n": 7}])),
        [Times()],
        tmp_path / "e.jsonl",
        cache=tmp_path / "c",
        may_be_empty=True,
    )
    assert empty.rows == 0 and (tmp_path / "e.jsonl").read_bytes() == b""


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(ConfigError, match="does not hold data"):
        list_shards(tmp_path)
    (tmp_path / "a.xlsx").write_text("a,b")
    with pytest.raises(ConfigError, match="not a data file"):
        list_shards(tmp_path / "a.xlsx")
    for name in ("a.json", "a.parquet", "a.arrow"):
        (tmp_path / name).write_bytes(b"{}")
        with pytest.raises(CorruptRecord, match=f"is not valid {name[2:]}"):
            list_shards(tmp_path / name)
    path = written(tmp_path / "a.jsonl")
    (shard,) = list_shards(path)
    path.write_bytes(path.read_bytes().replace(b"row 3", b"row 4"))
    with pytest.raises(CorruptRecord, match="has changed"):
        list(read_shard(shard))
    with pytest.raises(ConfigError, match="at least one row"):
        list_shards(path, rows=0)
    with pytest.raises(ConfigError, match=r"\.jsonl or \.parquet"):
        write_rows(tmp_path / "a.txt", [])
    with pytest.raises(SampleInvalid, match="rows do not form a table"):
        write_rows(tmp_path / "b.parquet", [{"a": 1}, {"a": "x"}])
    assert not (tmp_path / "b.parquet").exists()


def test_rows_come_back_from_what_is_written(tmp_path):
    for name in ("a.jsonl", "a.parquet"):
        count, digest = write_rows(tmp_path / name, ROWS)
        assert count == 25 and all_rows(tmp_path / name) == ROWS
        assert digest == hashlib.sha256((tmp_path / name).read_bytes()).hexdigest()


def test_what_a_table_would_lose_is_refused(tmp_path):
    rows = [{"a": 1}, {"a": 2, "label": "kept"}, {"label": None}]
    write_rows(tmp_path / "a.parquet", rows)
    assert all_rows(tmp_path / "a.parquet") == [{"a": 1, "label": None}, rows[1], {"a": None, "label": None}]
    for bad in ([{"p": {"x": 1}}, {"p": {"y": 2}}], [{"a": 2**70}], [{"a": "\ud800"}]):
        with pytest.raises(SampleInvalid, match="rows do not form a table"):
            write_rows(tmp_path / "b.parquet", bad)
        assert not (tmp_path / "b.parquet").exists()
    with pytest.raises(SampleInvalid, match="holds a value that is not JSON"):
        write_rows(tmp_path / "b.jsonl", [{"a": float("nan")}])


def test_folders_that_datasets_saved(tmp_path):
    both = datasets.DatasetDict({name: datasets.Dataset.from_list(ROWS[:n]) for name, n in (("train", 5), ("test", 3))})
    both.save_to_disk(str(tmp_path / "d"))
    with pytest.raises(ConfigError, match="choose one:"):
        list_shards(tmp_path / "d")
    loaded = datasets.load_from_disk(str(tmp_path / "d" / "test"))
    loaded.map(lambda row: {"m": row["n"] * 2})
    assert all_rows(tmp_path / "d" / "test") == ROWS[:3], "what was cached there is not of it"


@pytest.mark.parametrize("name", ["a.json", "a.parquet"])
def test_a_file_that_changed_is_not_kept_under_its_old_digest(tmp_path, name):
    def put(rows):
        if name.endswith("json"):
            (tmp_path / name).write_text(json.dumps(rows))
        else:
            write_rows(tmp_path / name, rows)

    put([{"n": 1}])
    old = list_shards(tmp_path / name)
    put([{"n": 9}, {"n": 8}])
    with pytest.raises(CorruptRecord, match="has changed"):
        transform(old, [], tmp_path / "o.jsonl", cache=tmp_path / "c")


def test_a_shard_that_was_touched_is_made_again(tmp_path):
    shards, cache = list_shards(written(tmp_path / "a.jsonl"), rows=5), tmp_path / "cache"
    transform(shards, [Times()], tmp_path / "o.jsonl", cache=cache)
    whole = (tmp_path / "o.jsonl").read_bytes()
    kept = sorted(cache.glob("*.jsonl"))
    kept[0].unlink()
    kept[1].write_bytes(b"{}\n")
    done = transform(shards, [Times()], tmp_path / "o.jsonl", cache=cache)
    assert done.reused == 3 and (tmp_path / "o.jsonl").read_bytes() == whole


def test_rows_of_a_stage_that_are_no_json_are_refused(tmp_path):
    @dataclass(frozen=True)
    class Spoils(Times):
        def __call__(self, row):
            return [{"n": float("nan") if row["n"] % 2 else row["n"]}]

    shards = list_shards(written(tmp_path / "a.jsonl"))
    done = transform(shards, [Spoils(1, "spoils")], tmp_path / "o.jsonl", cache=tmp_path / "c")
    assert done.rows == 13 and done.refused == {"the row holds a value that is not JSON": 12}


def test_a_parquet_file_is_read_once_for_all_of_its_shards(tmp_path, monkeypatch):
    """Else the time for a file would grow with its square; whatever the order, the rows are the same."""
    pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / "a.parquet", row_group_size=7)
    shards, opened = list_shards(tmp_path / "a.parquet", rows=2), []
    file = pq.ParquetFile
    monkeypatch.setattr(pq, "ParquetFile", lambda path: opened.append(path) or file(path))
    assert [row for shard in shards for row in read_shard(shard)] == list(enumerate(ROWS))
    assert len(opened) == 1
    backwards = [list(read_shard(shard)) for shard in reversed(shards)]
    assert [row for part in reversed(backwards) for row in part] == list(enumerate(ROWS))
    at_once = [read_shard(shard) for shard in shards[:3]]
    assert [next(one)[0] for one in at_once] == [0, 2, 4] and [next(one)[0] for one in at_once] == [1, 3, 5]
    written_anew = [{**row, "n": -1} for row in ROWS]
    begun = read_shard(shards[0])
    assert next(begun)[1] == ROWS[0]
    begun.close()
    pq.write_table(pa.Table.from_pylist(written_anew), tmp_path / "a.parquet", row_group_size=7)
    assert all_rows(tmp_path / "a.parquet", 2) == written_anew
