"""Fault 51: pickles and files with objects in them, where weights or arrays are expected: refused unread, with advice.

Every one of them would make a file when it is loaded; none does. No flag allows it.
"""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import numpy as np
import pytest
from small_training import train

import evolvent as ev
from evolvent.cli.main import main
from evolvent.errors import EvolventError, HashMismatch, Incomplete, UnsafeFile
from evolvent.models.adapters import AdapterConfig, adapt
from evolvent.models.policy import load_policy
from evolvent.serve.openai.reload import load_replacement
from evolvent.worlds.plume.grids import read_grid
from evolvent.worlds.web_replay.records import read_ranks

KNOBS = Path(__file__).parents[1] / "style" / "knobs.json"


class Trap:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self):
        return open, (self.path, "w")


@pytest.fixture
def trap(tmp_path):
    """Bytes that make a file when they are unpickled; that they do is shown first, that they did not at the end."""
    sign = tmp_path / "the trap was sprung"
    data = pickle.dumps(Trap(sign))
    pickle.loads(data).close()  # noqa: S301
    assert sign.exists()
    sign.unlink()
    yield data
    assert not sign.exists(), "code of a file was run"


@pytest.fixture
def model(tmp_path):
    ev.tiny_policy(["go", "left"], context=32).save(tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.pth", "weights.ckpt", "model.pkl"])
def test_a_model_folder_with_pickled_weights(model, trap, name):
    (model / "model.safetensors").unlink()
    (model / name).write_bytes(trap)
    with pytest.raises(UnsafeFile, match=r"Convert them on a machine where you trust them: model\.save_pretrained"):
        load_policy(model)
    with pytest.raises(UnsafeFile):
        load_replacement(model.parent, "model", ev.tiny_policy(["go", "left"], context=32))


@pytest.mark.parametrize("name", ["policy.pt", "policy.bin"])
def test_a_file_for_a_folder(model, trap, tmp_path, name):
    (tmp_path / name).write_bytes(trap)
    with pytest.raises(UnsafeFile, match="is a pickle, which can run code"):
        load_policy(tmp_path / name)


def test_the_command_refuses_it_too(trap, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "policy.pt").write_bytes(trap)
    assert main(["eval", "--policy", "policy.pt", "--worlds", "lookup"]) == 1
    assert capsys.readouterr().err.startswith("error: policy.pt is a pickle")


def test_a_pickle_under_the_name_of_a_safe_form(model, trap):
    (model / "model.safetensors").write_bytes(trap)
    with pytest.raises(Incomplete):
        load_policy(model)


def test_an_adapter(model, trap, tmp_path):
    adapt(load_policy(model), AdapterConfig(kind="lora", rank=2), seed=0).save(tmp_path / "adapter")
    (tmp_path / "adapter" / "adapter_model.safetensors").unlink()
    (tmp_path / "adapter" / "adapter_model.bin").write_bytes(trap)
    with pytest.raises(UnsafeFile, match="pickled adapter weights"):
        load_policy(tmp_path / "adapter")


def test_a_checkpoint_whose_tensors_became_a_pickle(trap, tmp_path):
    train(tmp_path / "run", max_steps=3)
    for file in (tmp_path / "run").rglob("*.safetensors"):
        file.write_bytes(trap)
    with pytest.raises(HashMismatch):
        train(tmp_path / "run", max_steps=3)


@pytest.mark.parametrize("name", ["ranks.pkl", "ranks.pt"])
def test_ranks_of_a_web_replay(trap, tmp_path, name):
    (tmp_path / name).write_bytes(trap)
    with pytest.raises(UnsafeFile, match="Convert it on a machine where you trust it"):
        read_ranks(tmp_path / name, max_rank=3)


def test_arrays_of_objects(trap, tmp_path):
    sign = tmp_path / "the trap was sprung"
    objects = np.array([Trap(sign)], dtype=object)
    np.savez(tmp_path / "grid.npz", x=objects, y=objects, concentration=objects)
    with pytest.raises(EvolventError, match="allow_pickle"):
        read_grid(tmp_path / "grid.npz")


def test_no_knob_turns_it_on():
    knobs = json.loads(KNOBS.read_text(encoding="utf-8"))
    named = [knob for rows in knobs.values() for knob in rows if "pickle" in knob.partition(":")[0]]
    assert len(knobs) > 20 and not named
