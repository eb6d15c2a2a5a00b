"""TRAD from the command line: a memory of the expert's episodes is built, and a model behind an endpoint plays."""

from __future__ import annotations

import pytest

from evolvent.agents.prompts import prompts_digest
from evolvent.bench.suite import read_sheet
from evolvent.cli.main import main
from evolvent.cli.setup.registry import load_worlds
from evolvent.store.store import Store
from tests.serve.small_policy import completion, scripted

OVER = ["--worlds", "household", "--tiers", "seen"]


@pytest.fixture(scope="module")
def memory(tmp_path_factory):
    folder = tmp_path_factory.mktemp("remembered")
    assert main(["collect", *OVER, "--limit", "12", "--to", str(folder / "shown")]) == 0
    words = ["--key", "thought", "--key", "metadata", "--key", "observation", "--kind_words", "1"]
    assert main(["memory", "build", str(folder / "shown"), "--to", str(folder / "memory"), *words]) == 0
    return folder / "memory"


def expert(asked):
    """A model that says what the expert thinks and does at the last observation that it reads."""
    world = load_worlds(("household",))["household"]
    steps = [step for task in world.tasks("test", "seen")[:2] for step in world.demonstrate(task)]

    def answer(number, path, body):
        if path.endswith("/models"):
            return 200, {}, {"data": [{"id": "m"}]}
        user = body["messages"][-1]["content"]
        asked.append((user, body["stop"], body["max_tokens"]))
        own = user.rpartition("Now it is your turn.")[2]
        best = max(
            (step for step in steps if own.count(str(step.observation))),
            key=lambda step: own.rfind(str(step.observation)),
        )
        text = best.thought if user.endswith("> think:") else best.action
        return 200, {}, completion(text, ids=None, logprobs=None, prompt=None)

    return answer


def test_a_model_plays_with_a_memory(memory, tmp_path, capsys):
    asked: list[tuple[str, list[str], int]] = []
    with scripted(expert(asked)) as (url, _):
        words = ["bench", "agent-eval", *OVER, "--limit", "2", "--agent", "endpoint", "--endpoint", url, "--model", "m"]
        shown = ["--memory.folder", str(memory), "--memory.kind_words", "1", "--to", str(tmp_path / "run")]
        assert main([*words, *shown]) == 0
    capsys.readouterr()
    with Store.open(tmp_path / "run" / "trajectories") as store:
        played = list(store.trajectories())
    assert [one.success for one in played] == [True, True]
    assert all(step.thought and step.info["shown"]["act"] for one in played for step in one.steps)
    about = read_sheet(tmp_path / "run" / "agent-eval.json").player.about
    assert (about["system"], about["prompts"]) == ("trad", prompts_digest())
    assert {(tuple(stop), most) for _, stop, most in asked} == {(("\n>",), 300), (("\n",), 100)}
    assert sum("[Step 0]" in user for user, _, _ in asked) == len(asked) / 2


@pytest.mark.parametrize(
    "system", ["synapse", *(pytest.param(one, marks=pytest.mark.long) for one in ("react", "rap"))]
)
def test_the_family(memory, tmp_path, capsys, system):
    asked: list[tuple[str, list[str], int]] = []
    with scripted(expert(asked)) as (url, _):
        words = ["--agent", "endpoint", "--endpoint", url, "--model", "m", "--split", "test", "--limit", "1"]
        shown = ["--memory.folder", str(memory), "--memory.system", system, "--memory.kind_words", "1"]
        assert main(["collect", *OVER, *words, *shown, "--to", str(tmp_path / "run")]) == 0
    capsys.readouterr()
    with Store.open(tmp_path / "run" / "trajectories") as store:
        (played,) = store.trajectories()
    assert played.success
    assert all(step.info["shown"]["act"] for step in played.steps)
    assert all("Now it is your turn." in user and "[Step" not in user for user, _, _ in asked)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--agent", "expert"], "--memory.folder cannot be used with --agent"),
        (["--agent", "policy", "--memory.system", "tard"], "'trad'"),
        (["--agent", "policy", "--memory.num_examples", "0"], "memory.num_examples: got '0'"),
    ],
)
def test_what_cannot_be(memory, tmp_path, capsys, words, told):
    given = ["collect", *OVER, *words, "--memory.folder", str(memory), "--to", str(tmp_path / "run")]
    assert main(given) == 2
    assert told in capsys.readouterr().err


def test_a_folder_that_is_no_memory(tmp_path, capsys):
    given = ["collect", *OVER, "--agent", "policy", "--memory.folder", str(tmp_path), "--to", str(tmp_path / "run")]
    assert main(given) in (1, 2)
    assert "memory" in capsys.readouterr().err
