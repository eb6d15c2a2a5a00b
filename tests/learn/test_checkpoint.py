from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from evolvent.errors import ConfigError, HashMismatch, Incomplete, NoSpace, ShapeMismatch, StateMissing, UnknownSchema
from evolvent.learn import checkpoint as module
from evolvent.learn.checkpoint import Checkpointer, Saved, check_tensors


def saved(value: float) -> Saved:
    tensors = {"model": {"a": torch.full((3,), value), "b": torch.eye(2) * value}, "optimizer": {}}
    return Saved(tensors, {"update": value, "text": "ü", "list": [1.5, None]})


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    keeper = Checkpointer(tmp_path / "new" / "folder")
    assert keeper.newest() is None and keeper.load() is None
    path = keeper.save(7, saved(0.1))
    assert path == keeper.newest() and path.name == "update-000000007"
    found = keeper.load()
    assert found is not None and found.values == saved(0.1).values and found.tensors["optimizer"] == {}
    assert all(torch.equal(found.tensors["model"][name], t) for name, t in saved(0.1).tensors["model"].items())
    assert sorted(p.name for p in path.iterdir()) == ["COMPLETE", "model-00000.safetensors", "state.json"]
    assert sorted(p.name for p in keeper.folder.iterdir()) == [path.name]


def test_the_last_ones_are_kept(tmp_path: Path) -> None:
    keeper = Checkpointer(tmp_path, keep=2)
    for update in (3, 20, 100):
        keeper.save(update, saved(update))
    assert [path.name for path in keeper.complete()] == ["update-000000020", "update-000000100"]
    assert keeper.save(100, saved(1)) == keeper.newest()  # saved already: left as it is
    found = keeper.load()
    assert found is not None and found.values["update"] == 100


def test_large_groups_are_cut_into_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SHARD_BYTES", 20)
    tensors = {f"w{i}": torch.arange(i, i + 3.0) for i in range(5)}
    keeper = Checkpointer(tmp_path)
    path = keeper.save(1, Saved({"model": tensors}))
    assert len(list(path.glob("model-*.safetensors"))) == 5
    found = keeper.load()
    assert found is not None and all(torch.equal(found.tensors["model"][n], t) for n, t in tensors.items())


def test_what_an_interrupted_writer_left_is_removed(tmp_path: Path) -> None:
    good = Checkpointer(tmp_path).save(1, saved(1))
    (tmp_path / ".writing-123").mkdir()
    (tmp_path / ".writing-123" / "model-00000.safetensors").write_bytes(b"half")
    (tmp_path / "update-000000002").mkdir()
    (tmp_path / "mine.txt").write_text("not a checkpoint")
    keeper = Checkpointer(tmp_path)
    assert keeper.newest() == good
    assert sorted(p.name for p in tmp_path.iterdir()) == ["mine.txt", good.name]


def test_damage_is_refused_by_name(tmp_path: Path) -> None:
    keeper = Checkpointer(tmp_path)
    path = keeper.save(1, saved(1.0))
    file = path / "model-00000.safetensors"
    whole = file.read_bytes()
    file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(HashMismatch, match=r"changed: \['b'\]"):
        keeper.load()
    file.write_bytes(b"\xff" * 4)
    with pytest.raises(HashMismatch, match="its header"):
        keeper.load()
    file.unlink()
    with pytest.raises(Incomplete, match=r"model-00000\.safetensors is missing.*a, b"):
        keeper.load()
    (path / "COMPLETE").write_text("{")
    with pytest.raises(HashMismatch, match="COMPLETE cannot be read"):
        keeper.load()
    (path / "COMPLETE").write_text(json.dumps({"format": 2, "files": {}}))
    with pytest.raises(UnknownSchema, match="got 2; expected 1"):
        keeper.load()
    (path / "COMPLETE").unlink()
    with pytest.raises(Incomplete, match="no COMPLETE marker"):
        keeper.load(path)
    assert keeper.newest() is None


def test_tensors_are_compared_by_name_and_shape() -> None:
    expected = {"a": torch.zeros(2), "b": torch.zeros(3)}
    check_tensors({"b": torch.ones(3), "a": torch.ones(2)}, expected, what="model", missing=StateMissing)
    with pytest.raises(StateMissing, match=r"model has no tensor 'b'.*expected \(3,\)"):
        check_tensors({"a": torch.ones(2)}, expected, what="model", missing=StateMissing)
    with pytest.raises(ShapeMismatch, match=r"tensor 'a'.*got \(5,\); expected \(2,\)"):
        check_tensors({"a": torch.ones(5), "b": torch.ones(3)}, expected, what="model", missing=StateMissing)
    with pytest.raises(ShapeMismatch, match="'c'"):
        check_tensors({**expected, "c": torch.ones(1)}, expected, what="model", missing=StateMissing)


def test_numbers_below_one_are_refused_together(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        Checkpointer(tmp_path, every=0, keep=-1)
    assert [problem.where for problem in caught.value.problems] == ["every", "keep"]


def test_a_checkpoint_larger_than_the_disk_is_not_begun(tmp_path: Path) -> None:
    keeper = Checkpointer(tmp_path)
    good = keeper.save(1, saved(1))
    huge = torch.empty(1, device="meta").expand(1 << 55)  # 128 PiB, and no memory
    with pytest.raises(NoSpace, match="bytes free"):
        keeper.save(2, Saved({"model": {"w": huge}}))
    assert [p.name for p in tmp_path.iterdir()] == [good.name]


def test_the_marker_lists_every_file(tmp_path: Path) -> None:
    path = Checkpointer(tmp_path).save(1, saved(1))
    files = json.loads((path / "COMPLETE").read_text())["files"]
    assert sorted(files) == ["model-00000.safetensors", "state.json"]
    assert all(len(entry["sha256"]) == 64 for entry in files.values())
