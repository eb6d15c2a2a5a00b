"""AgentEvol: an agent that explores instructions nobody demonstrated, keeps what was rewarded, and learns from it.

Xi et al., "AgentGym: Evolving Large Language Model-based Agents across Diverse Environments" (arXiv 2406.04151).

The evolution step maximises a bound on log p(O = 1), the log-probability of success under optimality p(O = 1 | tau)
proportional to r(tau): E_q[log p(O | tau)] - KL(q || pi). Exploring sets q proportional to r pi (here: samples, kept
and weighted by reward); learning maximises E_q[log pi], the weighted likelihood of what was kept and demonstrated.

The released code departs from the formulation (weight 1 instead of the reward, only the first success of a task, the
initial model as start of every fit, earlier rounds merged): each departure is a field. Keeping nothing gives the
control: cloning continued for the same number of learned tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import exp
from typing import Literal, TypeVar

from pydantic import Field

from evolvent.config import Config
from evolvent.curate.balance import balanced
from evolvent.learn.objectives import weighted_nll
from evolvent.run import Run
from evolvent.trajectory import Start, Task, Trajectory

__all__ = ["EMBEDDED", "PAPER", "AgentEvol", "Weight", "agentevol", "keep"]

P = TypeVar("P")


class AgentEvol(Config):
    """What can be chosen about AgentEvol."""

    iterations: int = Field(default=3, ge=0, description="rounds of exploring and learning (M)")
    samples: int = Field(default=3, ge=0, description="episodes per explored task and round (K)")
    temperature: float = Field(default=1.0, ge=0, description="of exploration")
    keep: Literal["shortest", "first", "all", "none"] = Field(
        default="shortest", description="which successes of a task are learned"
    )
    threshold: float = Field(default=0.99, description="a success has more than this reward (unit scale)")
    weight: Literal["one", "reward", "exponential"] = Field(
        default="one", description="learning weight of a kept trajectory"
    )
    beta: float = Field(default=0.5, gt=0, description="temperature of the exponential weight exp((reward - 1) / beta)")
    merge: Literal["base", "previous", "all", "none"] = Field(
        default="all", description="what is learned beside this round's kept"
    )
    balance: bool = Field(default=True, description="repeat smaller worlds until all are learned as often")
    start: Literal["initial", "base", "previous"] = Field(
        default="previous", description="the weights a round starts from"
    )
    clone_tokens: int | None = Field(
        default=None, description="learned tokens of the cloning; None: the training config's epochs"
    )
    round_tokens: int | None = Field(
        default=None, description="learned tokens of a round; None: the training config's epochs"
    )
    lr_scale: float = Field(default=1.0, gt=0, description="learning rate of a round against that of the cloning")


PAPER: Mapping[str, object] = {
    "iterations": 4, "samples": 1, "temperature": 0.0, "keep": "first", "weight": "one", "merge": "previous",
    "start": "initial", "lr_scale": 1.0,
}  # fmt: skip
EMBEDDED: Mapping[str, object] = {
    "iterations": 3, "samples": 3, "temperature": 1.0, "keep": "shortest", "weight": "one", "merge": "all",
    "start": "previous", "clone_tokens": 700_000, "round_tokens": 180_000, "lr_scale": 0.7,
}  # fmt: skip


@dataclass(frozen=True)
class Weight:
    """Learning weight: 1, the reward r (unit scale), or exp((r - 1) / beta). Demonstrations have r = 1."""

    form: Literal["one", "reward", "exponential"] = "one"
    beta: float = 0.5

    def __call__(self, trajectory: Trajectory) -> float:
        reward = 1.0 if trajectory.score.unit is None else trajectory.score.unit
        return {"one": 1.0, "reward": reward, "exponential": exp((reward - 1.0) / self.beta)}[self.form]


def keep(tried: Iterable[Trajectory], config: AgentEvol) -> list[Trajectory]:
    """The successes worth learning, by task in the order first met: the shortest one, the first, all, or none."""
    best: dict[str, list[Trajectory]] = {}
    for trajectory in tried:
        unit = trajectory.score.unit
        if unit is None or unit <= config.threshold or config.keep == "none":
            continue
        known = best.setdefault(trajectory.task.id, [])
        if config.keep == "all" or not known:
            known.append(trajectory)
        elif config.keep == "shortest" and len(trajectory.steps) < len(known[0].steps):
            known[0] = trajectory
    return [trajectory for kept in best.values() for trajectory in kept]


def agentevol(
    policy: P, explore: Sequence[Task], demonstrations: Sequence[Trajectory], *, config: AgentEvol, run: Run[P]
) -> P:
    """Clone the demonstrations, then explore, keep, learn and evaluate, `config.iterations` times.

    Args:
        policy: the initial policy; it is left as it was.
        explore: tasks without demonstrations.
        demonstrations: trajectories to clone.
    Returns:
        the policy of the last round.
    """
    weight = Weight(config.weight, config.beta)
    initial = policy
    base = policy = run.fit(initial, merged(demonstrations, [], config), weighted_nll, tokens=config.clone_tokens)
    run.evaluate(base, 0)
    rounds: list[list[Trajectory]] = []
    starts = [Start(task, sample) for task in explore for sample in range(config.samples)]
    for iteration in run.rounds(config.iterations):
        tried = run.collect(policy, starts, temperature=config.temperature)
        rounds.append(keep(tried, config))
        data = merged(demonstrations, rounds, config)
        start = {"initial": initial, "base": base, "previous": policy}[config.start]
        policy = run.fit(start, data, weighted_nll, weight=weight, tokens=config.round_tokens, lr_scale=config.lr_scale)
        run.evaluate(policy, iteration)
    return policy


def merged(
    demonstrations: Sequence[Trajectory], rounds: Sequence[Sequence[Trajectory]], config: AgentEvol
) -> list[Trajectory]:
    """What a round learns from: what it kept, with the demonstrations ("base"), with earlier rounds ("previous"), with
    both ("all", of each task only the best over all rounds), or alone ("none").

    A round in which nothing was kept goes on with the demonstrations; so does the cloning, before any round.
    """
    used = rounds if config.merge in ("previous", "all") else rounds[-1:]
    kept = keep([trajectory for tried in used for trajectory in tried], config)
    data = [*demonstrations, *kept] if config.merge in ("base", "all") or not kept else kept
    return balanced(data) if config.balance else data
