"""AgentEvol: an agent explores instructions without demonstrations, keeps rewarded episodes, and learns from them.

Xi et al., "AgentGym: Evolving Large Language Model-based Agents across Diverse Environments" (arXiv
2406.04151).

The evolution step maximizes a bound on log p(O = 1), the log-probability of success under optimality p(O = 1 |
tau) proportional to r(tau): E_q[log p(O | tau)] - KL(q || pi). Exploring sets q proportional to r pi (here:
samples, kept and weighted by reward); learning maximizes E_q[log pi], the weighted likelihood of kept and
demonstrated episodes.

The released code departs from the formulation (weight 1 instead of the reward, only the first success of a
task, earlier rounds merged instead of the demonstrations): each departure is a setting, `PUBLISHED` and
`FORMULATED` are both ends. Keeping nothing gives the control: cloning continued for the same number of learned
tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import exp
from typing import Annotated, Generic, Literal, TypeVar

from pydantic import Field

from evolvent.config import Config
from evolvent.curate.balance import balance_worlds
from evolvent.rollout.horizon import HorizonSchedule
from evolvent.run import Run
from evolvent.trajectory import Start, Task, Trajectory

P = TypeVar("P")

__all__ = [
    "EMBEDDED",
    "FORMULATED",
    "PUBLISHED",
    "AgentEvolConfig",
    "BestPolicy",
    "LearningWeight",
    "agentevol",
    "evolve",
    "merge_data",
    "select_successes",
]


class BestPolicy(Generic[P]):
    """The policy to return: the last one evaluated, or the best on the dev panels (the earliest of equals)."""

    def __init__(self, run: Run[P], select: Literal["last", "best"]) -> None:
        self._run, self._select, self.rate = run, select, -1.0
        self.policy: P | None = None

    def evaluate(self, policy: P, iteration: int) -> None:
        """Evaluates the policy of a round: on dev where the best is selected, else on the run's panels.

        A round with dev episodes that could not be scored is not a candidate for the best.
        """
        rows = self._run.evaluate(policy, iteration, split="dev" if self._select == "best" else None)
        means = [row.mean for row in rows if row.mean is not None]
        rate = sum(means) / len(means) if len(means) == len(rows) > 0 else -1.0
        if self._select == "last" or rate > self.rate:
            self.policy, self.rate = policy, rate


Length = Annotated[int, Field(ge=1)]


class AgentEvolConfig(Config):
    """Settings of AgentEvol."""

    iterations: int = Field(default=3, ge=0, description="rounds of exploring and learning (M)")
    samples_per_task: int = Field(default=3, ge=0, description="episodes per explored task and round (K)")
    temperature: float = Field(default=1.0, ge=0, description="of exploration")
    revisit: bool = Field(default=True, description="explore tasks again of which something was kept before")
    horizons: tuple[Annotated[int, Field(ge=1)], ...] = Field(
        default=(), description="longest episode while exploring, by phase; none: all"
    )
    horizon_every: int = Field(default=1, ge=1, description="rounds in a phase of the horizons")
    keep: Literal["shortest", "first", "none"] = Field(
        default="shortest", description="which successes of a task are learned"
    )
    per_task: int | None = Field(default=1, ge=1, description="successes kept of a task; none: all")
    threshold: float = Field(default=0.99, description="a success has more than this reward (unit scale)")
    thresholds: dict[str, float] = Field(default_factory=dict, description="of the worlds that have another threshold")
    weight: Literal["threshold", "reward", "exponential"] = Field(
        default="threshold", description="learning weight of what is kept: 1, the reward r, or exp((r - 1) / beta)"
    )
    beta: float = Field(default=0.5, gt=0, description="temperature of the exponential weight")
    merge: Literal["base", "previous", "all", "none"] = Field(
        default="all", description="what is learned beside this round's kept"
    )
    balance: bool = Field(default=True, description="repeat smaller worlds until all are learned as often")
    start: Literal["initial", "base", "previous"] = Field(
        default="previous", description="the weights a round starts from"
    )
    select: Literal["last", "best"] = Field(
        default="last", description="the result: the last round, or the best on the dev panels"
    )
    clone_tokens: Length | Annotated[tuple[Length, ...], Field(min_length=1)] | None = Field(
        default=None,
        description="learned tokens of the cloning; None: the training config's epochs; several numbers: of as many "
        "fits in a row, the later ones at lr_scale",
    )
    round_tokens: int | None = Field(
        default=None, description="learned tokens of a round; None: the training config's epochs"
    )
    lr_scale: float = Field(default=1.0, gt=0, description="learning rate of a round against that of the cloning")

    @property
    def cloning_tokens(self) -> tuple[int | None, ...]:
        """Returns the learned tokens of each fit of the cloning."""
        return self.clone_tokens if isinstance(self.clone_tokens, tuple) else (self.clone_tokens,)


PUBLISHED: Mapping[str, object] = {
    "iterations": 4,
    "samples_per_task": 1,
    "temperature": 0.0,
    "keep": "first",
    "per_task": 1,
    "threshold": 0.99,
    "thresholds": {"babyai": 0.0, "gridworld": 0.0},
    "weight": "threshold",
    "merge": "previous",
    "start": "initial",
    "lr_scale": 1.0,
    "balance": False,
}
FORMULATED: Mapping[str, object] = {
    "iterations": 4,
    "samples_per_task": 3,
    "temperature": 1.0,
    "keep": "first",
    "per_task": None,
    "threshold": 0.0,
    "weight": "reward",
    "merge": "base",
    "start": "initial",
    "lr_scale": 1.0,
}
EMBEDDED: Mapping[str, object] = {
    "iterations": 3,
    "samples_per_task": 6,
    "temperature": 1.0,
    "revisit": False,
    "keep": "shortest",
    "thresholds": {"babyai": 0.0, "gridworld": 0.0},
    "weight": "threshold",
    "merge": "all",
    "start": "previous",
    "clone_tokens": [150_000] * 4,
    "round_tokens": 100_000,
    "lr_scale": 0.7,
}


@dataclass(frozen=True)
class LearningWeight:
    """Learning weight: 1, the reward r (unit scale), or exp((r - 1) / beta). Demonstrations have r = 1."""

    form: Literal["threshold", "reward", "exponential"] = "threshold"
    beta: float = 0.5

    def __call__(self, trajectory: Trajectory) -> float:
        reward = 1.0 if trajectory.score.unit is None else trajectory.score.unit
        return {"threshold": 1.0, "reward": reward, "exponential": exp((reward - 1.0) / self.beta)}[self.form]


def select_successes(trajectories: Iterable[Trajectory], config: AgentEvolConfig) -> list[Trajectory]:
    """Selects the successes to learn: above their world's threshold, `per_task` of each task, in order of the tasks."""

    def is_success(trajectory: Trajectory) -> bool:
        unit, threshold = trajectory.score.unit, config.thresholds.get(trajectory.task.world, config.threshold)
        return unit is not None and unit > threshold

    return _select_per_task(filter(is_success, trajectories), config) if config.keep != "none" else []


def _select_per_task(trajectories: Iterable[Trajectory], config: AgentEvolConfig) -> list[Trajectory]:
    tasks: dict[str, list[Trajectory]] = {}
    for trajectory in trajectories:
        tasks.setdefault(trajectory.task.id, []).append(trajectory)
    if config.keep == "shortest":
        tasks = {
            task: sorted(task_trajectories, key=lambda trajectory: len(trajectory.steps))
            for task, task_trajectories in tasks.items()
        }
    return [trajectory for task_trajectories in tasks.values() for trajectory in task_trajectories[: config.per_task]]


Keep = Callable[[Sequence[Trajectory], AgentEvolConfig], list[Trajectory]]


def agentevol(
    policy: P, explore: Sequence[Task], demonstrations: Sequence[Trajectory], *, config: AgentEvolConfig, run: Run[P]
) -> P:
    """Trains on the demonstrations, then evolves; the policy that was passed in is unchanged.

    Args:
        policy: the initial policy.
        explore: tasks without demonstrations.
        demonstrations: trajectories to clone.
    Returns:
        the policy of the last round, or the best on dev (`config.select`).

    The config holds the amounts; `with local_run(folder, worlds) as run: agentevol(policy, ..., run=run)` trains.

    >>> config = AgentEvolConfig(iterations=3, samples_per_task=4)
    >>> config.iterations, config.samples_per_task
    (3, 4)
    """
    from evolvent.learn.objectives import weighted_nll

    base, cloning_data = policy, merge_data(demonstrations, [], config)
    for number, tokens in enumerate(config.cloning_tokens):
        base = run.fit(base, cloning_data, weighted_nll, tokens=tokens, lr_scale=config.lr_scale if number else 1.0)
    run.evaluate(base, 0)
    return evolve(base, explore, demonstrations, config=config, run=run, initial=policy)


def evolve(
    base: P,
    explore: Sequence[Task],
    demonstrations: Sequence[Trajectory],
    *,
    config: AgentEvolConfig,
    run: Run[P],
    initial: P | None = None,
    select: Keep = select_successes,
) -> P:
    """Runs `config.iterations` rounds of exploring, selecting, learning and evaluating, from a cloned policy.

    Args:
        base: the cloned policy; a candidate for the result where the best on dev is returned.
        initial: the policy before cloning, for `start="initial"`; None: the base.
        select: selects the episodes of a round.
    """
    from evolvent.learn.objectives import weighted_nll

    weight, horizon = LearningWeight(config.weight, config.beta), HorizonSchedule(config.horizons, config.horizon_every)
    rounds: list[list[Trajectory]] = []
    policy, best = base, BestPolicy(run, config.select)
    if config.select == "best":
        best.evaluate(base, 0)
    for iteration in run.rounds(config.iterations):
        solved = set() if config.revisit else {trajectory.task.id for selected in rounds for trajectory in selected}
        starts = [Start(task, n) for task in explore if task.id not in solved for n in range(config.samples_per_task)]
        trajectories = run.collect(policy, starts, temperature=config.temperature, horizon=horizon(iteration - 1))
        rounds.append(select(trajectories, config))
        data = merge_data(demonstrations, rounds, config)
        start = {"initial": base if initial is None else initial, "base": base, "previous": policy}[config.start]
        policy = run.fit(start, data, weighted_nll, weight=weight, tokens=config.round_tokens, lr_scale=config.lr_scale)
        best.evaluate(policy, iteration)
    if config.select == "best" and best.policy is not None:
        run.evaluate(best.policy, config.iterations)
    return base if best.policy is None else best.policy


def merge_data(
    demonstrations: Sequence[Trajectory], rounds: Sequence[Sequence[Trajectory]], config: AgentEvolConfig
) -> list[Trajectory]:
    """Returns the data of a round: its selected episodes, with the demonstrations ("base"), with earlier rounds
    ("previous"), with both ("all"; of each task only the best over all rounds), or alone ("none").

    A round without selected episodes uses the demonstrations; so does the cloning, before any round.
    """
    used_rounds = rounds if config.merge in ("previous", "all") else rounds[-1:]
    selected = _select_per_task(
        [trajectory for round_trajectories in used_rounds for trajectory in round_trajectories], config
    )
    data = [*demonstrations, *selected] if config.merge in ("base", "all") or not selected else selected
    return balance_worlds(data) if config.balance else data
