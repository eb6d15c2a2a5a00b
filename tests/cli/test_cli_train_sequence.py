"""`evolvent train sequence`: from the words to the table, from files, stopped and taken up, and what is refused."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest
from rich.console import Console

from evolvent.cli.main import main
from evolvent.cli.train import families, sequence
from evolvent.cli.train.sequence import run
from evolvent.errors import ConfigError, SampleInvalid, StoreUnavailable
from evolvent.methods.decision_transformer import load_conditioned
from evolvent.methods.gato import load_generalist
from evolvent.methods.generalized_dt import load_matching
from evolvent.methods.q_transformer import load_q_transformer
from evolvent.methods.trajectory_transformer import load_planner
from evolvent.offline.state import SequenceCheckpoint
from evolvent.worlds.families import get_family

pytest.importorskip("gymnasium")
TINY = ["--learn.train.max_steps", "12", "--learn.train.batch", "8", "--learn.width", "16", "--learn.layers", "1"]
SHORT = ["--episodes", "6", "--horizon", "15", "--evaluation", "2", *TINY]


def said(words: list[str]) -> str:
    console = Console(file=io.StringIO(), width=120)
    assert run(["sequence", *words], console) == 0
    return console.file.getvalue()


def rows(folder) -> list[dict]:
    return json.loads((folder / "table.json").read_text())


def test_a_decision_transformer_is_asked_for_returns(tmp_path):
    folder = tmp_path / "run"
    shown = said(["cartpole", "--mixture", "medium-replay", "--targets", "[5, 12.5]", "--to", str(folder), *SHORT])
    assert [row["asked"] for row in rows(folder)] == [5.0, 12.5] and "12.50" in shown
    data = json.loads((folder / "data.json").read_text())
    assert data["kind"] == "replay" and data["episodes"] == 6 and data["return_expert"] == 15.0
    for row in rows(folder):
        assert len(row["returns"]) == 2
        assert row["score"] == pytest.approx(100 * (row["mean"] - data["return_random"]) / (15 - data["return_random"]))
    assert load_conditioned(folder / "policy").model.shape.returns
    page = (folder / "report.html").read_text()
    assert "<script" not in page and "step 0" in page and 'id="asked"' in page
    assert said(["--resume", str(folder)]) and len(json.loads((folder / "history.json").read_text())) == 12


@pytest.mark.parametrize(
    ("method", "load"),
    [
        ("bc", load_conditioned),
        ("tt", load_planner),
        ("qt", load_q_transformer),
    ],
)
def test_who_cannot_be_asked_is_measured_once(method, load, tmp_path):
    more = ["--learn.planning.keep", "2", "--learn.planning.horizon", "2"] if method == "tt" else []
    said(["--method", method, "stitching", "--evaluation", "1", "--to", str(tmp_path / "run"), *TINY, *more])
    (row,) = rows(tmp_path / "run")
    assert row["asked"] is None and load(tmp_path / "run" / "policy").history == ()
    assert json.loads((tmp_path / "run" / "data.json").read_text())["reachable"]["stitched"] == 10.0


def test_choices_are_played_online_and_values_relabel_them(tmp_path):
    online = ["--learn.rounds", "1", "--learn.updates", "2"]
    said(["--method", "odt", "cartpole", *online, "--to", str(tmp_path / "odt"), *SHORT])
    assert not load_conditioned(tmp_path / "odt" / "policy").model.shape.stochastic
    values = ["--learn.values.train.max_steps", "3", "--learn.values.width", "8"]
    said(["--method", "qdt", "cartpole", "--to", str(tmp_path / "qdt"), *values, *SHORT])
    assert len(rows(tmp_path / "qdt")) == 5 and (tmp_path / "qdt" / "values.safetensors").is_file()
    assert said(["--resume", str(tmp_path / "qdt")])


def test_generalized_dt_is_asked_for_the_visits_of_episodes(tmp_path):
    shown = said(["--method", "gdt", "cartpole", "--to", str(tmp_path / "run"), "--learn.features", "[0, 2]", *SHORT])
    assert [row["asked"] for row in rows(tmp_path / "run")] == sorted(row["asked"] for row in rows(tmp_path / "run"))
    assert all(0.0 <= row["distance"] < 10.0 for row in rows(tmp_path / "run")) and "distance" in shown
    assert load_matching(tmp_path / "run" / "policy").features.columns == (0, 2)


@pytest.mark.parametrize("method", ["ad", "pdt"])
def test_a_family_is_measured_on_tasks_that_are_held_out(method, tmp_path):
    few = ["--tasks", "3", "--held_out", "2", "--episodes", "4", "--trials", "3", "--evaluation", "2"]
    shown = said(["--method", method, "darkroom", "--output_dir", str(tmp_path / "run"), *few, *TINY])
    data = json.loads((tmp_path / "run" / "data.json").read_text())
    assert len(data["training"]) == 3 and len(data["held_out"]) == 2 and not {*data["training"]} & {*data["held_out"]}
    table = rows(tmp_path / "run")
    assert [(row["tasks"], row["episode"]) for row in table] == (
        [("held out", 1), ("held out", 3), ("training", 1), ("training", 3)]
        if method == "ad"
        else [("held out", 1), ("training", 1)]
    )
    page = (tmp_path / "run" / "report.html").read_text()
    assert "held out" in shown and "held out, episode 1" in page and "Number of tasks" in page
    config = families.COMMANDS[method].config(episodes=4)
    played = families._play_data(config, get_family("darkroom"), data["training"])
    returns = np.concatenate([task.episodes.returns for task in played])
    assert f"earned {returns.min():.2f} to {returns.max():.2f}, {returns.mean():.2f} on average" in page
    assert said(["--resume", str(tmp_path / "run")]) and rows(tmp_path / "run") == table


@pytest.mark.parametrize("method", ["gato", "multi_game"])
def test_one_policy_is_measured_in_every_world(method, tmp_path):
    few = ["--worlds", '["stitching", "cartpole"]', "--episodes", "3", "--horizon", "12", "--evaluation", "2"]
    said(["--method", method, "--output_dir", str(tmp_path / "run"), *few, *TINY])
    assert [row["world"] for row in rows(tmp_path / "run")] == ["stitching", "cartpole"]
    policy = load_generalist(tmp_path / "run" / "policy")
    assert bool(policy.return_bins) is (method == "multi_game")
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    (maze, pole) = rows(tmp_path / "run")
    assert page.count('scope="row"') >= 2 and all(f">{row['world']}</th>" in page for row in (maze, pole))
    assert f">{maze['score']:.2f}</td>" in page and f">{pole['data']:.2f}</td>" in page
    with pytest.raises(ConfigError, match="name each world once"):
        said(["--method", method, "--worlds", '["stitching", "stitching"]'])


def test_a_stopped_run_goes_on_to_the_same_policy(tmp_path, monkeypatch):
    words = ["--method", "odt", "pendulum", "--keep_every", "5", "--learn.rounds", "2", "--learn.updates", "3", *SHORT]
    said([*words, "--to", str(tmp_path / "whole")])
    write, explored = SequenceCheckpoint.write, sequence._play_round
    asked: list[int] = []

    def stops(self, model, optimizer):
        write(self, model, optimizer)
        if self.resume(model, optimizer, first=0).updates == stop:
            raise KeyboardInterrupt

    def counted(folder, place, seed, actor, number):
        asked.append(number)
        return explored(folder, place, seed, actor, number)

    monkeypatch.setattr(SequenceCheckpoint, "write", stops)
    monkeypatch.setattr(sequence, "_play_round", counted)
    stop = 5
    with pytest.raises(KeyboardInterrupt):
        said([*words, "--to", str(tmp_path / "parts")])
    for stop in (15, 0):  # in the first round, then to the end
        if stop:
            with pytest.raises(KeyboardInterrupt):
                said(["--resume", str(tmp_path / "parts")])
        else:
            said(["--resume", str(tmp_path / "parts")])
    assert rows(tmp_path / "parts") == rows(tmp_path / "whole")
    for name in ("policy/sequence.safetensors", "history.json", "played/1.safetensors"):
        assert (tmp_path / "parts" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert asked == [0, 0, 1]


def test_it_learns_from_a_file(tmp_path):
    h5py = pytest.importorskip("h5py")
    rng, path = np.random.default_rng(0), tmp_path / "pendulum.hdf5"
    with h5py.File(path, "w") as file:
        file["observations"], file["rewards"] = rng.normal(size=(40, 3)), rng.normal(size=40)
        file["actions"] = rng.uniform(-2, 2, (40, 1))  # as the world takes them
        file["terminals"], file["timeouts"] = np.zeros(40, bool), np.arange(40) % 10 == 9
    words = ["pendulum", "--data", str(path), "--evaluation", "1", "--horizon", "5", *TINY]
    said([*words, "--to", str(tmp_path / "run")])
    data = json.loads((tmp_path / "run" / "data.json").read_text())
    assert data["episodes"] == 4 and data["file"] == str(path) and len(rows(tmp_path / "run")) == 5
    with pytest.raises(ConfigError, match="set --world to the world of the episodes"):
        said(["hopper", "--data", str(path)]) if _mujoco() else said(["cartpole", "--data", str(_choices(path, h5py))])
    with h5py.File(path, "a") as file:
        file["rewards"][0] = 5.0
    with pytest.raises(ConfigError, match="was trained on different episodes"):
        said(["--resume", str(tmp_path / "run")])
    with h5py.File(path, "a") as file:
        del file["rewards"]
    with pytest.raises(SampleInvalid, match="D4RL"):
        said(words)


def _mujoco() -> bool:
    try:
        import mujoco  # noqa: F401
    except ImportError:
        return False
    return True


def _choices(path, h5py):
    """The same file with choices as actions: three numbers are seen, and CartPole shows four."""
    with h5py.File(path, "r") as file, h5py.File(path.with_suffix(".choices"), "w") as other:
        for name in ("observations", "rewards", "terminals", "timeouts"):
            other[name] = file[name][...]
        other["actions"] = np.zeros(40)
    return path.with_suffix(".choices")


def test_what_cannot_be(tmp_path, capsys):
    (tmp_path / "text").write_text("no HDF5")
    with pytest.raises(StoreUnavailable, match="HDF5"):
        said(["cartpole", "--data", str(tmp_path / "text")])
    with pytest.raises(StoreUnavailable, match="Minari"):
        said(["cartpole", "--data", str(tmp_path)])
    for words, match in (
        (["--method", "dtt"], "did you mean"),
        (["cartpol"], "cartpole"),
        (["stitching", "--mixture", "expert"], "pieces"),
        (["--method", "ad", "darkrom"], "darkroom"),
        (["--method", "gato", "hoper"], "hopper"),
        (["cartpole", "--mixture", "whole"], "whole"),
    ):
        with pytest.raises(ConfigError, match=match):
            said([*words, "--to", str(tmp_path / "none")])
    assert not (tmp_path / "none").exists()
    assert main(["train", "sequence", "--help"]) == 0
    assert "qt" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["cartpole", "--horizon", "5"], "both earn 5"),
        (["cartpole", "--learn.horizon", "60"], "learn.horizon"),
        (["--method", "bc", "stitching", "--targets", "[3]"], "does not use target returns"),
        (["cartpole", "--data", "nowhere.hdf5", "--mixture", "random"], "leave out --mixture"),
        (["cartpole", "--data", "nowhere.hdf5"], "nowhere.hdf5 does not exist"),
    ],
)
def test_what_could_not_be_measured_is_refused_before_it_is_learned(words, says, tmp_path):
    with pytest.raises(ConfigError, match=says):
        said([*words, "--episodes", "2", "--to", str(tmp_path / "run")])
    assert not (tmp_path / "run").exists()


def test_no_seed_of_data_is_that_of_measuring(monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr(
        sequence.SequenceTask, "play", lambda self, actor, *, episodes, seed: asked.append(seed) or self.data
    )
    said(["--method", "bc", "stitching", "--learn.seed", "77", "--to", str(tmp_path / "run"), *TINY])
    assert asked and not {77, 78} & set(asked)
