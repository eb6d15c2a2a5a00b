"""The policies that searches begin with: panels nobody was shown, weights made once, figures that add up."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, replace
from itertools import combinations
from pathlib import Path

import pytest
import torch

from benchmarks.looking_back import look_back
from benchmarks.search_bases import BASES, QUICK, Base, base_of, made_by, panel, row_of, show, world_of
from benchmarks.search_headroom import marks_of, measured
from evolvent.agents.language import LanguageAgent
from evolvent.agents.plain import Script
from evolvent.engine.asks import Sampling
from evolvent.engine.local import LocalEngine
from evolvent.errors import ConfigError
from evolvent.learn.learner import TrainConfig
from evolvent.models.policy import Policy, tiny_policy
from evolvent.rollout.episode import collect
from evolvent.scale.initial import collect_demonstrations
from evolvent.trajectory import Start, Trajectory
from evolvent.worlds.countdown import Countdown
from evolvent.worlds.deduction.world import Deduction

SMALL = {"countdown": Base(Countdown, 300, 250, 20_000, (("numbers", 3),), TrainConfig(lr=4e-3, batch_tokens=512))}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a policy of three numbers that is sometimes right."""
    folder = tmp_path_factory.mktemp("bases")
    base_of("countdown", 1, folder, bases=SMALL)
    return folder


def weights(policy: Policy) -> dict[str, torch.Tensor]:
    return dict(policy.model.state_dict())


@pytest.mark.parametrize("task", BASES)
def test_panels_are_of_tasks_that_no_demonstration_shows(task: str) -> None:
    base, world = QUICK[task], world_of(task, bases=QUICK)
    spare, dev, test = (panel(task, split, 20, bases=QUICK) for split in ("train", "dev", "test"))
    most = base.longest or 99
    fitting = [one for one in world.tasks("train", "seen") if len(one.spec.get("chain", ())) <= most]
    shown = {one.task.id for one in base.shows(world, fitting[: base.shown], 1)}
    assert len(shown) == base.shown
    assert {one.id for one in spare} <= {one.id for one in fitting} - shown
    assert len({one.id for one in (*spare, *dev, *test)}) == 60
    assert {(one.split, one.tier) for one in (*dev, *test)} == {("dev", "seen"), ("test", "seen")}


def test_panels_of_deduction_are_short_and_have_each_answer_as_often() -> None:
    world = world_of("deduction", bases=QUICK)
    assert isinstance(world, Deduction)
    for split in ("train", "dev", "test"):
        tasks = panel("deduction", split, 20, bases=QUICK)
        assert Counter(world.question(one).answer for one in tasks) == {"true": 10, "false": 10}
        assert max(len(one.spec["chain"]) for one in tasks) <= 3


@pytest.mark.parametrize(("task", "split", "count"), [("countdown", "dev", 10_000), ("countdown", "dev", 0)])
def test_a_panel_that_is_not_there_is_refused(task: str, split: str, count: int) -> None:
    with pytest.raises(ConfigError, match=f"{count} tasks"):
        panel(task, split, count, bases=QUICK)
    with pytest.raises(ConfigError, match="countdown"):
        panel("countdwn", split, 5, bases=QUICK)


def test_a_policy_is_made_once_and_alike_elsewhere(tmp_path: Path) -> None:
    first = base_of("deduction", 3, tmp_path / "a", bases=QUICK)
    (kept,) = (tmp_path / "a" / "runs").iterdir()
    note = json.loads((kept / "note.json").read_text(encoding="utf-8"))
    assert note == made_by("deduction", 3, tmp_path / "a", bases=QUICK)
    assert note["learned"] >= 3000  # 1000 on short chains, 2000 on all
    (kept / "note.json").write_text(json.dumps({**note, "seed": 77}), encoding="utf-8")
    again = base_of("deduction", 3, tmp_path / "a", bases=QUICK)
    assert made_by("deduction", 3, tmp_path / "a", bases=QUICK)["seed"] == 77  # not made again
    elsewhere, other = (
        base_of("deduction", 3, tmp_path / "b", bases=QUICK),
        base_of("deduction", 4, tmp_path / "b", bases=QUICK),
    )
    for name, weight in weights(first).items():
        assert torch.equal(weight, weights(again)[name])
        assert torch.equal(weight, weights(elsewhere)[name])
    assert any(not torch.equal(weight, weights(other)[name]) for name, weight in weights(first).items())


def test_other_recipes_have_other_names() -> None:
    base = BASES["deduction"]
    changed = [
        replace(base, tokens=7),
        replace(base, settings=(("depth", 5),)),
        replace(base, first=None),
        replace(base, train=TrainConfig(lr=1e-3)),
        replace(base, longest=2),
        replace(base, looking_back=False),
        base,
    ]
    assert len({one.digest for one in changed}) == len(changed)
    assert replace(base).digest == base.digest


def test_figures_of_a_policy_are_those_of_its_samples(made: Path) -> None:
    policy, world = base_of("countdown", 1, made, bases=SMALL), world_of("countdown", bases=SMALL)
    tasks = panel("countdown", "dev", 30, bases=SMALL)
    found = measured(policy, world, tasks, max_tokens=16, samples=4, seed=5)
    agent, starts = LanguageAgent(policy, Sampling(), max_tokens=16), [Start(one, n) for one in tasks for n in range(4)]
    won: dict[str, list[bool]] = {one.id: [] for one in tasks}
    for one in collect({world.name: world}, starts, agent, engine=LocalEngine(policy, slots=16), seed=5):
        won[one.task.id].append(bool(one.success))
    assert 0 < found.sampled["success"] < 1  # else the rest would say little
    assert found.sampled["success"] == pytest.approx(sum(map(sum, won.values())) / 120)
    assert found.sampled["success@1"] == pytest.approx(found.sampled["success"])
    any_of_four = sum(map(any, won.values())) / 30
    assert found.sampled["success@4"] == pytest.approx(any_of_four) == pytest.approx(found.best)
    assert found.headroom == pytest.approx(any_of_four - found.greedy["success"])
    assert "success@16" not in found.sampled
    assert asdict(found) == asdict(measured(policy, world, tasks, max_tokens=16, samples=4, seed=5))


def test_pass_at_k_is_the_share_of_lucky_choices(made: Path) -> None:
    policy, world = base_of("countdown", 1, made, bases=SMALL), world_of("countdown", bases=SMALL)
    tasks = panel("countdown", "dev", 10, bases=SMALL)
    found = measured(policy, world, tasks, max_tokens=16, samples=6, seed=5)
    agent, starts = LanguageAgent(policy, Sampling(), max_tokens=16), [Start(one, n) for one in tasks for n in range(6)]
    won: dict[str, list[bool]] = {one.id: [] for one in tasks}
    for one in collect({world.name: world}, starts, agent, engine=LocalEngine(policy, slots=16), seed=5):
        won[one.task.id].append(bool(one.success))
    lucky = [any(chosen) for own in won.values() for chosen in combinations(own, 4)]
    assert found.sampled["success@4"] == pytest.approx(sum(lucky) / len(lucky))


@pytest.mark.parametrize(("tasks", "samples", "temperature"), [(0, 1, 1.0), (1, 0, 1.0), (1, 1, 0.0)])
def test_nothing_to_measure_is_refused(tasks: int, samples: int, temperature: float) -> None:
    world = world_of("deduction", bases=QUICK)
    policy = tiny_policy(sorted(world.vocabulary() or ()), context=256)
    chosen = panel("deduction", "dev", 2, bases=QUICK)[:tasks]
    with pytest.raises(ConfigError, match="nothing to measure"):
        measured(policy, world, chosen, max_tokens=8, samples=samples, temperature=temperature)


def said(world: Deduction, text: str) -> Trajectory:
    task = panel("deduction", "dev", 2, bases=QUICK)[0]
    (one,) = collect({world.name: world}, [Start(task)], Script(lambda _, __: [text]), engine=None)
    return one


def test_a_right_answer_by_a_wrong_proof_is_told_apart() -> None:
    world = world_of("deduction", bases=QUICK)
    assert isinstance(world, Deduction)
    task = panel("deduction", "dev", 2, bases=QUICK)[0]
    (right,) = collect_demonstrations([world], [task])
    text = str(right.steps[0].action)
    proof, _, answer = text.partition(" ### ")
    wrong = {"true": "false", "false": "true"}[answer]
    marks = [
        marks_of(world, one)
        for one in (
            right,
            said(world, f"nobody is a wug ; {text}"),
            said(world, f"{proof} ### {wrong}"),
            said(world, ""),
        )
    ]
    steps = len(proof.split(" ; "))
    assert [(one["success"], one["proof"]) for one in marks] == [(1.0, 1.0), (1.0, 0.0), (0.0, 0.0), (0.0, 0.0)]
    assert [one["steps"] for one in marks] == pytest.approx([1.0, steps / (steps + 1), 1.0, 0.0])


def test_continuations_that_are_imitated_are_of_every_quality() -> None:
    base, world = QUICK["preference"], world_of("preference", bases=QUICK)
    tasks = world.tasks("train", "seen")[:40]
    shown, other = base.shows(world, tasks, 1), base.shows(world, tasks, 2)
    rewards = [marks_of(world, one)["return"] for one in shown]
    assert {len(str(one.steps[0].action).split()) for one in shown} == {64}
    assert min(rewards) < 0.3
    assert max(rewards) > 0.8
    assert [one.id for one in shown] == [one.id for one in other]
    assert [one.steps[0].action for one in shown] != [one.steps[0].action for one in other]
    with pytest.raises(ConfigError, match="quality"):
        base.shows(world_of("deduction", bases=QUICK), [], 1)


@pytest.mark.parametrize("theta", [50.0, 1000.0])
def test_heads_look_back_as_far_as_they_should(theta: float) -> None:
    words = [f"w{number}" for number in range(50)]
    policy = tiny_policy(words, context=64)
    policy.model.config.rope_parameters = {"rope_type": "default", "rope_theta": theta}
    policy = Policy(type(policy.model)(policy.model.config).eval(), policy.tokenizer, policy.dialect)
    with torch.no_grad():
        policy.model.model.embed_tokens.weight.normal_(0.0, 0.25)
    policy.model.set_attn_implementation("eager")
    ids = torch.tensor([[10 + 7 * place % 40 for place in range(48)]])
    before = policy.model(ids, output_attentions=True).attentions[0][0]
    look_back(policy)
    after = policy.model(ids, output_attentions=True).attentions[0][0]
    for head, offset in enumerate((1, 2, 3)):
        share = after[head].diagonal(-offset)[4:]  # [T]: what each place gives to the one so far before it
        assert share.mean() > 0.9
        assert share.min() > 0.5
        assert before[head].diagonal(-offset)[4:].mean() < 0.2
    assert after[3].diagonal(-1).mean() < 0.2


def test_a_row_has_all_that_the_table_shows(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    row = row_of("countdown", 1, made, count=6, bases=SMALL)
    show([row])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:2] == ["task", "seed"]
    assert lines[1].split()[:2] == ["countdown", "1"]
    assert f"{row['sampled']['success@16']:.3f}" in lines[1]
    json.dumps(row, allow_nan=False)
