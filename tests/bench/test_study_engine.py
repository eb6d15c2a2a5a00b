"""`benchmarks.study`: loose cells and the archive hold the same rows, and packing never loses one."""

import fcntl
import gzip
import json

import pytest

from benchmarks import study
from benchmarks.reporting import RESULTS
from benchmarks.study import (
    ARCHIVE,
    pack,
    play_once,
    read_cells,
    read_rows,
    study_run,
    summary_path,
    unpack,
    unpacked_copy,
    write_cell,
)
from evolvent.errors import ConfigError


def fill(folder, count=3):
    for number in range(count):
        write_cell(folder, f"a-{number}", {"digest": "d", "value": number / 3})


def test_pack_moves_loose_cells_into_the_archive(tmp_path):
    fill(tmp_path)
    write_cell(tmp_path, "b", {"digest": "other"}, kind="votes")
    before, votes = read_rows(tmp_path), read_rows(tmp_path, "votes-*")
    assert pack(tmp_path) == 4
    assert [path.name for path in tmp_path.iterdir()] == [ARCHIVE]
    assert read_rows(tmp_path) == before and read_rows(tmp_path, "votes-*") == votes
    lines = [json.loads(line) for line in gzip.decompress((tmp_path / ARCHIVE).read_bytes()).splitlines()]
    assert [line["key"] for line in lines] == ["cell-a-0", "cell-a-1", "cell-a-2", "votes-b"]


def test_pack_without_loose_cells_changes_nothing(tmp_path):
    assert pack(tmp_path) == 0 and not list(tmp_path.iterdir())


def test_pack_of_the_same_rows_writes_the_same_bytes(tmp_path):
    fill(tmp_path / "a")
    pack(tmp_path / "a")
    fill(tmp_path / "b", count=1)
    pack(tmp_path / "b")
    fill(tmp_path / "b")
    pack(tmp_path / "b")
    assert (tmp_path / "a" / ARCHIVE).read_bytes() == (tmp_path / "b" / ARCHIVE).read_bytes()


def test_loose_cell_replaces_the_archived_one(tmp_path):
    fill(tmp_path)
    pack(tmp_path)
    write_cell(tmp_path, "a-1", {"digest": "d", "value": "new"})
    assert [row["value"] for row in read_cells(tmp_path, "d")] == [0.0, "new", 2 / 3]
    pack(tmp_path)
    assert [row["value"] for row in read_cells(tmp_path, "d")] == [0.0, "new", 2 / 3]


def test_once_does_not_play_an_archived_cell_again(tmp_path):
    fill(tmp_path)
    pack(tmp_path)
    assert play_once(tmp_path, "a-1", "d", lambda: pytest.fail("was played again")) is None
    assert play_once(tmp_path, "a-1", "another protocol", lambda: {"digest": "another protocol"}) is not None


def test_archive_that_does_not_read_back_equal_leaves_the_loose_cells(tmp_path, monkeypatch):
    fill(tmp_path)
    monkeypatch.setattr(study, "write_atomic", lambda path, data: None)
    with pytest.raises(ConfigError, match="does not read back equal"):
        pack(tmp_path)
    assert len(list(tmp_path.glob("cell-*.json"))) == 3


def test_playing_packs_after_a_run(tmp_path):
    with study_run(tmp_path):
        fill(tmp_path)
    assert not list(tmp_path.glob("cell-*.json")) and len(read_cells(tmp_path, "d")) == 3


def test_playing_leaves_loose_cells_after_an_error(tmp_path):
    with pytest.raises(KeyboardInterrupt), study_run(tmp_path):
        fill(tmp_path)
        raise KeyboardInterrupt
    assert len(list(tmp_path.glob("cell-*.json"))) == 3


def test_playing_does_not_pack_while_another_process_plays(tmp_path):
    with study_run(tmp_path):
        fill(tmp_path)
        with (tmp_path / "locks" / "players").open("a") as other:
            fcntl.flock(other, fcntl.LOCK_SH)
            with study_run(tmp_path):
                pass
            assert len(list(tmp_path.glob("cell-*.json"))) == 3
    assert not list(tmp_path.glob("cell-*.json"))


def test_controlled_study_is_packed_and_unpacked(tmp_path):
    result = tmp_path / "results" / "base" / "1000.json"
    result.parent.mkdir(parents=True)
    result.write_text(json.dumps({"format": 1, "arm": "base"}), encoding="utf-8")
    (tmp_path / "study.json").write_text('{"digest": "d"}', encoding="utf-8")
    pack(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [ARCHIVE]
    assert read_rows(tmp_path, "study") == {"study": {"digest": "d"}} and read_cells(tmp_path, "d") == []
    with unpacked_copy(tmp_path) as copy:
        assert json.loads((copy / "results" / "base" / "1000.json").read_text(encoding="utf-8"))["arm"] == "base"
        assert (copy / "study.json").exists()
    assert not (tmp_path / "results").exists()
    unpack(tmp_path)
    assert json.loads(result.read_text(encoding="utf-8")) == {"format": 1, "arm": "base"}


def test_summary_of_a_study_stands_beside_its_folder_in_results(tmp_path):
    assert summary_path(RESULTS / "search", "search_quality") == RESULTS / "search_quality.json"
    assert summary_path(tmp_path, "search_quality") == tmp_path / "search_quality.json"


def test_every_committed_cell_is_in_an_archive():
    loose = [path for pattern in study._LOOSE for path in RESULTS.glob(f"*/{pattern}")]
    assert not loose, "pack them: python -m benchmarks.study --pack FOLDER"


def test_work_for_processes_is_not_in_a_main_module():
    """A spawned process does not import a package's `__main__`, so it cannot unpickle a function of it."""
    mains = sorted(RESULTS.parent.glob("*/__main__.py"))
    assert mains and not [path for path in mains if "run_in_processes(" in path.read_text(encoding="utf-8")]
