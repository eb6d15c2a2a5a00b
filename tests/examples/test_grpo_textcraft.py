"""GRPO with LoRA as the script has it: in process, and with an endpoint that plays."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import evolvent as ev
from evolvent.models.policy import load_policy
from evolvent.models.tuned import kind_of
from tests.faults.launched import Launched
from tests.serve.command import command

SCRIPT = Path(__file__).parents[2] / "examples" / "grpo_textcraft.py"


def run(folder, *words):
    """The success in percent that the script prints, by tier; run in this folder."""
    with Launched(1, [SCRIPT, *words], cwd=folder) as process:
        assert process.wait() == [0], process.said()
        said = process.said()
    return {tier: int(rate) for tier, rate in re.findall(r"^(\w+) +(\d+)% \(", said, re.MULTILINE)}


def check(folder, rates):
    assert list(rates) == ["seen", "evo", "combo", "longer"] and rates["seen"] >= 40
    tuned, plain = (load_policy(folder / "runs" / "grpo-textcraft" / name) for name in ("adapter", "model"))
    assert (kind_of(tuned.model), kind_of(plain.model)) == ("lora", None)
    assert tuned.version - 1 == 10, "one version from imitation, and one an iteration"


@pytest.mark.long
@pytest.mark.parametrize("dialect", ["openai", "sglang"])
def test_an_endpoint_plays(tmp_path, dialect):
    ev.make_policy([ev.Lookup()], seed=1).save(tmp_path / "first")
    (tmp_path / "weights").mkdir()
    with command("--policy", tmp_path / "first", "--reload", tmp_path / "weights", OMP_NUM_THREADS="1") as server:
        check(tmp_path, run(tmp_path, "--endpoint", server.url, "first", tmp_path / "weights", dialect))
    newest = load_policy(max((tmp_path / "weights" / "snapshots").glob("step-*")))
    assert newest.version == 11 and kind_of(newest.model) is None


def test_in_process(tmp_path):
    check(tmp_path, run(tmp_path))
    assert len(SCRIPT.read_text(encoding="utf-8").splitlines()) <= 64


def test_a_dialect_that_nobody_speaks_is_told_at_once(tmp_path):
    with Launched(1, [SCRIPT, "--endpoint", "http://127.0.0.1:9", "m", tmp_path, "vlm"], cwd=tmp_path) as process:
        assert process.wait() != [0]
        assert "did you mean 'vllm'?" in process.said()


def test_a_models_folder_and_recipes_are_asked_for_by_name(tmp_path):
    with Launched(1, [SCRIPT, tmp_path / "missing"], cwd=tmp_path) as process:
        assert process.wait() != [0]
        assert "model folder not found" in process.said()
