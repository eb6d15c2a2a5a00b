"""Names that stay inside, files that are whole or absent."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evolvent.errors import NoSpace, StoreUnavailable, UnsafePath
from evolvent.files import (
    TEMPORARY_SUFFIX,
    append_line,
    atomic_writer,
    disk_error,
    ensure_space,
    plain_json,
    safe_join,
    write_atomic,
)


@given(st.text(st.sampled_from("ab./\\%2e5cf~: \0\n"), max_size=14) | st.text(max_size=10))
@settings(deadline=None, max_examples=400)
def test_whatever_the_name_the_path_stays_inside(tmp_path_factory, name):
    """Either refused, or a path strictly inside that the file system takes as it stands."""
    root = tmp_path_factory.getbasetemp().resolve()
    try:
        path = safe_join(root, name)
    except UnsafePath:
        return
    inside = Path(os.path.normpath(path)).relative_to(root)
    assert ".." not in inside.parts and inside.parts and path == root / name


@pytest.mark.parametrize(
    "name", ["a", "a/b.json", "a b", "100%", "é", "part-0123.parquet", "a%20b", "..a", "a..b", "con1"]
)
def test_plain_names_are_taken_as_they_are(tmp_path, name):
    assert safe_join(tmp_path, name) == tmp_path.resolve() / name


def test_links_inside_are_followed_and_links_outside_are_not(tmp_path):
    root, other = tmp_path / "root", tmp_path / "other"
    (root / "real").mkdir(parents=True)
    other.mkdir()
    (root / "in").symlink_to(root / "real")
    (root / "out").symlink_to(other)
    assert safe_join(root, "in/x") == root.resolve() / "in/x"
    with pytest.raises(UnsafePath, match="symbolic link"):
        safe_join(root, "out/x")


def test_write_atomic_replaces_the_whole(tmp_path):
    path = tmp_path / "deep" / "f.json"
    write_atomic(path, "first, longer")
    write_atomic(path, b"second")
    assert path.read_bytes() == b"second" and list(path.parent.iterdir()) == [path]


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path):
    write_atomic(tmp_path / "f", "old")
    with pytest.raises(KeyError), atomic_writer(tmp_path / "f") as file:
        file.write(b"half")
        raise KeyError("x")
    with pytest.raises(StoreUnavailable, match="cannot use"), atomic_writer(tmp_path / "f") as file:
        raise OSError(errno.EIO, "x")
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("f", "old")]


def test_killed_while_writing_the_old_file_is_whole(tmp_path):
    """A real process, killed with half of a file written: the old content stays under the name."""
    write_atomic(tmp_path / "f", "old")
    code = (
        "import sys, os, signal, pathlib\nfrom evolvent.files import atomic_writer\n"
        "with atomic_writer(pathlib.Path(sys.argv[1])) as file:\n"
        "    file.write(b'half'); file.flush(); os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "f")], check=False)
    assert done.returncode == -signal.SIGKILL and (tmp_path / "f").read_text() == "old"
    (left,) = (p for p in tmp_path.iterdir() if p.name != "f")
    assert left.name.endswith(TEMPORARY_SUFFIX)


def test_space_is_checked_first(tmp_path):
    ensure_space(tmp_path, 1)
    with pytest.raises(NoSpace, match=r"bytes free.*expected at least 1000000000000000000"):
        ensure_space(tmp_path, 10**18)
    with pytest.raises(NoSpace), atomic_writer(tmp_path / "f", needed=10**18):
        pytest.fail("the block ran")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(StoreUnavailable):
        ensure_space(tmp_path / "none", 1)


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.ENOSPC, NoSpace),
        (errno.EDQUOT, NoSpace),
        (errno.EFBIG, NoSpace),
        (errno.EROFS, StoreUnavailable),
        (errno.EACCES, StoreUnavailable),
        (errno.ESTALE, StoreUnavailable),
        (errno.EIO, StoreUnavailable),
    ],
)
def test_errors_of_the_disk_have_one_of_two_names(number, kind):
    error = disk_error(OSError(number, "x"), Path("folder/file"))
    assert type(error) is kind and "folder/file" in str(error) and os.strerror(number) in str(error)


def test_lines_are_appended_after_a_torn_one_is_removed(tmp_path):
    path = tmp_path / "deep" / "m.jsonl"
    append_line(path, {"a": 1})
    for torn in (b'{"b": 2, "c', b"x" * 200_000):
        with path.open("ab") as file:
            file.write(torn)
        append_line(path, {"é": "\ud800"}, durable=False)
    assert [json.loads(line) for line in path.read_bytes().splitlines()] == [{"a": 1}, {"é": "\ud800"}, {"é": "\ud800"}]
    path.write_bytes(b"no newline at all")
    append_line(path, {"a": 1})
    assert path.read_bytes() == b'{"a":1}\n'


def test_json_has_no_nan():
    row = {"loss": float("nan"), "deep": [{"x": float("inf")}, (float("-inf"), 1.5)], "n": None}
    assert json.loads(plain_json(row), parse_constant=pytest.fail) == {
        "loss": "nan",
        "deep": [{"x": "inf"}, ["-inf", 1.5]],
        "n": None,
    }
    with pytest.raises(TypeError):
        plain_json({"x": object()})
