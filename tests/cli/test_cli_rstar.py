"""rStar by command, over a model that has learned its prompts: rows, trees, going on, an endpoint, mistakes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from evolvent.cli import search as command_module
from evolvent.cli.main import main
from evolvent.engine.local import LocalEngine
from evolvent.models.policy import Policy, load_policy
from evolvent.rollout.search import SearchOutcome, SearchPlayer, search_starts
from evolvent.search.rstar import FOLLOWING
from evolvent.search.settings import ForestConfig
from evolvent.store.store import Store
from evolvent.trajectory import Start
from evolvent.worlds.reasoning.arithmetic import Arithmetic
from tests.search.solver import solver
from tests.serve.command import command

HOW: dict[str, Any] = {
    "method": "rstar",
    "value": "none",
    "max_tokens": 20,
    "span_tokens": 16,
    "temperature": 0.7,
    "rstar": {"rollouts": 4, "actions": (2, 4, 1, 1, 1), "last_votes": 6},
}
FEW = ["--search.rstar.rollouts", "4", "--search.rstar.actions", "2,4,1,1,1", "--search.rstar.last_votes", "6"]
PLAY = [
    "--worlds",
    "arithmetic",
    "--tiers",
    "seen",
    "--limit",
    "3",
    "--search.method",
    "rstar",
    "--search.value",
    "none",
    "--search.max_tokens",
    "20",
    "--search.span_tokens",
    "16",
    "--search.temperature",
    "0.7",
    *FEW,
]
TREES = [*PLAY, "--search.forest", "2", "--search.between", "vote", "--budgets", "400"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("solver")
    solver(folder / "run").save(folder / "model")
    return folder / "model"


@pytest.fixture(scope="module")
def policy(model: Path) -> Policy:
    return load_policy(model)


def rows(folder: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """The rows by method and task, without clocks."""
    lines = (folder / "searches.jsonl").read_text(encoding="utf-8").splitlines()
    found = {(row["method"], row["task"]): row for row in map(json.loads, lines)}
    assert len(found) == len(lines)
    for row in found.values():
        row["spent"].pop("seconds")
        row.pop("cpu_s")
    return found


@pytest.fixture(scope="module")
def whole(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "whole"
    assert main(["search", *TREES, "--policy", str(model), "--to", str(folder)]) == 0
    return folder


def play(policy: Policy, how: ForestConfig, *, count: int = 2, **more: Any) -> list[SearchOutcome]:
    world = Arithmetic()
    starts = [Start(task) for task in world.tasks("test", "seen")[:count]]
    player = SearchPlayer(policy, more.pop("engine", None) or LocalEngine(policy, slots=16), **more)
    return list(search_starts({world.name: world}, starts, how, player=player, seed=3, trees=count))


def test_rows_trees_and_records(whole: Path):
    found = rows(whole)
    assert list(dict.fromkeys(method for method, _ in found)) == ["greedy", "samples", "rstar*2"]
    own = [row for (method, _), row in found.items() if method == "rstar*2"]
    assert len(own) == 3 and all(0 < row["spent"]["generated"] <= 400 for row in own)
    assert any(row["answer"] for row in own) and all(row["success"] is not None for row in found.values())
    files = sorted((whole / "trees").glob("rstar-x2-400-*.json"))
    assert [path.stem[-2:] for path in files] == ["-1", "-2"] * 2
    kinds = set()
    for path in files:
        kept = json.loads(path.read_text(encoding="utf-8"))
        assert (kept["forest"], kept["tree"]["kind"][0]) == (2, "")
        above = kept["tree"]["kind"]
        pairs = {(above[at], kind) for at, kind in zip(kept["tree"]["parent"][1:], above[1:], strict=True)}
        assert all(kind in FOLLOWING[before] for before, kind in pairs)
        kinds |= set(above)
    assert {"A1", "A2", "A3", "A5"} <= kinds
    page = (whole / "report.html").read_text(encoding="utf-8")
    assert "rstar*2 at 400" in page and "2 trees of one problem, which share its budget" in page
    assert page.count("Tree 1 of 2: ") == page.count("Tree 2 of 2: ") == 2 and "<u>A3</u>" in page
    with Store.open(whole / "trajectories") as store:
        kept = {one.id: one for one in store.trajectories()}
    for row in own:
        (step,) = kept[row["trajectory"]].steps
        written = [generation for generation in step.generations if generation.acted]
        assert written and all(0 < generation.sampled.sum() <= 20 for generation in step.generations)
        assert not row["answer"] or step.action.endswith(f"### {row['answer']}")


def test_a_run_that_was_interrupted_goes_on_and_ends_the_same(
    model: Path, whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    append = command_module.append_line

    def stops(path: Path, row: dict[str, Any]) -> None:
        append(path, row)
        if row["method"] == "rstar*2":
            raise KeyboardInterrupt

    monkeypatch.setattr(command_module, "append_line", stops)
    folder = tmp_path / "run"
    assert main(["search", *TREES, "--policy", str(model), "--to", str(folder), "--slots", "1"]) == 130
    monkeypatch.undo()
    assert len(rows(folder)) == 7
    assert main(["search", "--resume", str(folder), "--slots", "2"]) == 0
    capsys.readouterr()
    assert rows(folder) == rows(whole)


@pytest.mark.parametrize("trees", [1, 3, *(pytest.param(many, marks=pytest.mark.long) for many in (2, 4))])
@pytest.mark.parametrize("limit", ["generated", "computed"])
def test_no_budget_is_exceeded(policy: Policy, trees: int, limit: str):
    most = {"generated": 340, "computed": 900}[limit]
    for one in play(policy, ForestConfig(**HOW, forest=trees, **{limit: most})):
        assert 0 < getattr(one.spent, limit) <= most and one.trajectory.error is None
        assert len(one.forest) == (trees if trees > 1 else 0) or one.ended_by == limit


def test_what_is_counted_is_what_the_engine_feeds(policy: Policy):
    engine = LocalEngine(policy, slots=16)
    how = ForestConfig(**{**HOW, "rstar": {**HOW["rstar"], "discriminator": "policy", "completions": 2}}, forest=2)
    (one,) = play(policy, how, count=1, engine=engine)
    assert (one.spent.generated, one.spent.computed) == (engine.usage.generated, engine.usage.computed)


def test_a_discriminator_leaves_what_it_found_again(policy: Policy):
    """Only the answers that the discriminator agreed with have weight; those of rollouts stay what they were."""
    plain = {one.start.task.id: one for one in play(policy, ForestConfig(**HOW), count=4)}
    how = ForestConfig(**{**HOW, "rstar": {**HOW["rstar"], "discriminator": "policy"}})
    judged = {one.start.task.id: one for one in play(policy, how, count=4)}
    for task, one in judged.items():
        assert one.tree["action"] == plain[task].tree["action"] and one.spent.generated >= plain[task].spent.generated
        before = {row["answer"]: row["weight"] for row in plain[task].answers}
        assert all(row["weight"] <= before[row["answer"]] + 1e-9 for row in one.answers)
    assert any(one.answers != plain[task].answers for task, one in judged.items())


@pytest.fixture(scope="module")
def served(model: Path):
    with command("--policy", str(model), "--slots", "8") as server:
        yield server


def test_an_endpoint_solves_as_its_policy_does(served: Any, model: Path, whole: Path, tmp_path: Path, capsys: Any):
    """The same policy over HTTP: what is asked, sampled, decided for and spent is the same."""
    asked = ["--endpoint", f"{served.url}/v1", "--model", "model", "--policy", str(model)]
    assert main(["search", *TREES, *asked, "--to", str(tmp_path / "asked")]) == 0, capsys.readouterr().err
    found, own = rows(tmp_path / "asked"), rows(whole)
    assert found.keys() == own.keys()
    for key, row in found.items():
        for name in ("success", "answer", "answers", "samples", "ended_by", "spent"):
            assert row[name] == own[key][name], (key, name)


@pytest.mark.long
def test_a_second_model_judges_here_or_behind_an_endpoint(served: Any, model: Path, tmp_path: Path, capsys: Any):
    """A judge with the policy's own weights completes what the policy would have: here and behind an endpoint."""
    words = [*PLAY, "--limit", "2", "--policy", str(model), "--trees", "0"]
    judges = {
        "policy": [],
        "judge": ["--judge", str(model)],
        "away": ["--judge", str(model), "--judge_endpoint", f"{served.url}/v1", "--judge_model", "model"],
    }
    found = {}
    for name, judge in judges.items():
        who = "policy" if name == "policy" else "judge"
        told = ["--search.rstar.discriminator", who, *judge, "--to", str(tmp_path / name)]
        assert main(["search", *words, *told]) == 0, capsys.readouterr().err
        found[name] = rows(tmp_path / name)
    for key, row in found["policy"].items():
        for name in ("answer", "answers", "success"):
            assert found["judge"][key][name] == found["away"][key][name] == row[name]
        for name in ("judge", "away"):
            assert found[name][key]["spent"]["generated"] == row["spent"]["generated"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--search.rstar.actions", "1,0,1,1,1"], "five numbers of 0 or more"),
        (["--search.rstar.discriminator", "judge"], "a discriminator 'judge' needs --judge FOLDER"),
        (["--judge_endpoint", "http://127.0.0.1:1/v1"], "a judge behind an endpoint needs --judge_endpoint URL"),
        (["--worlds", "lookup"], "'lookup' has several turns"),
        (["--worlds", "preference"], "'preference' does not ask for an answer"),
        (["--budgets", "79"], "generated: got a budget of 79, but a single request may take 80 tokens"),
        (["--search.forest", "5", "--budgets", "399"], "shared by 5 trees, but a single request may take 80 tokens"),
        (["--policy", "xs"], "rstar prompts in plain English, but this model knows only the words of its worlds"),
        (["--search.method", "rstars"], "rstar"),
    ],
)
def test_mistakes(words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], model: Path):
    code = main(["search", *PLAY, "--policy", str(model), *words, "--to", str(tmp_path / "run")])
    error = capsys.readouterr().err.replace("\n", " ")
    assert code == 2 and said in error, error
    assert not (tmp_path / "run").exists()
