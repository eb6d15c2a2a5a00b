"""Fault 17: a log cut at every byte of its last record, a tail of zeros, a damaged byte elsewhere.

Reading ends with the last whole record and counts what was torn; damage in the midst is an error that names its place.
"""

from __future__ import annotations

import shutil

import pytest
from small_store import episode, filled, segment

from evolvent.errors import CorruptRecord
from evolvent.store.log import RecoveryReport
from evolvent.store.store import Store


def test_cut_or_zeroed_at_every_byte_of_the_last_record(tmp_path):
    """Readers see the episodes before it; recovery counts the bytes; a writer goes on."""
    path = tmp_path / "t"
    episodes = [episode(0), episode(1), episode(2, steps=0)]
    with Store.open(path, writing=True) as store:
        for trajectory in episodes:
            store.append(trajectory)
    file = segment(path)
    raw = file.read_bytes()
    last = raw[:-1].rindex(b"\n") + 1
    for cut in range(last, len(raw)):
        for tail in (b"", bytes(len(raw) - cut)):
            file.write_bytes(raw[:cut] + tail)
            assert list(Store.open(path).trajectories()) == episodes[:2]
            lost = cut - last + len(tail)
            assert Store.open(path).recover() == RecoveryReport(num_finished=2, dropped_bytes=lost, num_interrupted=0)
            assert file.read_bytes() == raw[:last]
            assert Store.open(path).recover() == RecoveryReport(2, 0, 0)
    file.write_bytes(raw[:-7])
    with Store.open(path, writing=True) as store:
        assert store.recover() == RecoveryReport(2, len(raw) - last - 7, 0)
        store.append(episodes[2])
        store.append(episode(3))
    assert list(Store.open(path).trajectories()) == [*episodes, episode(3)]


def test_a_log_that_is_nothing_but_a_torn_record(tmp_path):
    path = tmp_path / "t"
    filled(path, 1)
    file = segment(path)
    file.write_bytes(file.read_bytes()[:100])
    assert list(Store.open(path).trajectories()) == []
    with Store.open(path, writing=True) as store:
        assert store.recover() == RecoveryReport(0, 100, 0)
        store.append(episode(0))
    assert list(Store.open(path).trajectories()) == [episode(0)]


def test_a_flipped_bit_anywhere_names_file_and_offset(tmp_path):
    """No bit may change a record unseen: reading, recovering, sealing and writing all refuse, and change nothing."""
    path = tmp_path / "t"
    episodes = filled(path, 3)
    file = segment(path)
    raw = file.read_bytes()
    begin = raw.index(b"\n") + 1
    end = raw.index(b"\n", begin)
    for place in [*range(begin, end, 23), begin, end - 1]:
        changed = bytearray(raw)
        changed[place] ^= 4
        file.write_bytes(changed)
        reading = Store.open(path).trajectories()
        assert next(reading) == episodes[0]
        with pytest.raises(CorruptRecord) as error:
            next(reading)
        assert error.value.offset == begin and file.name in str(error.value) and str(begin) in str(error.value)
    for use in (
        lambda: Store.open(path).recover(),
        lambda: Store.open(path).seal(),
        lambda: Store.open(path, writing=True),
    ):
        with pytest.raises(CorruptRecord):
            use()
        assert file.read_bytes() == bytes(changed)
    file.write_bytes(raw)
    with Store.open(path, writing=True) as store:
        assert list(store.trajectories()) == episodes


def test_a_removed_line_of_a_streamed_episode_is_seen(tmp_path):
    path = tmp_path / "t"
    with Store.open(path, writing=True) as store:
        whole = episode(0, steps=3)
        store.begin(whole.id, whole.task)
        for step in whole.steps:
            store.step(whole.id, step)
        store.end(whole.id)
    file = segment(path)
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(lines[:2] + lines[3:]))
    with pytest.raises(CorruptRecord, match="lacks a line of trajectory") as error:
        list(Store.open(path).trajectories())
    assert error.value.offset == len(lines[0] + lines[1])


def test_a_damaged_sealed_part_names_its_file(tmp_path):
    path = tmp_path / "t"
    filled(path, 3)
    Store.open(path).seal()
    for table in ("trajectories", "steps"):
        (part,) = (path / "parquet" / table).iterdir()
        raw = part.read_bytes()
        shutil.copy(part, tmp_path / "copy")
        for changed in (raw[:20] + bytes([raw[20] ^ 1]) + raw[21:], raw[:-30], b""):
            part.write_bytes(changed)
            with pytest.raises(CorruptRecord, match=part.name):
                list(Store.open(path).trajectories())
        shutil.copy(tmp_path / "copy", part)
    assert len(list(Store.open(path).trajectories())) == 3
