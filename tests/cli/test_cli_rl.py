"""`evolvent train rl`: a whole practice from the command line, stopped and resumed, shown and refused."""

from __future__ import annotations

import json

import pytest

from evolvent.cli.main import main
from evolvent.cli.train.rl import METHODS
from evolvent.rl.trainer import PolicyTrainer

FEW = (
    "--worlds",
    "lookup",
    "--demonstrations",
    20,
    "--clone_tokens",
    600,
    "--tasks",
    12,
    "--panel.limit",
    4,
    "--rl.practice.tasks_per_iteration",
    3,
    "--rl.practice.group_size",
    2,
    "--rl.practice.iterations",
    2,
)


def told(capsys, *words):
    code = main([str(word) for word in words])
    caught = capsys.readouterr()
    return code, caught.out, caught.err


def rows(folder):
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return [row for row in lines if row["kind"] == "practise"]


LISTING = ("--worlds", "microwave", "--demonstrations", 1)  # three phrases; lookup lists hundreds
LONG = [name for name in METHODS if name not in ("poad", "grpo", "twosome")]


@pytest.mark.parametrize("name", [n if n not in LONG else pytest.param(n, marks=pytest.mark.long) for n in METHODS])
def test_every_method_runs_from_the_command_line(tmp_path, capsys, name):
    more = ("--rl.practice.measure_every", 1, *(LISTING if name in ("twosome", "glam") else ()))
    code, shown, error = told(capsys, "train", "rl", "--method", name, *FEW, *more, "--to", tmp_path / "run")
    assert code == 0, error
    assert "success" in shown and (tmp_path / "run" / "model" / "config.json").exists()
    found = rows(tmp_path / "run")
    assert [row["step"] for row in found] == [1, 2] and found[-1]["episodes"] >= 12
    assert found[-1]["env_steps"] > 0 and abs(found[-1]["mismatch"]) < 1e-6
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert "Why is it not learning?" in page
    code, shown, _ = told(capsys, "runs", "show", tmp_path / "run")
    assert code == 0 and "2 of 2 iterations" in shown and shown.count("practise") <= 3


def test_a_stopped_run_goes_on_as_its_own_method(tmp_path, capsys, monkeypatch):
    improve = PolicyTrainer.update

    def stops(self, seen, credit, **more):
        if self.iteration == 2:
            raise KeyboardInterrupt
        improve(self, seen, credit, **more)

    monkeypatch.setattr(PolicyTrainer, "update", stops)
    run = tmp_path / "run"
    words = ("--rl.practice.save_every", 1, "--rl.practice.critic", "own")
    code, _, error = told(capsys, "train", "rl", "--method", "ntpo", *FEW, *words, "--to", run)
    assert code == 130 and f"go on with: evolvent train rl --resume {run}" in error
    monkeypatch.undo()
    assert told(capsys, "train", "rl", "--resume", run)[0] == 0
    assert [row["step"] for row in rows(run)] == [1, 2]
    assert json.loads((run / "run.json").read_text(encoding="utf-8"))["method"] == "ntpo"
    whole = tmp_path / "whole"
    assert told(capsys, "train", "rl", "--method", "ntpo", *FEW, *words, "--to", whole)[0] == 0
    weights = [(folder / "model" / "model.safetensors").read_bytes() for folder in (run, whole)]
    assert weights[0] == weights[1]


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (("--method", "podad"), "unknown method 'podad' (did you mean 'poad'?)"),
        (("--method", "grpo", "--rl.kinds", "dapo"), "unknown key 'rl.kinds' (did you mean 'rl.kind'?)"),
        (("--method", "poad", "--worlds", "lokup"), "unknown world 'lokup' (did you mean 'lookup'?)"),
        (
            ("--method", "twosome", "--rl.kl", "0.1"),
            "kl, restrict_to_admissible and top_k cannot be used when the policy chooses among listed actions",
        ),
        (("--method", "poad", "--worlds", "lookup", "--demonstrations", "99999"), "training tasks"),
        (("--method", "poad", "--rl.practice.temperature", "0"), "expected"),
    ],
)
def test_refusals(tmp_path, capsys, words, what):
    code, _, error = told(capsys, "train", "rl", *words, "--to", tmp_path / "run")
    assert code == 2 and what in error and not (tmp_path / "run").exists()


def test_help_names_the_methods(capsys):
    code, shown, _ = told(capsys, "train", "rl")
    assert code == 0 and all(name in shown for name in METHODS)
    assert told(capsys, "train", "rl", "--method", "etpo", "--help")[1].count("--rl.") > 5
