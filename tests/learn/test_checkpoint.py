"""Checkpoints of one process: what is saved is loaded, at once or on a thread; what is damaged is refused by name."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from evolvent.errors import (
    ConfigError,
    HashMismatch,
    Incomplete,
    NoSpace,
    ShapeMismatch,
    StateMissing,
    UnknownSchema,
    UnsafePath,
)
from evolvent.learn.checkpoint import CheckpointContent, Checkpointer, check_tensors
from evolvent.models import writing


def saved(value: float) -> CheckpointContent:
    tensors = {"model": {"a": torch.full((3,), value), "b": torch.eye(2) * value}, "optimizer": {}}
    return CheckpointContent(tensors, {"update": value, "text": "ü", "list": [1.5, None]})


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    keeper = Checkpointer(tmp_path / "new" / "folder")
    assert keeper.find_newest() is None and keeper.load() is None
    path = keeper.save(7, saved(0.1)).path
    assert path == keeper.find_newest() and path.name == "update-000000007"
    found = keeper.load()
    assert found is not None and found.values == saved(0.1).values and found.tensors["optimizer"] == {}
    assert all(torch.equal(found.tensors["model"][name], t) for name, t in saved(0.1).tensors["model"].items())
    assert sorted(p.name for p in path.iterdir()) == ["COMPLETE", "index.json", "model-00000.safetensors", "state.json"]
    assert sorted(p.name for p in keeper.folder.iterdir()) == [path.name]


def test_the_last_ones_are_kept(tmp_path: Path) -> None:
    keeper = Checkpointer(tmp_path, keep=2)
    for update in (3, 20, 100):
        keeper.save(update, saved(update))
    assert [path.name for path in keeper.list_complete()] == ["update-000000020", "update-000000100"]
    assert keeper.save(100, saved(1)).wait() == keeper.find_newest()  # saved already: left as it is
    found = keeper.load()
    assert found is not None and found.values["update"] == 100


def test_large_groups_are_cut_into_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "_SHARD_BYTES", 20)
    tensors = {f"w{i}": torch.arange(i, i + 3.0) for i in range(5)}
    keeper = Checkpointer(tmp_path)
    path = keeper.save(1, CheckpointContent({"model": tensors})).path
    assert len(list(path.glob("model-*.safetensors"))) == 5
    found = keeper.load()
    assert found is not None and all(torch.equal(found.tensors["model"][n], t) for n, t in tensors.items())


def test_what_an_interrupted_writer_left_is_removed(tmp_path: Path) -> None:
    good = Checkpointer(tmp_path).save(1, saved(1)).path
    (tmp_path / ".writing-123").mkdir()
    (tmp_path / ".writing-123" / "model-00000.safetensors").write_bytes(b"half")
    (tmp_path / "update-000000002").mkdir()
    (tmp_path / "mine.txt").write_text("not a checkpoint")
    keeper = Checkpointer(tmp_path)
    assert keeper.find_newest() == good
    assert sorted(p.name for p in tmp_path.iterdir()) == ["mine.txt", good.name]


def test_damage_is_refused_by_name(tmp_path: Path) -> None:
    keeper = Checkpointer(tmp_path)
    path = keeper.save(1, saved(1.0)).path
    file = path / "model-00000.safetensors"
    whole = file.read_bytes()
    file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(HashMismatch, match=r"changed tensors \['b'\]"):
        keeper.load()
    file.write_bytes(b"\xff" * 4)
    with pytest.raises(HashMismatch, match="got a changed header"):
        keeper.load()
    file.unlink()
    with pytest.raises(Incomplete, match=r"model-00000\.safetensors is missing.*a, b"):
        keeper.load()
    (path / "COMPLETE").write_text("{")
    with pytest.raises(HashMismatch, match="COMPLETE cannot be read"):
        keeper.load()
    (path / "COMPLETE").write_text(json.dumps({"format": 1, "files": {}}))
    with pytest.raises(UnknownSchema, match="got 1, expected 2"):
        keeper.load()
    (path / "COMPLETE").unlink()
    with pytest.raises(Incomplete, match="lacks the COMPLETE marker"):
        keeper.load(path)
    assert keeper.find_newest() is None


def test_tensors_are_compared_by_name_and_shape() -> None:
    expected = {"a": torch.zeros(2), "b": torch.zeros(3)}
    check_tensors({"b": torch.ones(3), "a": torch.ones(2)}, expected, group_name="model", missing_error=StateMissing)
    with pytest.raises(StateMissing, match=r"model has no tensor 'b'.*expected \(3,\)"):
        check_tensors({"a": torch.ones(2)}, expected, group_name="model", missing_error=StateMissing)
    with pytest.raises(ShapeMismatch, match=r"tensor 'a'.*got \(5,\), expected \(2,\)"):
        check_tensors(
            {"a": torch.ones(5), "b": torch.ones(3)}, expected, group_name="model", missing_error=StateMissing
        )
    with pytest.raises(ShapeMismatch, match="'c'"):
        check_tensors({**expected, "c": torch.ones(1)}, expected, group_name="model", missing_error=StateMissing)


def test_numbers_below_one_are_refused_together(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        Checkpointer(tmp_path, every=0, keep=-1)
    assert [problem.where for problem in caught.value.problems] == ["every", "keep"]


def test_a_checkpoint_larger_than_the_disk_is_not_begun(tmp_path: Path) -> None:
    keeper = Checkpointer(tmp_path)
    good = keeper.save(1, saved(1)).path
    huge = torch.empty(1, device="meta").expand(1 << 55)  # 128 PiB, and no memory
    with pytest.raises(NoSpace, match="bytes free"):
        keeper.save(2, CheckpointContent({"model": {"w": huge}}))
    assert [p.name for p in tmp_path.iterdir()] == [good.name]


def test_the_marker_lists_every_file(tmp_path: Path) -> None:
    path = Checkpointer(tmp_path).save(1, saved(1)).path
    files = json.loads((path / "COMPLETE").read_text())["files"]
    assert sorted(files) == ["index.json", "model-00000.safetensors", "state.json"]
    assert all(len(entry["sha256"]) == 64 for entry in files.values())


def test_index_and_state_are_checked_too(tmp_path: Path) -> None:
    keeper = Checkpointer(tmp_path)
    path = keeper.save(1, saved(1.0)).path
    for name in ("index.json", "state.json"):
        whole = (path / name).read_bytes()
        (path / name).write_bytes(whole.replace(b"1", b"2", 1))
        with pytest.raises(HashMismatch, match=f"{name} has changed since it was written"):
            keeper.load()
        (path / name).unlink()
        with pytest.raises(Incomplete, match=f"{name} is missing"):
            keeper.load()
        (path / name).write_bytes(whole)
    assert keeper.load() is not None


def test_a_checkpoint_that_names_files_elsewhere_is_refused(tmp_path: Path) -> None:
    """Whoever can write a checkpoint can make its hashes fit; it still reads nothing outside of its folder."""
    keeper = Checkpointer(tmp_path / "c")
    path = keeper.save(1, saved(1.0)).path
    save_file({"a": torch.zeros(3)}, tmp_path / "secret.safetensors")
    index = json.loads((path / "index.json").read_text())
    index["model"]["a"]["pieces"][0]["file"] = "../../secret.safetensors"
    (path / "index.json").write_text(json.dumps(index))
    marker = json.loads((path / "COMPLETE").read_text())
    marker["files"]["index.json"]["sha256"] = hashlib.sha256((path / "index.json").read_bytes()).hexdigest()
    (path / "COMPLETE").write_text(json.dumps(marker))
    with pytest.raises(UnsafePath):
        keeper.load()


KINDS = [
    torch.tensor(1.5),
    torch.tensor([True, False, True]),
    torch.arange(5, dtype=torch.int64),
    torch.randn(3, 4).bfloat16(),
    torch.randn(2, 3).half(),
    torch.tensor(3, dtype=torch.uint8),
    torch.zeros(0, 4),
    torch.randn(4, 6).t(),
    torch.randn(8, 6)[::2, 1:4],
    torch.randn(3, dtype=torch.float64),
]


@pytest.mark.parametrize("wait", [True, False])
def test_every_kind_of_tensor(tmp_path: Path, wait: bool) -> None:
    """Of every type, without dimensions, without elements, transposed, strided."""
    tensors = {f"t{i}": tensor for i, tensor in enumerate(KINDS)}
    keeper = Checkpointer(tmp_path)
    keeper.save(1, CheckpointContent({"model": tensors}), wait=wait)
    found = keeper.load()
    assert found is not None
    assert all(torch.equal(found.tensors["model"][n], t) for n, t in tensors.items())
    assert all(found.tensors["model"][n].dtype == t.dtype for n, t in tensors.items())


def test_tensors_are_filled_in_place(tmp_path: Path) -> None:
    keeper = Checkpointer(tmp_path)
    assert keeper.load(into={"model": {}}) is None
    path = keeper.save(1, saved(2.0)).path
    a, b = torch.zeros(3, dtype=torch.float64), torch.nn.Parameter(torch.zeros(2, 2))
    found = keeper.load(into={"model": {"a": a, "b": b}})
    assert found is not None and found.values["update"] == 2.0 and list(found.tensors) == ["model"]
    assert torch.equal(a, torch.full((3,), 2.0, dtype=torch.float64)) and torch.equal(b, torch.eye(2) * 2)
    both = keeper.load(path, into={"optimizer": {}}, groups=("model", "optimizer"))
    assert both is not None and torch.equal(both.tensors["model"]["a"], a.float())


def test_what_does_not_fit_changes_nothing(tmp_path: Path) -> None:
    keeper = Checkpointer(tmp_path)
    keeper.save(1, CheckpointContent({"model": {"a": torch.ones(3)}, "optimizer": {"m/a": torch.ones(3)}}))
    a, m = torch.zeros(3), torch.zeros(3)
    wrong = [
        (StateMissing, "optimizer state has no tensor 'v/a'", {"model": {"a": a}, "optimizer": {"m/a": m, "v/a": m}}),
        (ShapeMismatch, "model has no tensor 'b'", {"model": {"a": a, "b": a}}),
        (ShapeMismatch, r"got \(3,\), expected \(2,\)", {"optimizer": {"m/a": m}, "model": {"a": torch.zeros(2)}}),
        (ShapeMismatch, "tensors that the model does not have.*'m/a'", {"model": {"a": a}, "optimizer": {}}),
        (StateMissing, "does not hold scheduler", {"model": {"a": a}, "scheduler": {}}),
    ]
    for kind, match, into in wrong:
        with pytest.raises(kind, match=match):
            keeper.load(into=into)
        assert not a.any() and not m.any()
    with pytest.raises(StateMissing, match=r"take its weights alone: load\(groups=\('model',\)\)"):
        keeper.load(into={"model": {"a": a}, "optimizer": {"v/a": m}})
    keeper.load(into={"model": {"a": a}, "optimizer": {"v/a": m}}, groups=("model",))
    assert a.all() and not m.any()


def test_a_save_on_a_thread_is_of_the_moment_it_was_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The training goes on while the writer is held; what it changes meanwhile is not what is saved."""
    go = threading.Event()
    write = writing.write_tensors
    monkeypatch.setattr(writing, "write_tensors", lambda *given: go.wait(30) and write(*given))
    keeper = Checkpointer(tmp_path)
    weight, values = torch.ones(1000), {"n": [1]}
    handle = keeper.save(1, CheckpointContent({"model": {"w": weight}}, values), wait=False)
    weight.zero_()
    values["n"].append(2)
    assert not handle.is_finished and keeper.find_newest() is None
    go.set()
    assert handle.wait() == keeper.find_newest() and handle.is_finished
    found = keeper.load()
    assert found is not None and found.values == {"n": [1]} and found.tensors["model"]["w"].all()


def test_one_save_at_a_time(tmp_path: Path) -> None:
    keeper = Checkpointer(tmp_path, keep=10)
    handles = [keeper.save(update, saved(update), wait=False) for update in range(1, 6)]
    assert all(handle.is_finished for handle in handles[:-1])
    found = keeper.load()  # waits for the last one
    assert found is not None and found.values["update"] == 5 and len(keeper.list_complete()) == 5


def test_an_error_of_a_thread_is_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keeper = Checkpointer(tmp_path)
    good = keeper.save(1, saved(1)).path

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(writing, "write_tensors", full)
        keeper.save(2, saved(2), wait=False)
        with pytest.raises(NoSpace, match="no space left for"):
            keeper.save(3, saved(3), wait=False)  # it tells of the one before, and saves nothing
        assert keeper.save(4, CheckpointContent({}), wait=False).wait().name == "update-000000004"
        handle = keeper.save(5, saved(5), wait=False)
        with pytest.raises(NoSpace):
            handle.wait()
    assert keeper.save(6, saved(6)).wait() == keeper.find_newest()
    assert good not in keeper.list_complete() and len(list(tmp_path.iterdir())) == 2


def test_the_best_one_stays(tmp_path: Path) -> None:
    keeper = Checkpointer(tmp_path, keep=1, best=("loss", "min"))
    assert keeper.find_best() is None
    for update, loss in enumerate([3.0, float("nan"), 1.0, 2.0, 1.0, None], 1):
        keeper.save(update, CheckpointContent({}, {"metrics": {"loss": loss}} if loss is not None else {}))
    assert [path.name[-1] for path in keeper.list_complete()] == ["3", "6"]
    best = keeper.find_best()
    assert best is not None and best.name == "update-000000003"
    loaded = keeper.load(best)
    assert loaded is not None and loaded.values["metrics"] == {"loss": 1.0}
    assert Checkpointer(tmp_path).find_best() is None
    upwards = Checkpointer(tmp_path / "max", keep=1, best=("score", "max"))
    for update, score in enumerate([1, 3, 2], 1):
        upwards.save(update, CheckpointContent({}, {"metrics": {"score": score}}))
    assert [path.name[-1] for path in upwards.list_complete()] == ["2", "3"]


def test_what_a_live_writer_has_begun_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second training that starts on the same folder removes what dead writers left, and nothing else."""
    go, begun = threading.Event(), threading.Event()
    write = writing.write_tensors

    def slow(*given: Any) -> writing.WrittenFile:
        begun.set()
        go.wait(30)
        return write(*given)

    monkeypatch.setattr(writing, "write_tensors", slow)
    (tmp_path / ".writing-000000001-dead").mkdir()
    first = Checkpointer(tmp_path)
    handle = first.save(2, saved(2), wait=False)
    assert begun.wait(30)
    Checkpointer(tmp_path)
    assert len(list(tmp_path.glob(".writing-000000002*"))) == 1
    go.set()
    assert handle.wait() == first.find_newest()
    assert [path.name for path in tmp_path.iterdir()] == ["update-000000002"]
