"""Copies at places beyond the disk, over a file system that fails when told to."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import socket
import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import fs
from stored import episode

from evolvent.cli.main import main
from evolvent.errors import (
    AccessDenied,
    ConfigError,
    EvolventError,
    HashMismatch,
    Incomplete,
    LimitExceeded,
    Locked,
    NoSpace,
    StoreUnavailable,
    UnknownSchema,
    UnsafePath,
)
from evolvent.store import objects_manifest
from evolvent.store.objects import ObjectStore, RetryPolicy
from evolvent.store.objects_place import StorageURL, parse_storage_url
from evolvent.store.objects_pull import fetch_copy, open_copy, open_published_store
from evolvent.store.objects_push import push_copy
from evolvent.store.store import Store


def a_run(folder: Path, *, more: int = 0) -> Path:
    """A finished run: a store that is sealed but for its last segment, some files, two of them equal, one empty."""
    with Store.open(folder / "trajectories", writing=True) as store:
        for number in range(4):
            store.append(episode(f"evolve-1/{number}", success=number % 2 == 0))
        store.seal()
        store.append(episode("evolve-1/last"))
    for name, data in {
        "run.json": b'{"state": "finished"}',
        "model/weights": b"w" * 3000,
        "stages/a/kept": b"",
        "stages/a/weights": b"w" * 3000,
        "report.html": "<p>é</p>".encode(),
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    for number in range(more):
        (folder / f"file-{number:03}").write_bytes(hashlib.sha256(str(number).encode()).digest() * 40)
    return folder


def tree(folder: Path) -> dict[str, bytes]:
    """All files but locks, by their names."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.suffix != ".lock"
    }


class Faulty(fs.FileSystemHandler):
    """Folders of this machine; every call is counted, and those that `fails` names by their numbers fail."""

    def __init__(self, fails=lambda number, call, path: None):
        self.local, self.fails = fs.LocalFileSystem(), fails
        self.calls, self.read, self.number = Counter(), Counter(), 0

    def note(self, call: str, path: str) -> None:
        self.number += 1
        self.calls[call, path.rpartition("/")[2]] += 1
        error = self.fails(self.number, call, path)
        if error is not None:
            raise error

    def get_type_name(self):
        return "faulty"

    def normalize_path(self, path):
        return path

    def get_file_info(self, paths):
        return self.local.get_file_info(paths)

    def get_file_info_selector(self, selector):
        self.note("list", selector.base_dir)
        return self.local.get_file_info(selector)

    def create_dir(self, path, recursive):
        self.local.create_dir(path, recursive=recursive)

    def move(self, src, dest):
        self.note("move", dest)
        self.local.move(src, dest)

    def open_input_file(self, path):
        self.note("open", path)
        return pa.PythonFile(_Told(self, path, "rb"), mode="r")

    def open_output_stream(self, path, metadata):
        self.note("create", path)
        return pa.PythonFile(_Told(self, path, "wb"), mode="w")

    def open_append_stream(self, path, metadata):
        raise NotImplementedError

    open_input_stream = open_input_file
    delete_dir = delete_dir_contents = delete_root_dir_contents = delete_file = copy_file = open_append_stream


class _Told:
    """A file whose reads and writes may fail in the middle."""

    def __init__(self, handler, path, mode):
        self.handler, self.path, self.file = handler, path, Path(path).open(mode)  # noqa: SIM115

    def read(self, size=-1):
        self.handler.note("read", self.path)
        data = self.file.read(size)
        self.handler.read[self.path.rpartition("/")[2]] += len(data)
        return data

    def write(self, data):
        try:
            self.handler.note("write", self.path)
        except OSError:
            self.file.write(bytes(data)[: len(data) // 2])
            raise
        return self.file.write(data)

    def close(self):
        self.file.close()

    def __getattr__(self, name):
        return getattr(self.file, name)


def at(folder: Path, handler: Faulty | None = None) -> tuple[StorageURL, Faulty]:
    handler = handler or Faulty()
    return StorageURL(fs.PyFileSystem(handler), str(folder), "test://there/copy"), handler


def patient(pauses: list[float] | None = None, tries: int = 4) -> RetryPolicy:
    return RetryPolicy(tries=tries, rng=Random(1), sleep=(pauses if pauses is not None else []).append)


def outage(*_) -> OSError:
    return OSError("AWS Error SLOW_DOWN during PutObject operation: Please reduce your request rate")


# ---------------------------------------------------------------------- addresses


@pytest.mark.parametrize(
    ("address", "told"),
    [
        ("backup/run", "unknown scheme:"),
        ("http://host/run", "unknown scheme:"),
        ("s3://", "no bucket"),
        ("s3:///run", "no bucket"),
        ("s3://bucket", "has an invalid path"),
        ("s3://bucket/a//b", "has an invalid path"),
        ("s3://bucket/a/../b", "has an invalid path"),
        ("s3://bucket/a?regoin=x", "did you mean 'region'"),
        ("s3://bucket/a?scheme=ftp", "expected http or https"),
        ("gs://bucket/a?anonymous=maybe", "expected true or false"),
        ("gs://bucket/a?region=x", "unknown option"),
        ("file://host/a", "expected file:///PATH"),
        ("hdfs://name:port/a", "expected hdfs://HOST:PORT/PATH"),
        ("s3://[x/a", "cannot read the address:"),
    ],
)
def test_an_address_that_names_no_place(address, told):
    with pytest.raises(ConfigError) as caught:
        parse_storage_url(address)
    assert told in str(caught.value)


def test_an_address_holds_no_secrets_and_tells_none():
    with pytest.raises(ConfigError) as caught:
        parse_storage_url(
            "s3://AKIAkey:s3cr3tvalue@/../x?secret_key=s3cr3tvalue&endpoint_override=http://u:s3cr3tvalue@h"
        )
    assert len(caught.value.problems) == 5  # bucket, path, option, endpoint, login
    assert "s3cr3t" not in str(caught.value) and "AKIA" not in str(caught.value)


def test_places_of_every_kind(tmp_path):
    place = parse_storage_url("s3://bucket/a/b/?endpoint_override=http://127.0.0.1:9&region=eu-west-1")
    assert (place.path, place.address, place.is_atomic) == ("bucket/a/b", "s3://bucket/a/b", True)
    assert place.filesystem.region == "eu-west-1"
    place = parse_storage_url("gs://bucket/a?anonymous=true")
    assert (place.path, place.address, place.is_atomic) == ("bucket/a", "gs://bucket/a", True)
    place = parse_storage_url(f"file://{tmp_path}/a")
    assert (place.path, place.is_atomic) == (f"{tmp_path}/a", False)


def test_hdfs_without_hadoop_is_said(monkeypatch):
    for name in ("HADOOP_HOME", "ARROW_LIBHDFS_DIR", "CLASSPATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    with pytest.raises(StoreUnavailable, match=r"Hadoop library: Unable to load lib(jvm|hdfs).*Install Hadoop"):
        parse_storage_url("hdfs://namenode:8020/runs/a")


# ---------------------------------------------------------------------- there and back


def test_a_run_comes_back_as_it_was(tmp_path):
    run = a_run(tmp_path / "run")
    place = parse_storage_url(f"file://{tmp_path}/there/run")
    told = []
    done = push_copy(run, place, progress=told.append)
    files = tree(run)
    assert {name: (entry.size, entry.sha256) for name, entry in done.manifest.files.items()} == {
        name: (len(data), hashlib.sha256(data).hexdigest()) for name, data in files.items()
    }
    kept = tree(tmp_path / "there/run")
    assert kept.pop("evolvent-manifest.json") == done.manifest.encode()
    assert kept == {f"objects/{hashlib.sha256(data).hexdigest()}": data for data in files.values()}, "equal files: once"
    assert done.objects == len(kept) == len(files) - 1
    assert told[-1].bytes == told[-1].of_bytes == done.bytes and told[-1].files == told[-1].of_files == done.objects
    back = fetch_copy(open_copy(place), tmp_path / "back")
    assert tree(tmp_path / "back") == files and back.bytes == done.bytes
    assert sorted(path.name for path in tmp_path.iterdir()) == ["back", "run", "there"], "nothing is left beside it"
    assert [t.id for t in Store.open(tmp_path / "back/trajectories").trajectories()][-1] == "evolve-1/last"
    again = push_copy(run, place)
    assert (again.objects, again.bytes) == (0, 0)


def test_the_manifest_by_hand(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run/a").write_bytes(b"abc")
    place = parse_storage_url(f"file://{tmp_path}/there")
    push_copy(tmp_path / "run", place)
    digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"  # FIPS 180-2, appendix B.1
    assert json.loads((tmp_path / "there/evolvent-manifest.json").read_text()) == {
        "format": 1,
        "files": {"a": {"bytes": 3, "sha256": digest}},
    }
    assert (tmp_path / "there/objects" / digest).read_bytes() == b"abc"


def test_what_stays_behind(tmp_path):
    run = a_run(tmp_path / "run")
    wanted = set(tree(run))
    for name, data in {
        "half.part~": b"x",
        "old.part~/x": b"x",
        "snapshots/leases/1-a.json": b"{}",
        "snapshots/gate.lock": b"",
        ".train.lock": b'{"pid": 0, "host": ""}',
    }.items():
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).write_bytes(data)
    (run / "empty").mkdir()
    (run / "uv.lock").write_bytes(b"version = 1\n")  # somebody's file, and no lock
    done = push_copy(run, parse_storage_url(f"file://{tmp_path}/there"))
    assert set(done.manifest.files) == wanted | {"uv.lock"}
    assert (run / "uv.lock").read_bytes() == b"version = 1\n"


@pytest.mark.parametrize("kind", ["link", "folder", "pipe", "name", "reserved"])
def test_what_is_not_followed(tmp_path, kind):
    run = a_run(tmp_path / "run")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/secret").write_bytes(b"secret")
    if kind == "link":
        (run / "link").symlink_to(tmp_path / "outside/secret")
    elif kind == "folder":
        (run / "link").symlink_to(tmp_path / "outside")
    elif kind == "pipe":
        os.mkfifo(run / "pipe")
    else:
        (run / {"name": "a:b", "reserved": "nul.txt"}[kind]).write_bytes(b"")
    with pytest.raises(UnsafePath):
        push_copy(run, parse_storage_url(f"file://{tmp_path}/there"))
    assert not (tmp_path / "there").exists()


def test_a_run_that_is_going_on_is_refused(tmp_path):
    run = a_run(tmp_path / "run")
    place = parse_storage_url(f"file://{tmp_path}/there")
    with Store.open(run / "trajectories", writing=True), pytest.raises(Locked) as caught:
        push_copy(run, place)
    assert caught.value.pid == os.getpid()
    (run / ".train.lock").write_text('{"pid": 7, "host": "elsewhere"}')
    with pytest.raises(Locked, match="elsewhere"):
        push_copy(run, place)
    assert not (tmp_path / "there").exists()
    (run / ".train.lock").write_text(json.dumps({"pid": 7, "host": socket.gethostname()}))  # it was killed
    push_copy(run, place)


def test_locks_that_cannot_be_written(tmp_path, monkeypatch):
    run = a_run(tmp_path / "run")
    lock = run / "trajectories/writer.lock"
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write everything
    with Store.open(run / "trajectories", writing=True), pytest.raises(Locked) as caught:
        push_copy(run, parse_storage_url(f"file://{tmp_path}/there"))
    assert caught.value.pid == os.getpid()
    lock.write_text('{"pid": 7, "host": "elsewhere"}')
    with pytest.raises(Locked, match="elsewhere"):
        push_copy(run, parse_storage_url(f"file://{tmp_path}/there"))
    lock.write_text("")
    push_copy(run, parse_storage_url(f"file://{tmp_path}/there"))
    assert lock.read_text() == ""


def test_nobody_writes_meanwhile(tmp_path):
    run = a_run(tmp_path / "run")
    refused = []

    def resume(moved):
        with pytest.raises(Locked):
            Store.open(run / "trajectories", writing=True)
        refused.append(moved)

    push_copy(run, parse_storage_url(f"file://{tmp_path}/there"), progress=resume)
    assert refused
    Store.open(run / "trajectories", writing=True).close()


@pytest.mark.parametrize("change", ["content", "added", "removed"])
def test_a_folder_that_changes_meanwhile(tmp_path, change):
    run = a_run(tmp_path / "run")
    place = parse_storage_url(f"file://{tmp_path}/there")
    changed = []

    def meddle(moved):
        if moved.phase == "sent" and not changed:
            changed.append(moved)
            if change == "content":
                for path in run.rglob("*"):
                    if path.is_file() and path.suffix != ".lock":
                        path.write_bytes(bytes(len(path.read_bytes())))  # as long as before
            elif change == "added":
                (run / "more").write_bytes(b"more")
            else:
                (run / "run.json").unlink()

    with pytest.raises(StoreUnavailable, match=r"changed while it was read|cannot use"):
        push_copy(run, place, progress=meddle, workers=1)
    assert not (tmp_path / "there/evolvent-manifest.json").exists()
    for path in (tmp_path / "there/objects").iterdir():
        if not path.name.endswith(".part~"):
            assert hashlib.sha256(path.read_bytes()).hexdigest() == path.name
    push_copy(run, place)
    fetch_copy(open_copy(place), tmp_path / "back")
    assert tree(tmp_path / "back") == tree(run)


def test_another_copy_is_not_overwritten(tmp_path):
    one, two = a_run(tmp_path / "one"), a_run(tmp_path / "two", more=2)
    place = parse_storage_url(f"file://{tmp_path}/there")
    first = push_copy(one, place).manifest
    with pytest.raises(ConfigError, match="already holds a copy of another folder"):
        push_copy(two, place)
    assert open_copy(place).manifest == first
    done = push_copy(two, place, replace=True)
    assert done.objects < len(done.manifest.names_by_digest()), "what they have in common is not sent again"
    fetch_copy(open_copy(place), tmp_path / "back")
    assert tree(tmp_path / "back") == tree(two)
    assert all((tmp_path / "there" / entry.object_name).exists() for entry in first.files.values()), "readers go on"


def test_no_folder_and_nothing_in_it(tmp_path):
    (tmp_path / "empty").mkdir()
    for name in ("empty", "nowhere"):
        with pytest.raises(ConfigError, match="pass a run or a store"):
            push_copy(tmp_path / name, parse_storage_url(f"file://{tmp_path}/there"))


def test_the_commands(tmp_path, capsys):
    run, there = a_run(tmp_path / "run"), f"file://{tmp_path}/there"
    assert main(["runs", "push", str(run), there]) == 0
    files = len(tree(run))
    assert capsys.readouterr().out.replace("\n", " ").startswith(f"{files} files, ")
    (run / "more").write_bytes(b"more")
    assert main(["runs", "push", str(run), there]) == 2
    assert (
        "already holds a copy of another folder (choose another address, or pass --replace)" in capsys.readouterr().err
    )
    assert main(["runs", "push", str(run), there, "--replace"]) == 0
    assert capsys.readouterr().out.endswith(f"at {there}; sent 1 objects, 4 B\n")
    (tmp_path / "there/objects" / hashlib.sha256(b"more").hexdigest()).write_bytes(b"less")
    assert main(["runs", "pull", there, str(tmp_path / "back")]) == 1
    assert "more is damaged" in capsys.readouterr().err
    assert main(["runs", "push", str(run), there, "--check", "--workers", "2"]) == 0
    assert "sent 1 objects, 4 B" in capsys.readouterr().out
    assert main(["runs", "pull", there, str(tmp_path / "back")]) == 0
    told = capsys.readouterr().out
    assert told.startswith(f"{files + 1} files, ") and f"in {tmp_path}/back; fetched" in told
    assert tree(tmp_path / "back") == tree(run)
    assert main(["runs", "push", str(run), "elsewhere", "--workers", "0"]) == 2


# ---------------------------------------------------------------------- outages


def test_outages_are_waited_for(tmp_path):
    run = a_run(tmp_path / "run")
    pauses: list[float] = []
    failing = Faulty(lambda number, *_: outage() if 5 <= number < 12 or number % 7 == 0 else None)
    place, handler = at(tmp_path / "there", failing)
    push_copy(
        run,
        place,
        workers=1,
        retry_policy=RetryPolicy(tries=40, base_s=1.0, cap_s=4.0, rng=Random(1), sleep=pauses.append),
    )
    assert pauses and all(0.5 <= pause <= 4.0 for pause in pauses) and max(pauses) > 2.0
    handler.fails = lambda number, call, path: outage() if call == "read" and number % 3 == 0 else None
    fetch_copy(open_copy(place, retry_policy=patient(tries=9)), tmp_path / "back", workers=1)
    assert tree(tmp_path / "back") == tree(run)


def test_patience_ends(tmp_path):
    pauses: list[float] = []
    place, handler = at(tmp_path / "there", Faulty(lambda n, call, path: outage() if call == "write" else None))
    with pytest.raises(StoreUnavailable, match=r"SLOW_DOWN.*got 4 attempts.*Run the command again") as caught:
        push_copy(a_run(tmp_path / "run"), place, workers=1, retry_policy=patient(pauses))
    assert "test://there/copy: cannot send objects/" in str(caught.value)
    assert len(pauses) == 3 and not (tmp_path / "there/evolvent-manifest.json").exists()
    assert max(handler.calls.values()) == 4


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("AWS Error ACCESS_DENIED during PutObject operation: no", AccessDenied),
        ("AWS Error SIGNATURE_DOES_NOT_MATCH during PutObject operation: no", AccessDenied),
        ("AWS Error UNKNOWN (HTTP status 400) during HeadObject operation: ExceptionName: ExpiredToken", AccessDenied),
        ("google::cloud::Status(PERMISSION_DENIED: no)", AccessDenied),
        ("AWS Error NO_SUCH_BUCKET during PutObject operation: no", StoreUnavailable),
        ("AWS Error UNKNOWN (HTTP status 411) during PutObject operation: no", StoreUnavailable),
        ("[Errno 28] No space left on device", NoSpace),
    ],
)
def test_what_waiting_does_not_mend(tmp_path, monkeypatch, text, kind):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "very-secret-value")
    error = OSError(28, f"{text} very-secret-value") if kind is NoSpace else OSError(f"{text} very-secret-value")
    place, _ = at(tmp_path, Faulty(lambda *_: error))
    pauses: list[float] = []
    with pytest.raises(kind) as caught:
        ObjectStore(place, patient(pauses)).write_object("x", lambda: [b"x"])
    assert type(caught.value) is kind and not pauses
    assert "very-secret" not in str(caught.value)


@given(faults=st.sets(st.integers(1, 60), max_size=25), workers=st.sampled_from([1, 3]), tries=st.integers(1, 3))
@settings(max_examples=20, deadline=None)
def test_whatever_fails_a_manifest_means_a_copy(faults, workers, tries):
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        run = a_run(root / "run")
        place, handler = at(root / "there", Faulty(lambda number, *_: outage() if number in faults else None))
        try:
            push_copy(run, place, workers=workers, retry_policy=patient(tries=tries))
            whole = True
        except StoreUnavailable:
            whole = False
        assert (root / "there/evolvent-manifest.json").exists() == whole
        handler.fails = lambda *_: None
        arrived = {path.name for path in (root / "there").glob("objects/*") if not path.name.endswith(".part~")}
        done = push_copy(run, place)
        assert done.objects == len(done.manifest.names_by_digest()) - len(arrived), "nothing that arrived is sent again"
        fetch_copy(open_copy(place), root / "back")
        assert tree(root / "back") == tree(run)


def test_a_pull_goes_on_where_it_was(tmp_path):
    run = a_run(tmp_path / "run")
    place, handler = at(tmp_path / "there")
    objects = len(push_copy(run, place).manifest.names_by_digest())
    handler.calls.clear()
    opened = []

    def third(number, call, path):
        if call == "open" and "objects/" in path:
            opened.append(path)
        return outage() if len(opened) > 3 else None

    handler.fails = third
    with pytest.raises(StoreUnavailable):
        fetch_copy(open_copy(place, retry_policy=patient()), tmp_path / "back", workers=1)
    assert not (tmp_path / "back").exists()
    handler.fails = lambda *_: None
    handler.calls.clear()
    (beside,) = tmp_path.glob(".back.*")
    first = next(path for path in (beside / "files").rglob("*") if path.is_file() and path.stat().st_size)
    first.write_bytes(bytes(first.stat().st_size))  # the disk lost what was in it
    fetch_copy(open_copy(place), tmp_path / "back", workers=1)
    assert tree(tmp_path / "back") == tree(run)
    fetched = {name for call, name in handler.calls if call == "open"} - {"evolvent-manifest.json"}
    empty = 1  # read without a request
    assert len(fetched) == objects - empty - 3 + 1, "but for the damaged one, what was there was not fetched again"


def test_a_large_object_is_read_on(tmp_path, monkeypatch):
    monkeypatch.setattr("evolvent.store.objects.CHUNK_BYTES", 1000)
    place, handler = at(tmp_path / "there")
    (tmp_path / "run").mkdir()
    (tmp_path / "run/large").write_bytes(bytes(range(250)) * 40)
    push_copy(tmp_path / "run", place)
    handler.fails = lambda number, call, path: outage() if call == "read" and number % 3 == 0 else None
    fetch_copy(open_copy(place, retry_policy=patient()), tmp_path / "back")
    assert tree(tmp_path / "back") == tree(tmp_path / "run")
    assert [count for name, count in handler.read.items() if name != "evolvent-manifest.json"] == [10_000]


# ---------------------------------------------------------------------- damage


def test_damaged_objects_are_found_and_mended(tmp_path):
    run = a_run(tmp_path / "run")
    place = parse_storage_url(f"file://{tmp_path}/there")
    files = push_copy(run, place).manifest.files
    cut, wrong, gone = (
        tmp_path / "there" / files[name].object_name for name in ("model/weights", "report.html", "run.json")
    )
    good = {path: path.read_bytes() for path in (cut, wrong, gone)}
    for damage in (
        lambda: cut.write_bytes(b"w" * 2999),
        lambda: cut.write_bytes(b"w" * 3001),
        lambda: wrong.write_bytes(bytes(len(good[wrong]))),
        gone.unlink,
    ):
        damage()
        with pytest.raises((HashMismatch, Incomplete), match="Push it again"):
            fetch_copy(open_copy(place), tmp_path / "damaged")
        assert not (tmp_path / "damaged").exists()
        shutil.rmtree(*tmp_path.glob(".damaged.*"))
        assert push_copy(run, place, check=True).objects == 1
        assert {path: path.read_bytes() for path in good} == good
    fetch_copy(open_copy(place), tmp_path / "back")
    assert tree(tmp_path / "back") == tree(run)


def _named(*names: str) -> str:
    return json.dumps({"format": 1, "files": {name: {"bytes": 0, "sha256": "0" * 64} for name in names}})


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        *(
            (_named(name), UnsafePath)
            for name in (
                "../evil",
                "/etc/evil",
                "a/../../evil",
                "a\\evil",
                "a:evil",
                "con",
                "%2e%2e/evil",
                "a//b",
                "",
                "a/.",
                "x\x00",
                "~root",
                "a.part~",
                "b.part~/a",
                "e" * 300,
            )
        ),
        (_named("a", "a/b"), UnsafePath),
        (_named("a", "A"), UnsafePath),
        (_named("é", "e\u0301"), UnsafePath),
        ("", Incomplete),
        (_named("a")[:-5], Incomplete),
        ("[" * 100_000, Incomplete),
        ("[]", UnknownSchema),
        ('{"format": 2, "files": {}}', UnknownSchema),
        ('{"format": 1, "files": {}}', Incomplete),
        ('{"format": 1, "files": {"a": 1, "a": 2}}', Incomplete),
        ('{"format": 1, "files": {"a": {}}}', Incomplete),
        (_named("a").replace(": 0", ": -1"), Incomplete),
        (_named("a").replace(": 0", ": true"), Incomplete),
        (_named("a").replace(": 0", ": 1.0"), Incomplete),
        (_named("a").replace("0000", "../."), Incomplete),
        (_named("a").replace(": 0", f": {10**18}"), NoSpace),
        (_named("a").replace(": 0", f": {'9' * 5000}"), Incomplete),
        (" " * 2001, LimitExceeded),
    ],
)
def test_hostile_manifests(tmp_path, monkeypatch, text, kind):
    monkeypatch.setattr(objects_manifest, "_MAX_MANIFEST_BYTES", 2000 if text.isspace() else 1 << 20)
    place, handler = at(tmp_path / "there")
    (tmp_path / "there").mkdir()
    (tmp_path / "there/evolvent-manifest.json").write_text(text)
    with pytest.raises(kind):
        fetch_copy(open_copy(place), tmp_path / "in/back")
    assert not [path for path in tmp_path.rglob("*") if "evil" in path.name]
    assert not (tmp_path / "in/back").exists()
    assert {name for call, name in handler.calls} == {"evolvent-manifest.json"}, "nothing else was asked for"


def test_a_damaged_manifest_can_be_replaced(tmp_path):
    run, place = a_run(tmp_path / "run"), parse_storage_url(f"file://{tmp_path}/there")
    push_copy(run, place)
    (tmp_path / "there/evolvent-manifest.json").write_text("{")
    with pytest.raises(Incomplete, match="--replace"):
        push_copy(run, place)
    assert push_copy(run, place, replace=True).objects == 0
    fetch_copy(open_copy(place), tmp_path / "back")


def test_a_link_beside_the_folder_is_not_followed(tmp_path):
    place = parse_storage_url(f"file://{tmp_path}/there")
    push_copy(a_run(tmp_path / "run"), place)
    copy = open_copy(place)
    beside = tmp_path / f".back.{copy.manifest.digest[:12]}.part~/files"
    beside.mkdir(parents=True)
    (tmp_path / "outside").mkdir()
    (beside / "model").symlink_to(tmp_path / "outside")
    with pytest.raises(UnsafePath):
        fetch_copy(copy, tmp_path / "back")
    assert not list((tmp_path / "outside").iterdir())


def test_a_folder_that_exists_is_left_alone(tmp_path):
    place = parse_storage_url(f"file://{tmp_path}/there")
    push_copy(a_run(tmp_path / "run"), place)
    with pytest.raises(ConfigError, match="exists"):
        fetch_copy(open_copy(place), tmp_path / "run")
    with pytest.raises(Incomplete, match="does not hold a copy:"):
        open_copy(parse_storage_url(f"file://{tmp_path}/nowhere"))


def test_two_pulls_at_once(tmp_path):
    place = parse_storage_url(f"file://{tmp_path}/there")
    push_copy(a_run(tmp_path / "run"), place)

    def other(moved):
        with pytest.raises(Locked):
            fetch_copy(open_copy(place), tmp_path / "back")

    fetch_copy(open_copy(place), tmp_path / "back", progress=other)


# ---------------------------------------------------------------------- reading


@pytest.mark.parametrize("inner", ["", "trajectories"])
def test_a_store_is_read_from_its_copy(tmp_path, inner):
    run = a_run(tmp_path / "run")
    place, handler = at(tmp_path / "there")
    push_copy(run / inner, place)
    handler.calls.clear()
    own = list(Store.open(run / "trajectories").trajectories(filters={"success": True}))
    with open_published_store(place, cache=tmp_path / "cache") as store:
        assert list(store.trajectories(filters={"success": True})) == own and len(own) == 3
        assert store.get("evolve-1/1").success is False
    opened = {name for call, name in handler.calls if call == "open"} - {"evolvent-manifest.json"}
    assert len(opened) == 4, "two parts, the segment and its manifest; no models"
    handler.calls.clear()
    with open_published_store(place, cache=tmp_path / "cache") as store:
        assert store.path.is_relative_to(tmp_path / "cache")
    assert {name for call, name in handler.calls} == {"evolvent-manifest.json"}
    with open_published_store(place) as store:
        path = store.path
        assert len(list(store.ids())) == 5
    assert not path.exists()


def test_a_copy_without_a_store(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run/a").write_bytes(b"a")
    place = parse_storage_url(f"file://{tmp_path}/there")
    push_copy(tmp_path / "run", place)
    with pytest.raises(Incomplete, match="does not hold a store"), open_published_store(place):
        pass


def test_single_files_and_columns(tmp_path):
    with Store.open(tmp_path / "run/trajectories", writing=True) as store:
        for number in range(60):
            one = episode(f"e/{number}", steps=20)
            seen = Random(number)  # no other column is as large
            steps = tuple(replace(step, observation=seen.randbytes(400).hex()) for step in one.steps)
            store.append(replace(one, steps=steps))
        store.seal()
    place, handler = at(tmp_path / "there")
    copy = open_copy(place) if push_copy(tmp_path / "run", place) else None
    name = next(name for name in copy.manifest.files if "parquet/steps" in name)
    entry = copy.manifest.files[name]
    with copy.open(name) as file:
        actions = pq.read_table(file, columns=["action"])
    assert actions.num_rows == 1200 and handler.read[entry.sha256] < entry.size / 2, "only what is asked for is read"
    assert hashlib.sha256(copy.read_file(name)).hexdigest() == entry.sha256
    path = tmp_path / "there" / entry.object_name
    path.write_bytes(bytes(entry.size))
    with pytest.raises(HashMismatch):
        copy.read_file(name)
    with pytest.raises(ConfigError, match="no file 'x'"):
        copy.read_file("x")
    assert issubclass(HashMismatch, EvolventError)
