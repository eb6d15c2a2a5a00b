"""`evolvent search` as a user meets it: rows, trees and table, a kill and going on, an endpoint, mistakes."""

from __future__ import annotations

import json
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest

import evolvent as ev
from evolvent.cli import search as command_module
from evolvent.cli.main import main
from evolvent.cli.setup.registry import load_worlds
from evolvent.models.heads import fresh_head
from evolvent.store.store import Store
from evolvent.worlds.deduction.world import Deduction
from tests.faults.launched import Launched
from tests.serve.command import command

PLAY = [
    "--worlds",
    "deduction",
    "--tiers",
    "seen",
    "--limit",
    "6",
    "--methods",
    "mcts",
    "--budgets",
    "120,240",
    "--search.max_tokens",
    "60",
    "--search.span_tokens",
    "20",
    "--search.separators",
    ";",
]
METHODS = ["greedy", "samples", "best_of_n", "mcts"]


@pytest.fixture(scope="module")
def beginner(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A policy that has learned how a deduction is written, with a value head that has learned nothing."""
    folder = tmp_path_factory.mktemp("policies")
    made = list(load_worlds(["deduction"]).values())
    with ev.local_run(folder / "run", made, train=ev.TrainConfig(lr=5e-3, batch_tokens=512)) as run:
        shown = ev.collect_demonstrations(made, made[0].tasks("train", "seen")[:60])
        policy = run.fit(ev.make_policy(made), shown, ev.weighted_nll, tokens=8000)
    replace(policy, value_head=fresh_head(policy.model.config.hidden_size, seed=0)).save(folder / "beginner")
    return folder / "beginner"


def told(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    code = main(["search", *map(str, words)])
    caught = capsys.readouterr()
    return code, caught.out, caught.err


def rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "searches.jsonl").read_text(encoding="utf-8").splitlines()]


def results(folder: Path) -> dict[Any, dict[str, Any]]:
    """The rows by what they are of, without clocks."""
    found = {(row["method"], row["budget"], row["task"]): row for row in rows(folder)}
    for row in found.values():
        row["spent"].pop("seconds")
        row.pop("cpu_s")
    return found


@pytest.fixture(scope="module")
def whole(beginner: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run from its beginning to its end."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    assert main(["search", *PLAY, "--policy", str(beginner), "--to", str(folder)]) == 0
    return folder


def test_every_search_has_a_row_a_trajectory_and_stays_in_its_budget(whole: Path):
    found = rows(whole)
    assert len(found) == 6 + 2 * 3 * 6 and len(results(whole)) == len(found)
    assert list(dict.fromkeys(row["method"] for row in found)) == METHODS
    assert {row["budget"] for row in found if row["method"] != "greedy"} == {120, 240}
    assert all(row["spent"]["generated"] <= row["budget"] for row in found if row["budget"])
    assert any(row["success"] for row in found) and not all(row["success"] for row in found)
    assert all(row["passed"] or not row["success"] or not row["samples"] for row in found)
    with Store.open(whole / "trajectories") as store:
        kept = {one.id: one for one in store.trajectories()}
    assert [(kept[row["trajectory"]].success, kept[row["trajectory"]].task.id) for row in found] == [
        (row["success"], row["task"]) for row in found
    ]
    assert json.loads((whole / "run.json").read_text(encoding="utf-8"))["state"] == "finished"


def test_self_consistency_and_best_of_n_use_what_a_search_may_use(whole: Path):
    """They draw the same samples, more of them in a larger budget, and so are right for as many tasks by any."""
    found = results(whole)
    for (method, budget, task), row in found.items():
        if method == "samples":
            assert row["samples"] == found["best_of_n", budget, task]["samples"]
            assert row["passed"] == found["best_of_n", budget, task]["passed"]
    counts = {
        budget: sum(
            row["samples"] for (method, given, _), row in found.items() if (method, given) == ("samples", budget)
        )
        for budget in (120, 240)
    }
    assert counts[240] > counts[120] >= 6


def test_trees_of_the_first_tasks_and_the_page(whole: Path):
    first = {task.id for task in Deduction().tasks("test", "seen")[:2]}
    names = {path.name for path in (whole / "trees").iterdir()}
    stages = ["greedy", *(f"{method}-{budget}" for method in METHODS[1:] for budget in (120, 240))]
    assert names == {f"{stage}-{task}.json" for stage in stages for task in first}
    page = (whole / "report.html").read_text(encoding="utf-8")
    assert page.count('class="tree"') == len(names) and "Every method and budget" in page
    assert "mcts at 240" in page and "Values come from the world" not in page


def test_the_table_fits_and_says_what_any_sample_could_win(whole: Path, capsys: pytest.CaptureFixture[str]):
    """A finished run that goes on searches nothing again, and tells the same."""
    before = (whole / "searches.jsonl").read_bytes()
    code, shown, _ = told(capsys, "--resume", whole)
    assert code == 0 and (whole / "searches.jsonl").read_bytes() == before
    assert max(map(len, shown[shown.index("deduction: 6") : shown.index("deduction, ")].splitlines())) <= 80
    assert "right, % (95 %)" in shown and "not gradable: 0%" in shown and "searches/s" not in shown
    assert "came to no end within their limits" in shown


def test_a_killed_run_goes_on_and_ends_the_same(beginner: Path, whole: Path, tmp_path: Path):
    """SIGKILL in the midst; going on, other slots and a row that a kill has torn change nothing."""
    folder = tmp_path / "run"
    words = [*PLAY, "--policy", str(beginner), "--to", str(folder), "--slots", "1"]
    file = folder / "searches.jsonl"
    with Launched(1, ["search", *words], cwd=tmp_path) as search:
        while search.processes[0].is_alive() and not (file.exists() and file.read_bytes().count(b"\n") >= 9):
            time.sleep(0.005)
        search.signal(signal.SIGKILL)
        assert search.wait() == [-signal.SIGKILL]
    done = rows(folder)
    assert 9 <= len(done) < len(rows(whole)), "killed in the midst"
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(lines[:-2]) + lines[-2][:40])  # one row lost and one torn; their episodes are stored
    assert main(["search", "--resume", str(folder), "--slots", "5"]) == 0
    assert results(folder) == results(whole)
    assert len(rows(folder)) == len(rows(whole))
    with Store.open(folder / "trajectories") as store, Store.open(whole / "trajectories") as other:
        assert {one.id: one for one in store.trajectories()} == {one.id: one for one in other.trajectories()}
    assert sorted(path.name for path in (folder / "trees").iterdir()) == sorted(
        path.name for path in (whole / "trees").iterdir()
    )


def test_ctrl_c_keeps_what_is_finished_and_says_how_to_go_on(
    beginner: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    append = command_module.append_line

    def stops(path: Path, row: dict[str, Any]) -> None:
        append(path, row)
        if len(rows(tmp_path / "run")) == 8:
            raise KeyboardInterrupt

    monkeypatch.setattr(command_module, "append_line", stops)
    code, _, error = told(capsys, *PLAY, "--policy", beginner, "--to", tmp_path / "run")
    assert code == 130 and f"go on with: evolvent search --resume {tmp_path / 'run'}" in error
    assert len(rows(tmp_path / "run")) == 8
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert "This run was interrupted" in page and "greedy" in page


def test_what_cannot_be_scored_is_no_zero(
    beginner: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    """The grader fails on one task: its rate is withheld, the exit code 1; resumed, only that task is searched."""
    folder, tasks = tmp_path / "run", Deduction().tasks("test", "seen")[:4]
    make = Deduction.make

    def fails(self: Deduction, task: ev.Task) -> Any:
        if task.id == tasks[1].id:
            raise OSError("the grader is gone")
        return make(self, task)

    monkeypatch.setattr(Deduction, "make", fails)
    words = [*PLAY[:4], "--limit", "4", "--methods", "greedy,samples", "--budgets", "120", *PLAY[10:]]
    code, shown, _ = told(capsys, *words, "--policy", beginner, "--to", folder)
    assert code == 1 and shown.count("1 not scored") >= 2 and "not gradable: 25.0%" in shown
    assert "the grader is gone" in shown and f"evolvent search --resume {folder}" in shown
    lost = [row for row in rows(folder) if row["success"] is None]
    assert {row["task"] for row in lost} == {tasks[1].id} and all("EnvLost" in row["error"] for row in lost)
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "could not be scored" in page and "withheld" in page
    monkeypatch.undo()
    before = len(rows(folder))
    code, shown, _ = told(capsys, "--resume", folder)
    assert code == 0 and "not scored" not in shown
    assert {row["task"] for row in rows(folder)[before:]} == {tasks[1].id} and len(rows(folder)) == before + len(lost)
    assert all(row["trajectory"].endswith("~1") for row in rows(folder)[before:])


@pytest.mark.long
def test_turns_of_a_world_that_goes_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Countdown, by an untrained policy and what the world pays: that values are its verdicts is said."""
    words = [
        "--worlds",
        "countdown",
        "--tiers",
        "seen",
        "--limit",
        "2",
        "--methods",
        "gumbel",
        "--budgets",
        "20",
        "--budget_unit",
        "expansions",
        "--search.value",
        "reward",
        "--search.span_tokens",
        "6",
        "--search.simulations",
        "4",
        "--search.depth",
        "4",
    ]
    code, shown, error = told(capsys, *words, "--to", tmp_path / "run")
    assert code == 0, error
    assert "the world's own verdicts" in shown
    assert all(row["spent"]["expansions"] <= 20 for row in rows(tmp_path / "run") if row["budget"])
    assert "Values come from the world" in (tmp_path / "run" / "report.html").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def served(beginner: Path):
    with command("--policy", str(beginner), "--slots", "8") as server:
        yield server


def generated(server: Any) -> float:
    """How many requests of `/generate`, SGLang's route, a server has answered."""
    text = httpx2.get(f"{server.url}/metrics", trust_env=False, timeout=60).text
    lines = [line for line in text.splitlines() if "http_requests_total{" in line and 'face="generate"' in line]
    return sum(float(line.split()[-1]) for line in lines)


@pytest.mark.parametrize("dialect", ["openai", "sglang"])
def test_an_endpoint_searches_as_its_policy_does(
    served: Any, beginner: Path, whole: Path, tmp_path: Path, capsys, dialect
):
    """The same policy over HTTP, judged here: what is sampled, decided for and spent is the same."""
    before = generated(served)
    asked = [
        "--dialect",
        dialect,
        "--endpoint",
        f"{served.url}/v1",
        "--model",
        "beginner",
        "--judge",
        beginner,
        "--policy",
        beginner,
    ]
    words = [*PLAY[:8], "--budgets", "120", *PLAY[10:]]
    code, _, error = told(capsys, *words, *asked, "--to", tmp_path / "asked")
    assert code == 0, error
    assert (generated(served) > before) == (dialect == "sglang")
    found, own = results(tmp_path / "asked"), results(whole)
    assert found and all(row["budget"] in (None, 120) for row in found.values())
    for key, row in found.items():
        here = own[key]
        assert [row[name] for name in ("success", "answer", "samples", "ended_by")] == [
            here[name] for name in ("success", "answer", "samples", "ended_by")
        ]
        assert row["spent"]["generated"] == here["spent"]["generated"]


def test_an_endpoint_without_the_model_is_refused(served: Any, beginner: Path, tmp_path: Path, capsys):
    words = ["--endpoint", f"{served.url}/v1", "--policy", beginner, "--judge", beginner, "--to", tmp_path / "run"]
    code, _, error = told(capsys, *PLAY, *words, "--model", "begginer")
    assert code == 2 and "did you mean 'beginner'" in error and not (tmp_path / "run").exists()


AWAY = ["--endpoint", "http://127.0.0.1:9/v1"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--methods", "mtcs"], "methods: got 'mtcs', expected list of 'greedy'"),
        (["--worlds", "countdwn"], "did you mean 'countdown'?"),
        (["--tiers", "sen"], "did you mean 'seen'?"),
        (["--budgets", "0"], "budgets: got 0, expected 1 or more"),
        (["--budgets", "many"], "budgets: got 'many', expected list of int"),
        (["--budgets", "9,9", "--methods", "mcts,mcts"], "methods: mcts occurs twice; budgets: 9 occurs twice"),
        (["--budgets", "9", "--search.generated", "9"], "budgets and search.generated limit the same"),
        (["--budget_unit", "tokens"], "expected 'generated' or 'computed' or 'expansions'"),
        (["--search.widht", "3"], "did you mean 'search.width'?"),
        (
            ["--worlds", "deduction", "--methods", "gumbel", "--search.considered", "9", "--search.simulations", "4"],
            "search (gumbel): considered (9) must be at most simulations (4)",
        ),
        (["--search.level", "span"], "has episodes of several turns"),
        (["--worlds", "deduction"], "needs a value head, but this policy has none"),
        (["--search.score", "generative", "--worlds", "deduction"], "needs ' Yes' and ' No' as single tokens"),
        (["--worlds", "deduction", "--policy", "nowhere"], "unknown policy 'nowhere'"),
        (["--worlds", "deduction", "--judge", "xs"], "unknown judge 'xs' (a model folder, or the folder of a run)"),
        (AWAY, "an endpoint needs both --endpoint URL and --model NAME"),
        ([*AWAY, "--model", "m"], "--policy names the folder of the model that it serves"),
        ([*AWAY, "--model", "m", "--policy", ".", "--search.level", "token"], "an endpoint gives no logits"),
        ([*AWAY, "--model", "m", "--policy", "."], "an endpoint gives no values: name --judge FOLDER"),
        (["--dialect", "sglan"], "dialect: got 'sglan', expected 'openai' or 'vllm' or 'sglang'"),
        (["fancy"], "unexpected 'fancy'"),
        (["--resume", "nowhere"], "nowhere is not a run: config.toml is missing"),
    ],
)
def test_mistakes(words, said, tmp_path, capsys):
    more = [] if "--resume" in words else ["--to", tmp_path / "run"]
    code, _, error = told(capsys, *words, *more)
    assert code == 2 and said in error.replace("\n", " ")
    assert not (tmp_path / "run").exists()


def test_help_names_what_stands_beside(capsys):
    code, shown, _ = told(capsys, "--help")
    assert code == 0 and "best of n" in shown and shown.count("--search.") > 20
