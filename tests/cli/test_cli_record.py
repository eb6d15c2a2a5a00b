"""What is kept about a run: settings without secrets, versions, and its state whatever ends it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from pydantic import Field

from evolvent.cli.setup.record import RunRecord, choose_run_folder, record_run
from evolvent.config import Config, resolve
from evolvent.errors import ConfigError, WorldError


class Job(Config):
    rounds: int = Field(default=3, description="how often")
    api_key: str = Field(default="", description="a secret")


RECORD = RunRecord("job", Job(rounds=4, api_key="sk-hush"), 5, ("evolve", "control"))


def state(folder: Path) -> dict[str, object]:
    return json.loads((folder / "run.json").read_text(encoding="utf-8"))


def test_what_is_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["evolvent", "job", "--api-key", "sk-hush", "--token=sk-hush", "--rounds", "4"])
    with record_run(tmp_path, RECORD):
        assert state(tmp_path)["state"] == "running"
    kept = state(tmp_path)
    assert (kept["state"], kept["seed"], kept["method"], kept["arms"]) == ("finished", 5, "job", ["evolve", "control"])
    assert kept["config"]["rounds"] == 4
    assert kept["command"][:3] == ["evolvent", "job", "--api-key"] and kept["command"][-2:] == ["--rounds", "4"]
    assert {"evolvent", "python", "torch", "numpy"} <= set(kept["versions"])
    assert resolve(Job, file=tmp_path / "config.toml").rounds == 4
    assert not [path for path in tmp_path.iterdir() if b"sk-hush" in path.read_bytes()]


@pytest.mark.parametrize(
    ("error", "left"),
    [
        (KeyboardInterrupt(), "interrupted"),
        (SystemExit(143), "interrupted"),
        (WorldError("gone", value=1), "failed"),
        (ZeroDivisionError(), "failed"),
    ],
)
def test_the_state_it_is_left_in(tmp_path, capsys, error, left):
    with pytest.raises(type(error)), record_run(tmp_path, RECORD):
        raise error
    assert state(tmp_path)["state"] == left
    hint = f"go on with: evolvent job --resume {tmp_path}\n"
    assert capsys.readouterr().err == (hint if left == "interrupted" else "")


def test_going_on_keeps_settings_and_the_day_of_birth(tmp_path):
    (tmp_path / "run.json").write_text('{"created": "long ago"}', encoding="utf-8")
    (tmp_path / "config.toml").write_text("rounds = 1\n", encoding="utf-8")
    with record_run(tmp_path, RECORD):
        pass
    assert state(tmp_path)["created"] == "long ago"
    assert (tmp_path / "config.toml").read_text(encoding="utf-8") == "rounds = 1\n"


def test_new_folders(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert choose_run_folder("evolve", None) == Path("runs/evolve-1")
    for name in ("evolve-1", "evolve-3", "other"):
        (tmp_path / "runs" / name).mkdir(parents=True)
    assert choose_run_folder("evolve", None) == Path("runs/evolve-2")
    assert choose_run_folder("evolve", tmp_path / "mine") == tmp_path / "mine"
    (tmp_path / "mine").mkdir()
    assert choose_run_folder("evolve", tmp_path / "mine") == tmp_path / "mine"
    (tmp_path / "mine" / "run.json").write_text("{}", encoding="utf-8")
    with pytest.raises(ConfigError, match="already holds a run"):
        choose_run_folder("evolve", tmp_path / "mine")


def test_a_file_is_no_folder_of_a_run(tmp_path):
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(ConfigError, match=r"notes\.txt is a file, expected a folder"):
        choose_run_folder("eval", tmp_path / "notes.txt")
