"""`evolvent train rl --method ppo` with a policy over numbers: a run from the first word to `eval`, and refusals."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from evolvent.cli.eval import run as run_eval
from evolvent.cli.main import main
from evolvent.cli.train.command import run
from evolvent.cli.train.control import is_control_request
from evolvent.errors import ConfigError, ShapeMismatch

WORLD = "gymnasium:CartPole-v1?horizon=30"
SMALL = ["--rl.iterations", "2", "--rl.rows", "4", "--rl.steps", "16", "--rl.width", "8", "--panel.limit", "4"]


def printed(command, words: list[str]) -> str:
    console = Console(file=io.StringIO(), width=160)
    assert command(words, console) == 0
    return console.file.getvalue()


def test_a_run_is_trained_resumed_and_measured(tmp_path, capsys):
    folder = tmp_path / "run"
    first = printed(run, ["rl", "--method", "ppo", "--worlds", WORLD, "--to", str(folder), *SMALL])
    assert "1200 train, 100 dev, 200 test seeds" in first and "training, 2/2 iterations" in first
    record = json.loads((folder / "run.json").read_text())
    assert (record["method"], record["state"], record["config"]["policy"]) == ("ppo", "finished", "mlp")
    page = (folder / "report.html").read_text()
    assert "gymnasium:CartPole-v1" in page and "of 2 iterations" in page
    again = printed(run, ["ppo", "--resume", str(folder)])
    assert "not done again" in again
    measured = printed(run_eval, [str(folder), "--worlds", WORLD, "--to", str(tmp_path / "eval"), "--panel.limit", "4"])
    lines = [line.split() for text in (first, again, measured) for line in text.splitlines()]
    tables = [words for words in lines if words[:2] == ["gymnasium:CartPole-v1", "seen"]]
    assert len(tables) == 3 and tables[0] == tables[1] == tables[2]
    for verb in (
        ["chat", str(folder), "--once", "hi"],
        ["serve", "--policy", str(folder)],
        ["search", "--policy", str(folder)],
    ):
        assert main(verb) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert "is a policy over numbers: it reads and writes no text (measure it with evolvent eval" in line, verb
    further = printed(run, ["ppo", "--worlds", WORLD, "--policy", str(folder), "--to", str(tmp_path / "more"), *SMALL])
    assert "training, 2/2 iterations" in further


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["--worlds", "gymnasium:CartPole-v1"], True),
        (["--worlds=gymnasium:CartPole-v1,gymnasium:Acrobot-v1"], True),
        (["--worlds", '["gymnasium:CartPole-v1"]'], True),
        (["--worlds", "gymnasium:CartPole-v1,lookup"], False),
        (["--worlds", "lookup"], False),
        (["--worlds", "lookup", "--policy", "mlp"], True),
        (["--worlds", "gymnasium:CartPole-v1", "--policy", "xs"], False),
        ([], False),
    ],
)
def test_a_policy_over_numbers_is_meant_where_it_fits(argv, expected):
    assert is_control_request(argv) is expected


def test_settings_come_from_a_file_too(tmp_path):
    file = tmp_path / "settings.toml"
    file.write_text(f'worlds = ["{WORLD}"]\n', encoding="utf-8")
    assert is_control_request([str(file)]) and is_control_request(["--config", str(file)])
    assert not is_control_request([str(file), "--policy", "xs"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--worlds", "lookup", "--policy", "mlp"], "'lookup' is told as text alone .name a language policy"),
        (["--worlds", f"{WORLD},gymnasium:Acrobot-v1"], "got 2 worlds, expected one for a policy over numbers"),
        (["--worlds", "gymnasium:CartPole-v8"], "unknown environment 'CartPole-v8'"),
        (["--worlds", WORLD, "--rl.minibatches", "9999"], "got 9999, expected at most the 2048 steps"),
        (["--worlds", WORLD, "--rl.learning_rate", "1"], "unknown key 'rl.learning_rate'"),
    ],
)
def test_mistakes_are_told_before_a_run_is_begun(words, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=message):
        run(["ppo", *words], Console(file=io.StringIO()))
    assert not (tmp_path / "runs").exists()


def test_a_policy_of_another_environment_is_refused(tmp_path):
    printed(run, ["ppo", "--worlds", WORLD, "--to", str(tmp_path / "run"), *SMALL])
    with pytest.raises(ShapeMismatch, match=r"observations of 4 numbers .*, expected observations of 6"):
        words = ["--worlds", "gymnasium:Acrobot-v1", "--policy", str(tmp_path / "run"), "--to", str(tmp_path / "other")]
        run(["ppo", *words], Console(file=io.StringIO()))
