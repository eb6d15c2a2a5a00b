"""Where an episode is cut and its conversation is full: the value of what the agent would have read next, end to end.

The oracle is the agent itself: the same episode with one step more has read it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import evolvent as ev
from evolvent.agents.history import History, Refuse, Summarise, Window
from evolvent.models.policy import Policy
from evolvent.rl.critic import critic_objective
from evolvent.rl.presets import POAD, PPO_ACTION
from evolvent.rl.rollout_batch import CUT_OFF, TRUNCATED
from evolvent.rl.scored_rollout import ScoredRollout
from evolvent.rl.trainer import PolicyTrainer, RLSpec
from evolvent.scale.initial import make_policy
from evolvent.scale.local_backend import next_prompt
from evolvent.trajectory import Branch, Start, Step, Trajectory
from evolvent.worlds.base import Play
from tests.rl.acting import WORDS, Endless, quick, run_of

CONTEXT = 48  # three turns of the world below fit it, four do not


class Talk(Endless):
    """Says eight words a turn, other ones every time, and lists two answers."""

    name = "talk"

    def play(self, spec: Mapping[str, Any]) -> Play:
        for turn in range(9):
            told = " ".join([spec["then"], *(WORDS[(turn + at) % 4] for at in range(5))])
            yield f"say {spec['first']} {told}", float(turn > 0)

    def make(self, task: ev.Task) -> Any:
        env = super().make(task)
        step, reset, listed = env.step, env.reset, {"admissible": ("red", "green blue")}
        env.reset = lambda **more: (reset(**more)[0], listed)  # type: ignore[method-assign]
        env.step = lambda action: (*step(action)[:4], listed)  # type: ignore[method-assign]
        return env


def fresh() -> Policy:
    return make_policy([Talk()], seed=1, context=CONTEXT)


def demonstrated(task: ev.Task) -> Trajectory:
    """Two steps of an episode that somebody else played: it has texts and no tokens."""
    env = Talk().make(task)
    first = env.reset()[0]
    steps = (Step(first, "red green", 0.0), Step(env.step("red green")[0], "blue grey", 1.0))
    return Trajectory(f"shown/{task.id}", task, steps, env.step("blue grey")[0])


def practised(
    folder: Path, history: History, *, horizon: int = 3, deciding: bool = False, branch: tuple[int, int] | None = None
) -> tuple[list[Trajectory], ScoredRollout, PolicyTrainer]:
    """One iteration's episodes and what was seen of them, with a critic that says something."""
    world, preset = Talk(), PPO_ACTION if deciding else POAD
    setup = RLSpec(preset.name, quick(iterations=1), preset.objective, critic_objective(), action_level=deciding)
    with run_of(folder, world, history=history) as run, run.train_rl(fresh(), setup) as practice:
        next(practice.iterations())
        practice.horizon = horizon
        starts = practice.next_starts(world.tasks("train", "seen"))
        parents = {one.id: one for one in map(demonstrated, dict.fromkeys(start.task for start in starts))}
        if branch is not None:
            starts = [Start(one.task, one.sample, Branch(f"shown/{one.task.id}", *branch)) for one in starts]
        played = practice.rollout(starts, parents=parents)
        with torch.no_grad():
            practice.value_policy.value_head.outer.bias.fill_(0.5)
            practice.value_policy.value_head.outer.weight.normal_(generator=torch.Generator().manual_seed(0))
        return played, practice.score(played), practice


def tokens_of(one: Trajectory) -> np.ndarray:
    """The conversation that the last action ended."""
    found: list[np.ndarray] = []
    for generation in one.generations:
        found = [*(found if generation.extends is not None else ()), generation.ids]
    return np.concatenate(found)


def value_of(practice: PolicyTrainer, ids: np.ndarray) -> float:
    with torch.no_grad():
        hidden = practice.value_policy.model.model(torch.tensor([ids.tolist()])).last_hidden_state[0, -1]
        return float(practice.value_policy.value_head(hidden))


HOW: list[dict[str, Any]] = [{}, {"deciding": True}, {"branch": (1, 0)}, {"branch": (1, 1)}]


@pytest.mark.parametrize("how", HOW, ids=["written", "chosen", "branch", "branch inside an action"])
@pytest.mark.parametrize("history", [Window(), Window(0.9), Summarise()], ids=["window", "wide", "summarise"])
def test_a_cut_episode_has_the_value_of_what_its_agent_reads_one_step_later(
    tmp_path: Path, history: History, how: dict[str, Any]
) -> None:
    played, seen, practice = practised(tmp_path / "cut", history, **how)
    longer, *_ = practised(tmp_path / "longer", history, horizon=4, **how)
    last, anew = np.flatnonzero(seen.batch.ended), 0
    assert seen.batch.ended[last].tolist() == [TRUNCATED] * len(played), "none of them is over"
    for one, other, action in zip(played, longer, last.tolist(), strict=True):
        count = len(one.steps)
        assert one.actions == other.actions[:count] and len(other.steps) == count + 1
        (then,) = other.steps[count].generations
        read, said = then.ids[~then.sampled], practice.policy.dialect.turn(str(one.final_observation), stopped=False)
        if then.extends is None and len(tokens_of(one)) + len(said) > CONTEXT:
            anew += 1
            assert seen.batch.bootstrap[action] == pytest.approx(value_of(practice, read), abs=1e-5)
    assert anew > len(played) // 2, "conversations that were full at the cut"


@pytest.mark.parametrize("deciding", [False, True], ids=["written", "chosen"])
@pytest.mark.parametrize("history", [Refuse(), Summarise(summary=lambda pairs: "red " * 99)], ids=["refuse", "no room"])
def test_an_agent_that_gives_up_there_has_no_next_action(tmp_path: Path, history: History, deciding: bool) -> None:
    _, seen, _ = practised(tmp_path, history, deciding=deciding)
    last = np.flatnonzero(seen.batch.ended)
    over = last[seen.batch.ended[last] == CUT_OFF]
    assert len(over) > len(last) // 2 and not seen.batch.bootstrap[over].any()


def test_a_branch_is_told_with_its_parents_turns_or_not_at_all() -> None:
    world, policy = Talk(), fresh()
    parent, told = demonstrated(world.tasks("train", "seen")[0]), []
    agent = ev.LanguageAgent(policy, max_tokens=3, history=Summarise(lambda pairs: told.extend(pairs) or "red"))
    own = replace(parent, id="own", steps=parent.steps[1:], branch=Branch(parent.id, 1, 1))
    assert next_prompt(own, agent, world=world, parents={}) is None and not told
    root = next_prompt(own, agent, world=world, parents={parent.id: parent})
    assert root == policy.dialect.open("", f"{parent.steps[0].observation} red")
    second, third = str(parent.steps[1].observation), str(parent.final_observation)
    assert told == [("red green", second), ("blue blue grey", third)], "one token was the parent's, two are its own"


def test_what_is_played_between_branches_and_a_look_takes_nothing_from_them(tmp_path: Path) -> None:
    """A method may play branches, then others that have no parents, and look at all of them."""
    world, setup = Talk(), RLSpec(POAD.name, quick(iterations=1), POAD.objective, critic_objective())
    ends = []
    for name in ("looked at once", "played between"):
        with run_of(tmp_path / name, world, history=Window()) as run, run.train_rl(fresh(), setup) as practice:
            next(practice.iterations())
            practice.horizon, tasks = 3, world.tasks("train", "seen")
            starts = practice.next_starts(tasks)
            parents = {one.id: one for one in map(demonstrated, dict.fromkeys(start.task for start in starts))}
            played = practice.rollout(
                [Start(one.task, one.sample, Branch(f"shown/{one.task.id}", 1, 0)) for one in starts], parents=parents
            )
            if name == "played between":
                practice.rollout(practice.next_starts(tasks, turn=1, count=1))
            found = practice.score(played).batch
            ends.append(found.ended[found.ended > 0].tolist())
    assert ends[0] == ends[1] == [TRUNCATED] * len(ends[0])
