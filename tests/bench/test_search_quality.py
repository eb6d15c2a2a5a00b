"""The search benchmark: settings that fill a budget, hindsight that tells the truth, figures worked out by hand."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.search_bases import QUICK, base_of, panel, world_of
from benchmarks.search_heads import look_alike
from benchmarks.search_quality.__main__ import QUICK as PROTOCOL
from benchmarks.search_quality.__main__ import Cells, of_task
from benchmarks.search_quality.cell import run_cell
from benchmarks.search_quality.judges import hindsight, judge_of, said_at, sampled
from benchmarks.search_quality.protocol import METHODS, TASKS, Cell, Protocol, how_of
from evolvent.agents.language import LanguageAgent
from evolvent.engine.asks import Sampling
from evolvent.engine.local import LocalEngine
from evolvent.models.policy import Policy, tiny_policy
from evolvent.rollout.episode import collect
from evolvent.trajectory import Start, Trajectory
from evolvent.worlds.countdown import Countdown


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where policies and judges of the quick protocol are kept."""
    return tmp_path_factory.mktemp("quality")


# ------------------------------------------------------------------ settings


@pytest.mark.parametrize("task", TASKS)
def test_a_beam_fills_its_budget_and_the_next_wider_one_does_not_fit(task: str) -> None:
    place = TASKS[task]
    for budget in place.budgets:
        how = how_of(Cell(task, 0, "beam", budget))
        assert how.width == how.paths
        need = [w * (1 + (place.moves - 1) * w) * place.child for w in (how.width, how.width + 1)]
        assert need[0] <= budget or how.width == 2
        assert need[1] > budget or how.width == place.widest


@pytest.mark.parametrize("budget", TASKS["countdown"].budgets)
def test_all_methods_of_a_budget_have_the_same_limit_and_all_searches_are_as_wide(budget: int) -> None:
    hows = {method: how_of(Cell("countdown", 0, method, budget)) for method in METHODS[1:]}
    assert {how.computed for how in hows.values()} == {budget}
    assert {how.terminal for how in hows.values()} == {"value"}  # nobody is told what the world pays
    assert len({hows[name].width for name in ("beam", "mcts", "gumbel")}) == 1
    assert not hows["samples"].uses_judge and all(hows[name].uses_judge for name in METHODS[2:])
    assert how_of(Cell("countdown", 0, "greedy", 0)).computed is None


def test_what_changes_a_cell_changes_its_digest_and_nothing_else_does() -> None:
    protocol = Protocol()
    same = [replace(protocol, seeds=(7,)), replace(protocol, budgets=1), replace(protocol, loop_tasks=5)]
    assert {one.digest("countdown") for one in same} == {protocol.digest("countdown")}
    other = [replace(protocol, panel=99), replace(protocol, judge_tokens=1), replace(protocol, quick=True)]
    assert len({one.digest("countdown") for one in (protocol, *other)}) == 4
    assert protocol.digest("deduction") != protocol.digest("countdown")
    assert same[2].loop_digest("countdown") != protocol.loop_digest("countdown") == same[0].loop_digest("countdown")


@pytest.mark.long
@pytest.mark.parametrize("task", ["deduction", "preference"])
def test_there_are_as_many_tasks_as_the_protocol_asks_for(task: str) -> None:
    protocol = Protocol()
    for split, count in (("train", protocol.judged), ("dev", 60), ("test", protocol.panel)):
        assert len({one.id for one in panel(task, split, count, bases=protocol.bases)}) == count


# ------------------------------------------------------------------ hindsight


def _tried(folder: Path, held_out: set[str]) -> tuple[Policy, Countdown, list[Trajectory], list[Trajectory]]:
    """Legal episodes of a policy that has learned next to nothing, and what hindsight makes of them."""
    policy, world = base_of("countdown", 0, folder, bases=QUICK), world_of("countdown", bases=QUICK)
    assert isinstance(world, Countdown)
    agent = LanguageAgent(policy, Sampling(1.0), max_tokens=8, restrict_to_admissible=True)
    starts = [Start(task) for task in panel("countdown", "train", 30, bases=QUICK)]
    tried = list(collect({world.name: world}, starts, agent, engine=LocalEngine(policy)))
    return policy, world, tried, hindsight(tried, policy, world, goal="make", held_out=held_out)


@pytest.mark.long
def test_in_hindsight_an_episode_made_what_was_asked_for(folder: Path) -> None:
    policy, world, tried, told = _tried(folder, set())
    before = {one.id: one for one in tried}
    assert told
    for one in told:
        was = before[one.id.removesuffix("/told")]
        assert was.score.unit == 0 and one.score.unit == 1
        made = str(was.final_observation).removeprefix("left ")
        ids, old = one.steps[0].generations[0].ids, was.steps[0].generations[0].ids
        changed = np.flatnonzero(ids != old).tolist()
        assert [policy.tokenizer.decode([ids[at]]).strip() for at in changed] == [made]
        assert policy.tokenizer.decode([ids[changed[0] - 1]]).strip() == "make"
        env = world.make(one.task)  # played for the number it made, it is a success
        env.reset()
        assert [env.step(str(step.action))[1] for step in was.steps][-1] == 1.0


def test_hindsight_tells_nothing_of_held_out_tasks(folder: Path) -> None:
    _, world, _, told = _tried(folder, set())
    key = world.key(told[0].task)
    left = _tried(folder, {key})[3]
    assert 0 < len(told) - len(left) == sum(world.key(one.task) == key for one in told)


# ------------------------------------------------------------------ heads


def test_heads_that_look_alike_find_the_same_word_wherever_it_stands() -> None:
    policy = tiny_policy([f"w{number}" for number in range(50)], context=64)
    policy.model.config.rope_parameters = {"rope_type": "default", "rope_theta": 3000.0}
    policy = Policy(type(policy.model)(policy.model.config).eval(), policy.tokenizer, policy.dialect)
    with torch.no_grad():
        policy.model.model.embed_tokens.weight.normal_(0.0, 0.25)
    policy.model.set_attn_implementation("eager")
    look_alike(policy)
    words = [10 + 3 * place % 40 for place in range(12)]
    ids = torch.tensor([[*words, *words]])  # each word again, twelve places on
    attention = policy.model(ids, output_attentions=True).attentions[1][0]
    for head in range(2):
        again = attention[head].diagonal(-12)
        assert again.mean() > 0.3  # as much as it gives to itself
        assert (attention[head][12:].diagonal(12) + again).mean() > 0.7
    assert attention[3].diagonal(-12).mean() < 0.2


# ------------------------------------------------------------------ judges and cells


def test_a_judge_is_made_once_and_says_a_chance_at_every_state(folder: Path) -> None:
    judge, worth = judge_of(PROTOCOL, "countdown", 0, folder)
    assert worth.keys() == {"auc", "auc_half"}
    again, same = judge_of(PROTOCOL, "countdown", 0, folder)
    assert same == worth
    tried = sampled(
        PROTOCOL,
        base_of("countdown", 0, folder, bases=QUICK),
        panel("countdown", "dev", 4, bases=QUICK),
        samples=2,
        seed=3,
    )
    said, before = said_at(again, tried, "countdown"), said_at(judge, tried, "countdown")
    for one in tried:
        assert said[one.id].shape == (len(one.steps) + 1,)  # before every action, and at the end
        assert ((said[one.id] > 0) & (said[one.id] < 1)).all()
        np.testing.assert_array_equal(said[one.id], before[one.id])


@pytest.mark.parametrize("method", ["samples", "best_of_n", "beam", "mcts", "gumbel"])
def test_no_search_of_a_cell_passes_its_budget(method: str, folder: Path) -> None:
    row = run_cell(PROTOCOL, folder, Cell("countdown", 0, method, 500))
    assert 0 < row["most_computed"] <= 500
    assert len(row["values"]) == PROTOCOL.panel and set(row["values"]) <= {0.0, 1.0}
    assert row["digest"] == PROTOCOL.digest("countdown")


# ------------------------------------------------------------------ figures


def _row(cell: Cell, right: int, spent: float = 90.0, most: int = 100) -> dict[str, Any]:
    values = [float(at < right) for at in range(10)]
    return {
        **asdict(cell),
        "digest": _FIGURES.digest(cell.task),
        "values": values,
        "generated": 50.0,
        "computed": spent,
        "most_computed": most,
        "passed": 8,
        "auc": 0.9,
        "auc_half": None,
        "judge": 0.5,
        "cpu_s": 1.0,
    }


_FIGURES = Protocol(panel=10, quick=True)
_RIGHT = {"samples": (4, 5), "best_of_n": (5, 6), "beam": (5, 7), "mcts": (6, 8), "gumbel": (6, 5)}


def test_the_figures_of_a_task_are_those_of_its_cells(tmp_path: Path) -> None:
    kept = Cells(tmp_path, _FIGURES)
    for seed in (0, 1):
        greedy = Cell("countdown", seed, "greedy", 0)
        kept.kept[greedy] = _row(greedy, 3)
        for method, rights in _RIGHT.items():
            for budget, right in zip((500, 1000), rights, strict=True):
                cell = Cell("countdown", seed, method, budget)
                kept.kept[cell] = _row(cell, right, most=501 if (method, budget) == ("beam", 500) else 100)
    found = of_task(kept, "countdown")
    assert found["best"] == "mcts"
    assert found["accuracy"]["mcts"]["1000"][0] == pytest.approx(0.8)
    assert found["best_minus_greedy"][0] == pytest.approx(0.5)
    assert found["best_minus"]["best_of_n"]["1000"][0] == pytest.approx(0.2)
    assert found["gumbel_worst_step"] == pytest.approx(-0.1)
    assert found["over_budget"] == 2
    assert found["passed"] == {"500": 0.8, "1000": 0.8}
    assert found["seeds"] == [0, 1]


def test_a_seed_that_lacks_a_cell_is_in_no_figure(tmp_path: Path) -> None:
    kept = Cells(tmp_path, _FIGURES)
    for cell in [Cell("countdown", seed, method, 500 * (method != "greedy")) for seed in (0, 1) for method in METHODS]:
        kept.kept[cell] = _row(cell, 3 + cell.seed)
    del kept.kept[Cell("countdown", 1, "beam", 500)]
    found = of_task(kept, "countdown")
    assert found["seeds"] == [0]
    assert Counter(ends["500"][0] for name, ends in found["accuracy"].items() if name != "greedy") == {0.3: 5}


def test_a_budget_that_no_seed_has_finished_is_in_no_figure(tmp_path: Path) -> None:
    kept = Cells(tmp_path, _FIGURES)
    every = [Cell("countdown", seed, method, 500 * (method != "greedy")) for seed in (0, 1) for method in METHODS]
    for cell in [*every, Cell("countdown", 0, "samples", 1000), Cell("countdown", 0, "beam", 1000)]:
        kept.kept[cell] = _row(cell, 4)
    found = of_task(kept, "countdown")
    assert found["seeds"] == [0, 1] and {budget for row in found["accuracy"].values() for budget in row} == {"0", "500"}
