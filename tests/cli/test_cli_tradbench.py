"""`evolvent bench trad`: a model behind an endpoint plays all systems, in a household and on Mind2Web's files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from evolvent.bench.suite import list_panels
from evolvent.cli.main import main
from evolvent.cli.setup.agent_options import MemoryConfig, TokenUsage
from evolvent.cli.setup.registry import load_worlds
from evolvent.cli.tradbench import TradBenchConfig, _describe_order, _SystemResult
from evolvent.store.store import Store
from evolvent.worlds.web_replay.generated import write_rows
from evolvent.worlds.web_replay.world import WebReplayWorld
from tests.serve.small_policy import completion, scripted


def build_memory(folder, *collected):
    assert main(["collect", *collected, "--limit", "12", "--output_dir", str(folder / "shown")]) == 0
    words = ["--key", "thought", "--key", "metadata", "--key", "observation"]
    assert main(["memory", "build", str(folder / "shown"), "--to", str(folder / "memory"), *words]) == 0
    return ["--memory.folder", str(folder / "memory")]


def model(plans, lost):
    """Answers as the recorded steps where the prompt numbers the steps around the one that was found, else by `lost`.

    Args:
        plans: (text of an observation, thought, action).
        lost: returns the action where nothing is numbered, from the right one.
    """

    def answer(number, path, body):
        if path.endswith("/models"):
            return 200, {}, {"data": [{"id": "m"}]}
        shown, _, own = body["messages"][-1]["content"].rpartition("Now it is your turn.")
        _, thought, action = max((plan for plan in plans if plan[0] in own), key=lambda plan: own.rfind(plan[0]))
        text = thought if own.endswith("> think:") else action if "[Step 0]" in shown else lost(action)
        return 200, {}, completion(text, ids=None, logprobs=None, prompt=None)

    return answer


@pytest.mark.long
def test_a_household_is_played_by_all_systems(tmp_path, capsys):
    over = ["--worlds", "household", "--tiers", "seen"]
    memory = build_memory(tmp_path, *over)
    world = load_worlds(("household",))["household"]
    tasks = world.tasks("test", "seen")[:3]
    plans = [(str(step.observation), step.thought, step.action) for task in tasks for step in world.demonstrate(task)]
    with scripted(model(plans, lambda action: "look")) as (url, _):
        words = [
            "bench",
            "trad",
            *over,
            "--limit",
            "3",
            "--agent",
            "endpoint",
            "--endpoint",
            url,
            "--model",
            "m",
            *memory,
        ]
        words += [
            "--model",
            "m",
            "--systems",
            "trad,synapse,zero_shot",
            "--horizon",
            "9",
            "--output_dir",
            str(tmp_path / "run"),
        ]
        assert main(words) == 0
        shown = capsys.readouterr().out
        assert main(["bench", "trad", "--resume", str(tmp_path / "run")]) == 0
    assert capsys.readouterr().out.endswith(shown[shown.index("household/seen: ") :])
    results = json.loads((tmp_path / "run" / "trad.json").read_text())
    won = [float(len(world.expert(task)) <= 9) for task in tasks]
    assert {row["system"]: row["scores"] for row in results["panels"]} == {
        "trad": won,
        "synapse": [0.0] * 3,
        "zero_shot": [0.0] * 3,
    }
    assert shown.count("trad - ") == 2 and "household/seen: trad " in shown
    with Store.open(tmp_path / "run" / "trajectories") as store:
        assert sum(1 for _ in store.trajectories()) == 9
        assert max(len(episode.steps) for episode in store.trajectories()) == 9


def test_mind2webs_files_are_scored_by_steps(tmp_path, capsys):
    """Cross-task and cross-website: who clicks where something is to be typed has the element and not the step."""
    data = tmp_path / "data"
    write_rows(data, pages=60)
    rows = json.loads((data / "test_task" / "test_task_0.json").read_text())
    (data / "test_website").mkdir()
    for name, part in (("test_task", rows[::2]), ("test_website", rows[1::2])):
        (data / name / f"{name}_0.json").write_text(json.dumps(part))
    memory = build_memory(tmp_path, "--worlds", f"webreplay:{data}", "--split", "train")
    world = WebReplayWorld(data, data / "ranks.json")
    tasks = {tier: world.tasks("test", tier) for tier in ("seen", "website")}
    plans = []
    for task in (*tasks["seen"], *tasks["website"]):
        env = world.make(task)
        observation, _ = env.reset()
        for action in world.expert(task):
            plans.append((observation.splitlines()[0] + "\n", observation.splitlines()[-1], action))
            observation, *_ = env.step(action)

    def answer(number, path, body):
        if path.endswith("/models"):
            return 200, {}, {"data": [{"id": "m"}]}
        shown, _, own = body["messages"][-1]["content"].rpartition("Now it is your turn.")
        fitting = [plan for plan in plans if plan[0] in own and plan[1] in own]
        action = max(fitting, key=lambda plan: own.rfind(plan[1]))[2]
        click = f"CLICK [{action.split('[')[1].split(']')[0]}]"
        text = "on" if own.endswith("> think:") else action if "[Step 0]" in shown else click
        return 200, {}, completion(text, ids=None, logprobs=None, prompt=None)

    with scripted(answer) as (url, _):
        words = ["bench", "trad", "--worlds", f"webreplay:{data}", "--agent", "endpoint", "--endpoint", url, *memory]
        words += ["--model", "m", "--systems", "trad,synapse", "--output_dir", str(tmp_path / "run")]
        assert main(words) == 0
    shown = capsys.readouterr().out
    panels = json.loads((tmp_path / "run" / "trad.json").read_text())["panels"]
    results = {(row["tier"], row["system"]): row for row in panels}
    assert len(results) == 4 and "mind2web/website: trad" in shown
    for tier, tier_tasks in tasks.items():
        visible = [[not target.is_hidden for target in world.targets(task)] for task in tier_tasks]
        clicks = [[target.operation == "CLICK" for target in world.targets(task)] for task in tier_tasks]
        assert results[tier, "trad"]["scores"] == [sum(shares) / len(shares) for shares in visible]
        both = [[a and b for a, b in zip(*pair, strict=True)] for pair in zip(visible, clicks, strict=True)]
        assert results[tier, "synapse"]["scores"] == [sum(shares) / len(shares) for shares in both]
        assert 0 < sum(map(sum, both)) < sum(map(sum, visible))
        web = results[tier, "synapse"]["web"]
        assert web["micro"]["element"] == pytest.approx(sum(map(sum, visible)) / sum(map(len, visible)))
        assert web["task_success"] == sum(all(shares) for shares in both) / len(both)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "needs --memory.folder, made by evolvent memory build"),
        (["--systems", "tard", "--memory.folder", "m"], "unknown systems 'tard' (did you mean 'trad'?)"),
        (["--systems", "trad,trad", "--memory.folder", "m"], "expected each once"),
        (["--memory.folder", "m", "--memory.system", "rap"], "name them with --systems"),
        (["--agent", "random", "--systems", "zero_shot"], "needs --agent policy or endpoint, got random"),
    ],
)
def test_mistakes_are_told_before_anything_is_played(words, said, capsys):
    assert main(["bench", "trad", *words]) == 2
    assert said in capsys.readouterr().err


def test_a_system_that_was_not_scored_is_last_and_told():
    """It used to be shown with 0 %."""
    world = load_worlds(("lookup",))["lookup"]
    panel = list_panels({"lookup": world}, split="test", tiers=("seen",), limit=1)[0]
    scores = {"zero_shot": None, "synapse": 0.0, "trad": 1.0}
    results = [_SystemResult(name, panel, (), (score,), None, TokenUsage()) for name, score in scores.items()]
    config = TradBenchConfig(systems=("trad", "synapse", "zero_shot"), memory=MemoryConfig(folder=Path("memory")))
    assert _describe_order(results, config) == ["lookup/seen: trad 100%, synapse 0%, zero_shot not scored"]
