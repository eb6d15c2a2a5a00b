"""A corpus of tokens on disk equals the sequences it was made of; it is whole or absent; damage is found."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from dataclasses import fields, replace
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from byte_policy import byte_policy
from hypothesis import given, settings
from hypothesis import strategies as st
from small_training import small_config, small_parts, small_policy

from evolvent.errors import (
    BatchMismatch,
    ConfigError,
    HashMismatch,
    Incomplete,
    Locked,
    NothingToLearn,
    StoreUnavailable,
    UnknownSchema,
)
from evolvent.learn.learner import Learner
from evolvent.learn.objectives import weighted_nll
from evolvent.learn.rows import ReadingConfig, read_rows
from evolvent.learn.sources import file_digest, read_json_lines, source_digest, vocabulary_digest
from evolvent.learn.token_sequences import TokenSequence
from evolvent.learn.tokens import BLOCK, TokenFile, write_tokens
from evolvent.learn.trees import add_branches
from evolvent.learn.windows import Intake, text_sequence
from evolvent.store.lock import WriterLock

ARRAYS = [
    entry.name
    for entry in fields(TokenSequence)
    if entry.name in ("ids", "written", "sampled", "logprobs", "step", "span", "weight")
]


def check_equal(one: TokenSequence, other: TokenSequence) -> None:
    assert (one.trajectory, one.group, one.reward, one.unit, one.feed) == (
        other.trajectory,
        other.group,
        other.reward,
        other.unit,
        other.feed,
    )
    assert set(one.columns) == set(other.columns)
    pairs = [(getattr(one, name), getattr(other, name)) for name in ARRAYS]
    for a, b in [*pairs, *((one.columns[name], other.columns[name]) for name in one.columns)]:
        assert a.dtype == b.dtype and a.shape == b.shape and np.array_equal(a, b, equal_nan=a.dtype.kind == "f")


def some(number: int, length: int, *, rng: np.random.Generator, columns: bool = True) -> TokenSequence:
    written = rng.random(length) < 0.5
    return TokenSequence(
        f"trajectory {number} \ud800 é",
        rng.integers(0, 1 << 31, length).astype(np.int32),
        written,
        written & (rng.random(length) < 0.5),
        rng.normal(size=length).astype(np.float32),
        np.sort(rng.integers(0, 4, length)).astype(np.int32),
        rng.integers(-1, 3, length).astype(np.int32),
        np.concatenate([[0], rng.choice([0.0, 0.5, -1.0], max(0, length - 1))])[:length].astype(np.float32),
        [None, "group"][int(rng.integers(2))],
        [None, 0.1, -3.0][int(rng.integers(3))],
        [None, 1.0][int(rng.integers(2))],
        {
            "reference": rng.choice([np.nan, -1.5], length).astype(np.float32),
            "teacher_ids": rng.integers(0, 9, (length, 3)).astype(np.int32),
            "flag": rng.random((length, 2, 2)) < 0.5,
        }
        if columns
        else {},
    )


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(0, 30), min_size=1, max_size=12), st.integers(0, 99), st.booleans())
def test_it_equals_the_list_it_came_from(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], seed: int, columns: bool
) -> None:
    rng = np.random.default_rng(seed)
    made = [some(number, length, rng=rng, columns=columns) for number, length in enumerate(lengths)]
    made.append(text_sequence("last", [1, 2, 3]))
    made[-1] = replace(
        made[-1],
        columns={name: np.zeros((3, *column.shape[1:]), column.dtype) for name, column in made[0].columns.items()},
    )
    found = write_tokens(tmp_path_factory.mktemp("tokens") / "corpus", iter(made))
    assert len(found) == len(made) and found.tokens == sum(map(len, made))
    assert found.feeds.tolist() == [parts.feed for parts in made]
    assert found.targets_each.tolist() == [int((parts.weight[1:] != 0).sum()) for parts in made]
    assert found.targets == found.targets_each.sum()
    for one, other in zip(found, made, strict=True):
        check_equal(one, other)
    for index in rng.integers(-len(made), len(made), 5).tolist():
        check_equal(found[index], made[index])
    for one, other in zip(found[1:9:2], made[1:9:2], strict=True):
        check_equal(one, other)
    for wrong in (len(made), -len(made) - 1):
        with pytest.raises(IndexError, match=f"sequence {wrong} of {len(made)}"):
            found[wrong]
    found.verify()


def corpus(count: int, *, length: int = 400, rng: int = 0) -> Iterator[TokenSequence]:
    random = np.random.default_rng(rng)
    for number in range(count):
        yield text_sequence(f"d{number}", random.integers(0, 1 << 30, length).astype(np.int32))


def test_what_is_equal_everywhere_takes_no_room(tmp_path: Path) -> None:
    found = write_tokens(tmp_path / "c", corpus(50))
    names = {path.name for path in found.folder.iterdir()}
    assert names == {
        "ids.bin",
        "weight.bin",
        "offsets.bin",
        "feeds.bin",
        "notes.bin",
        "notes_at.bin",
        "blocks.bin",
        "manifest.json",
    } - {"feeds.bin"}
    assert sum(path.stat().st_size for path in found.folder.iterdir()) < 20_000 * 8 * 1.2
    assert not found[3].ids.flags.writeable and not found[3].logprobs.flags.writeable


def test_the_files_do_not_depend_on_how_they_were_written(tmp_path: Path) -> None:
    """Arrays that begin with equal rows are filled up later; blocks end where they end."""
    rng = np.random.default_rng(0)
    plain = [text_sequence(f"d{number}", rng.integers(0, 9, 50_000)) for number in range(12)]
    late = replace(plain[-1], logprobs=np.linspace(-1, 0, 50_000, dtype=np.float32))
    found = write_tokens(tmp_path / "c", [*plain[:-1], late])
    raw = np.fromfile(found.folder / "logprobs.bin", "<f4")
    assert raw.nbytes > 2 * BLOCK and not raw[:550_000].any() and np.array_equal(raw[550_000:], late.logprobs)
    check_equal(found[10], plain[10])
    check_equal(found[11], late)
    found.verify()
    digests = (found.folder / "blocks.bin").read_bytes()
    ids = (found.folder / "ids.bin").read_bytes()
    wanted = [hashlib.sha256(ids[at : at + BLOCK]).digest() for at in range(0, len(ids), BLOCK)]
    assert digests.startswith(b"".join(wanted)) and len(wanted) == 3


def test_branches_have_no_place_in_it(tmp_path: Path) -> None:
    """They are refused, and not flattened to one text that nobody wrote."""
    tree = add_branches(text_sequence("one", [1, 2, 3]), [(1, [7, 8])], {})
    with pytest.raises(BatchMismatch, match="'one' has branches"):
        write_tokens(tmp_path / "tokens", [tree])
    assert not (tmp_path / "tokens").exists()


def test_memory_is_constant(tmp_path: Path) -> None:
    def peak(count: int) -> int:
        folder = tmp_path / f"c{count}"
        tracemalloc.start()
        found = write_tokens(folder, corpus(count, length=2000))
        total = sum(int(parts.ids[0]) for parts in found)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert total and (folder / "ids.bin").stat().st_size == count * 8000
        return peak

    peak(10)
    small, large = peak(50), peak(1000)  # 0.4 MB and 8 MB of tokens
    assert large < small + 1_000_000


# ------------------------------------------------------------------ once, whole or absent


def test_the_same_source_is_not_done_twice(tmp_path: Path) -> None:
    def never() -> Iterator[TokenSequence]:
        raise RuntimeError("read again")
        yield

    first = write_tokens(tmp_path / "c", corpus(5), source="abc", vocabulary="words")
    again = write_tokens(tmp_path / "c", never(), source="abc")
    assert again.digest == first.digest and (again.source, again.vocabulary) == ("abc", "words")
    assert len(again) == 5
    for source in ("abd", None):
        with pytest.raises(ConfigError, match="tokens of another source: got abc"):
            write_tokens(tmp_path / "c", never(), source=source)
    (tmp_path / "notes").mkdir()
    with pytest.raises(ConfigError, match="already exists"):
        write_tokens(tmp_path / "notes", never(), source="abc")


def test_the_digest_is_of_the_content(tmp_path: Path) -> None:
    digests = {
        name: write_tokens(tmp_path / name, parts, source=name).digest
        for name, parts in (("a", corpus(5)), ("b", corpus(5)), ("c", corpus(5, rng=1)), ("d", corpus(6)))
    }
    assert digests["a"] == digests["b"] and len(set(digests.values())) == 3
    only_weights = [replace(parts, weight=parts.weight * 2) for parts in corpus(5)]
    assert write_tokens(tmp_path / "e", only_weights).digest not in digests.values()


def test_a_source_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def failing() -> Iterator[TokenSequence]:
        yield from corpus(20)
        raise ValueError("no more")

    with pytest.raises(ValueError, match="no more"):
        write_tokens(tmp_path / "c", failing())
    assert [path.name for path in tmp_path.iterdir()] == [".c.lock"]
    with pytest.raises(NothingToLearn, match=r"got 0 sequences, 2 rows refused. r0: unknown row format"):
        tally = Intake()
        rows = read_rows([("r0", 1), ("r1", 2)], byte_policy(), ReadingConfig(), intake=tally)
        write_tokens(tmp_path / "c", rows, intake=tally)
    other = replace(next(corpus(1)), columns={"x": np.zeros(400, np.float32)})
    with pytest.raises(BatchMismatch, match=r"columns of sequence 'd0' differ from earlier sequences: got \['x'\]"):
        write_tokens(tmp_path / "c", [*corpus(1), other])
    wide = replace(other, columns={"x": np.zeros((400, 2), np.float32)})
    with pytest.raises(BatchMismatch, match=r"rows of column-0 differ.*got float32 \(2,\)"):
        write_tokens(tmp_path / "c", [other, wide])
    with pytest.raises(BatchMismatch, match="does not hold numbers"):
        write_tokens(tmp_path / "c", [replace(other, columns={"x": np.asarray(["a"] * 400)})])
    with pytest.raises(BatchMismatch, match="a score of 'd0' is not finite"):
        write_tokens(tmp_path / "c", [replace(other, reward=float("nan"))])
    assert [path.name for path in tmp_path.iterdir()] == [".c.lock"]
    assert len(write_tokens(tmp_path / "c", corpus(3))) == 3


WRITER = """
import os, resource, signal, sys
from pathlib import Path
from evolvent.errors import NoSpace
from evolvent.learn.tokens import write_tokens
from evolvent.learn.windows import text_sequence

def corpus(die):
    for number in range(3000):
        if number == die:
            os.kill(os.getpid(), signal.SIGKILL)
        yield text_sequence(str(number), range(number, number + 400))

folder, die, limit = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
if limit:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
try:
    write_tokens(folder, corpus(die), source="s")
except NoSpace:
    sys.exit(28)
"""


def write_elsewhere(folder: Path, *, die: int = -1, limit: int = 0) -> int:
    """Write a corpus in a process that dies after so many sequences, or may not write files above a size."""
    source = str(Path(__file__).parents[2] / "src")
    words = [sys.executable, "-c", WRITER, str(folder), str(die), str(limit)]
    return subprocess.run(words, env={**os.environ, "PYTHONPATH": source}, timeout=300).returncode


def test_a_kill_in_the_middle_leaves_nothing_half(tmp_path: Path) -> None:
    folder = tmp_path / "c"
    assert write_elsewhere(folder, die=2000) == -signal.SIGKILL
    assert not folder.exists() and (tmp_path / ".c.part~" / "ids.bin").stat().st_size > 1 << 20
    found = write_tokens(folder, corpus(7), source="s")  # the lock went with its process
    assert len(found) == 7 and sorted(path.name for path in tmp_path.iterdir()) == [".c.lock", "c"]
    found.verify()


def test_two_writers_and_a_full_disk(tmp_path: Path) -> None:
    lock = WriterLock(tmp_path / ".c.lock")
    with pytest.raises(Locked, match="has a writer"):
        write_tokens(tmp_path / "c", corpus(1))
    lock.release()
    assert write_elsewhere(tmp_path / "c", limit=1 << 19) == 28
    assert [path.name for path in tmp_path.iterdir()] == [".c.lock"]


# ------------------------------------------------------------------ damage


@pytest.fixture
def large(tmp_path: Path) -> TokenFile:
    """Two mebibytes of ids: three blocks."""
    return write_tokens(tmp_path / "c", corpus(1400))


def flip(path: Path, at: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[at] ^= 1
    path.write_bytes(raw)


def test_a_changed_byte_is_found_where_it_is(large: TokenFile) -> None:
    flip(large.folder / "ids.bin", BLOCK + 5)
    found = TokenFile(large.folder)
    check_equal(found[0], next(corpus(1)))  # its block is sound
    inside = (BLOCK + 5) // 1600
    for _ in range(2):
        with pytest.raises(
            HashMismatch, match=r"ids.bin has changed since it was written: got bytes 1048576 to 2097151 chang"
        ):
            found[inside]
    assert len(found[1399]) == 400
    with pytest.raises(HashMismatch):
        found.verify()


@pytest.mark.parametrize("name", ["ids", "weight", "offsets", "notes", "notes_at", "blocks"])
def test_any_file_is_checked(large: TokenFile, name: str) -> None:
    path = large.folder / f"{name}.bin"
    sound = path.read_bytes()
    flip(path, len(sound) // 2)
    with pytest.raises(HashMismatch, match=f"{name}.bin has changed since it was written"):
        TokenFile(large.folder).verify()
    path.write_bytes(sound[:-1])
    with pytest.raises(HashMismatch, match=f"{name}.bin has changed since it was written"):
        TokenFile(large.folder)
    path.unlink()
    with pytest.raises(Incomplete, match=f"{name}.bin is missing"):
        TokenFile(large.folder)


def test_the_manifest_is_checked(large: TokenFile) -> None:
    path = large.folder / "manifest.json"
    sound = json.loads(path.read_text(encoding="utf-8"))
    for change in ({"parts": 3}, {"tokens": 1}, {"source": "x"}, {"sha256": "0"}):
        path.write_text(json.dumps({**sound, **change}), encoding="utf-8")
        with pytest.raises(HashMismatch, match=r"manifest.json has changed since it was written"):
            TokenFile(large.folder)
    path.write_text(json.dumps({**sound, "format": 2}), encoding="utf-8")
    with pytest.raises(UnknownSchema, match="got 2, expected 1"):
        TokenFile(large.folder)
    for text in ("{", "3"):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(HashMismatch, match=r"manifest.json has changed since it was written"):
            TokenFile(large.folder)
    path.unlink()
    with pytest.raises(Incomplete, match="does not hold tokens"):
        TokenFile(large.folder)
    with pytest.raises(StoreUnavailable):
        write_tokens(path.parent / "ids.bin" / "c", corpus(1))


# ------------------------------------------------------------------ as a data set


def test_another_process_maps_the_same_files(large: TokenFile) -> None:
    sent = bytes(ForkingPickler.dumps(large))
    assert len(sent) < 1000
    check_equal(ForkingPickler.loads(sent)[77], large[77])


def test_training_on_it_equals_training_on_the_list(tmp_path: Path) -> None:
    losses = []
    for stored in (False, True):
        policy = small_policy()
        parts: Any = small_parts(policy)
        if stored:
            parts = write_tokens(tmp_path / "c", parts)
        losses.append(Learner(policy, weighted_nll, small_config(max_steps=5), seed=1).fit(parts).losses)
    assert losses[0] == losses[1] and len(losses[0]) == 5


def test_from_json_lines_to_tokens_and_not_again(tmp_path: Path) -> None:
    policy, reading, path = (
        byte_policy(),
        ReadingConfig(kind="text", overlong="split", context=64),
        tmp_path / "a.jsonl",
    )
    rows = [{"text": "word " * number} for number in range(1, 40)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows) + "{\n", encoding="utf-8")
    asked = []
    for _ in range(2):
        tally = Intake()
        source = source_digest(file_digest(path), policy, reading)
        parts = read_rows(read_json_lines(path, intake=tally), policy, reading, intake=tally)
        found = write_tokens(
            tmp_path / source[:16], parts, source=source, intake=tally, vocabulary=vocabulary_digest(policy.tokenizer)
        )
        asked.append(tally.rows)
    assert asked == [40, 0]
    assert found.intake is not None and found.intake["rows"] == 40 and found.intake["refused"] == 1
    assert found.intake["problems"][0]["where"] == "a.jsonl:40" and found.intake["parts"] == len(found)
