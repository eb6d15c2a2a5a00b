"""Speed of a team's learning loop, beside a straightforward implementation of the published one.

    python -m benchmarks.mat_speed [--quick] [--json] [--save]

Both sides have the same network with the same weights (outputs are compared before anything is timed), the same
rollouts and the same schedule; the environment is not there: observations and rewards are random arrays. "action" is
all decisions of a rollout, "update" credit and all passes over it. The headline is HalfCheetah 6x1's shape and schedule
(6 agents, 23 inputs, 1 number; 40 x 100 decisions, 10 passes of 40 minibatches); "discrete" has SMAC's (8 agents, 80
inputs, 14 choices with masks; 32 x 100, 15 passes of 1). `growth_exponent` is the slope of the logarithm of CPU time of
the whole loop over that of the number of agents, from 3 to 48; `growth_action` of action alone. One thread, CPU time,
the least of a few rounds; the sides take turns.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from benchmarks.mat_plain import PlainLoop, PlainMat
from benchmarks.reporting import RESULTS, about, command_line, finish
from evolvent.marl.policy import TeamPolicy, team_shape
from evolvent.marl.rollout import ArrayRollout
from evolvent.marl.settings import TeamUpdateConfig
from evolvent.marl.updates import TeamLearner
from evolvent.models.mat import MultiAgentTransformer
from evolvent.models.team_actions import TeamInputs
from evolvent.models.team_files import make_team
from evolvent.trajectory import sample_rng
from evolvent.worlds.teams.base import Actions, Continuous, Discrete, TeamSpec, TeamView

GOALS = {"x_action": 2.5, "x_total": 1.8}
AGENTS = (3, 6, 12, 24, 48)
RESULT = RESULTS / "mat_speed.json"


@dataclass(frozen=True)
class Case:
    """What is timed: a team, a rollout and a schedule."""

    agents: int
    observation: int
    actions: Actions
    rows: int
    steps: int
    updates: TeamUpdateConfig


HALFCHEETAH = Case(6, 23, Continuous(1), 40, 100, TeamUpdateConfig())
SMAC = Case(
    8,
    80,
    Discrete(14),
    32,
    100,
    TeamUpdateConfig(lr=5e-4, ppo_epochs=15, minibatches=1, entropy_coef=0.01, grad_norm=10.0),
)


class Sides:
    """Both implementations with the same weights and the same random rollout."""

    def __init__(self, case: Case) -> None:
        rng = sample_rng("mat speed", case.agents)
        self.case = case
        self.spec = TeamSpec(agents=case.agents, observation=case.observation, actions=case.actions, horizon=case.steps)
        team = (case.steps + 1, case.rows, case.agents)
        self.observation = rng.normal(size=(*team, case.observation)).astype(np.float32)
        self.available = None
        if isinstance(case.actions, Discrete):
            self.available = rng.random((*team, case.actions.n)) < 0.7
            self.available[..., 0] = True
        self.reward = rng.normal(size=team[:2])[:-1]
        self.over = rng.random(self.reward.shape) < 0.01
        model = make_team(team_shape(self.spec), seed=0)
        if not isinstance(model, MultiAgentTransformer):
            raise TypeError(type(model))
        self.policy = TeamPolicy(model, self.spec)
        self.learner = TeamLearner(self.policy, case.updates, seed=0)
        updates = case.updates
        self.loop = PlainLoop(
            PlainMat(model),
            lr=updates.lr,
            epochs=updates.ppo_epochs,
            minibatches=updates.minibatches,
            clip=updates.clip_range,
        )
        self.masks = None if self.available is None else self.available.astype(np.float32)
        self._same(model)
        self.rollout = self.ours()
        self.kept = self.plain()

    def _same(self, model: MultiAgentTransformer) -> None:
        """Both say the same of the same actions."""
        n, k = self.case.agents, model.shape.parts
        seen = torch.from_numpy(self.observation[0])
        actions = (
            torch.zeros(len(seen), n, k)
            if isinstance(self.case.actions, Continuous)
            else torch.zeros(len(seen), n, k, dtype=torch.long)
        )
        masks = None if self.available is None else torch.from_numpy(self.available[0])
        with torch.no_grad():
            one = model.evaluate(TeamInputs(seen, None, masks), actions)
            logp, _, values = self.loop.model.evaluate(seen, actions, None if masks is None else masks.float())
        gap = max(float((one.logp - logp.sum(-1)).abs().max()), float((one.values - values[..., 0]).abs().max()))
        if gap > 1e-4:
            raise RuntimeError(f"the two networks differ by {gap}")

    def view(self, t: int) -> TeamView:
        """Step t of the rollout."""
        rows, n = self.case.rows, self.case.agents
        return TeamView(
            observation=self.observation[t],
            alive=np.ones((rows, n), np.bool_),
            available=None if self.available is None else self.available[t],
            number=np.arange(rows),
            time=np.full(rows, t),
        )

    def ours(self) -> ArrayRollout:
        """All decisions of a rollout."""
        steps, rows = self.reward.shape
        views = [self.view(t) for t in range(steps)]
        made = [self.policy.act(view, seed=0) for view in views]
        never = np.zeros((steps, rows), np.bool_)
        return ArrayRollout(
            spec=self.spec,
            observation=np.stack([v.observation for v in views]),
            alive=np.stack([v.alive for v in views]),
            state=None,
            success=None,
            lost=never,
            truncated=never,
            available=None if self.available is None else self.available[:-1].copy(),
            **{name: np.stack([getattr(d, name) for d in made]) for name in ("actions", "logp", "value")},
            reward=self.reward,
            terminated=self.over,
            number=np.cumsum(self.over, 0) - self.over,
            time=np.zeros((steps, rows), np.int64),
            last=self.view(steps),
            final=None,
            final_at=np.zeros((0, 2), np.int64),
        )

    def plain(self) -> dict[str, np.ndarray[Any, np.dtype[np.float32]]]:
        """The same, the straightforward way."""
        return self.loop.rollout(self.observation, self.masks)

    def update(self) -> None:
        """Our update of our rollout."""
        self.learner.update(self.rollout)

    def plain_update(self) -> None:
        """The straightforward one of its own."""
        shape = (*self.reward.shape, self.case.agents, 1)
        reward = np.broadcast_to(self.reward[..., None, None], shape).astype(np.float32)
        going = np.broadcast_to(1.0 - self.over[..., None, None], shape).astype(np.float32)
        self.loop.update(self.kept, reward, going, self.masks)


def cpu_s(run: Callable[[], object]) -> float:
    """CPU seconds of one run."""
    began = time.process_time()
    run()
    return time.process_time() - began


def measured(case: Case, rounds: int, *, both: bool = True) -> dict[str, float]:
    """The least CPU seconds of each stage, and decisions of a rollout per CPU-second."""
    sides = Sides(case)
    stages: dict[str, Callable[[], object]] = {"action": sides.ours, "update": sides.update}
    if both:
        stages |= {"plain_action": sides.plain, "plain_update": sides.plain_update}
    least = dict.fromkeys(stages, math.inf)
    for _ in range(rounds):
        for name, stage in stages.items():
            least[name] = min(least[name], cpu_s(stage))
    decisions = case.rows * case.steps
    found = {f"{name}_s": value for name, value in least.items()}
    found["steps_per_cpu_s"] = decisions / (least["action"] + least["update"])
    if both:
        found["plain_steps_per_cpu_s"] = decisions / (least["plain_action"] + least["plain_update"])
        found["x_action"] = least["plain_action"] / least["action"]
        found["x_update"] = least["plain_update"] / least["update"]
        found["x_total"] = found["steps_per_cpu_s"] / found["plain_steps_per_cpu_s"]
    return found


def slope(seconds: dict[int, float]) -> float:
    """Of log seconds over log agents, by least squares."""
    x, y = np.log(list(seconds)), np.log(list(seconds.values()))
    return float(np.polyfit(x, y, 1)[0])


def growth(rounds: int, *, steps: int) -> dict[str, Any]:
    """CPU seconds of the whole loop, and of action alone, by number of agents."""
    updates = TeamUpdateConfig(minibatches=max(1, 40 * steps // 100), ppo_epochs=2)
    every = {n: measured(Case(n, 23, Continuous(1), 40, steps, updates), rounds, both=False) for n in AGENTS}
    total = {n: row["action_s"] + row["update_s"] for n, row in every.items()}
    return {
        "growth_exponent": slope(total),
        "growth_action": slope({n: row["action_s"] for n, row in every.items()}),
        "seconds": total,
    }


def report(*, quick: bool) -> dict[str, Any]:
    """All figures."""
    torch.set_num_threads(1)
    rounds = 2 if quick else 5
    cases = {"halfcheetah_6x1": HALFCHEETAH, "discrete": SMAC}
    found = {name: measured(case, rounds) for name, case in cases.items()}
    head = found["halfcheetah_6x1"]
    grown = growth(rounds, steps=10 if quick else 25)
    return {
        "x_action": head["x_action"],
        "x_total": head["x_total"],
        "growth_exponent": grown["growth_exponent"],
        "growth_action": grown["growth_action"],
        "growth_seconds": grown["seconds"],
        "cases": found,
        "reached": {name: head[name] >= goal for name, goal in GOALS.items()},
        "goals": GOALS,
        "quick": quick,
        **about("python", "torch", "numpy", threads=1),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print and, where asked, keep."""
    parser = command_line("mat_speed", __doc__, quick="two rounds, short rollouts for the growth", save=RESULT)
    options = parser.parse_args(arguments)
    found = report(quick=options.quick)
    for name, row in found["cases"].items():
        print(f"{name}: " + ", ".join(f"{key} {value:.3g}" for key, value in row.items()))
    print(f"growth: {found['growth_exponent']:.2f} (action {found['growth_action']:.2f})")
    finish(found, options)


if __name__ == "__main__":
    main()
