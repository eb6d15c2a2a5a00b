"""An agent that ends its episode itself, as soon as its belief is certain enough.

The belief is an argument: a verifier's estimate of the chance that the task is done, votes among sampled
answers, or a filter's summary. The detectors are those of `belief/stopping.py`. An episode ended so has
`ended_by="agent"`; whether the world agrees that it was done is what `belief.outcomes.tabulate_trajectories` counts.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from evolvent.agents.base import Acting, Agent, Decision, Mind
from evolvent.belief.answers import probability_summary
from evolvent.belief.stopping import Detector, StopDecision
from evolvent.belief.summary import BeliefSummary
from evolvent.engine.asks import Answer, Ask, BlockingCall
from evolvent.trajectory import Task, Trajectory, Value
from evolvent.worlds.base import Info, World

__all__ = ["BeliefModel", "BeliefTracker", "ProbabilityBelief", "StoppingAgent", "stop_scores"]

Updating = Generator[Sequence[Ask | BlockingCall], Sequence[Answer], BeliefSummary | None]


class BeliefTracker(Protocol):
    """The belief about one episode."""

    def look(self, observation: Value, info: Info) -> Updating:
        """Returns the belief, B = 1, after another observation; it may ask the engine freely; None: none yet."""
        ...


class BeliefModel(Protocol):
    """A model that can form a belief about an episode."""

    def believe(self, world: World, task: Task, *, seed: int) -> BeliefTracker:
        """Returns a belief for one episode. It must not read the task's answer: it knows only its observations."""
        ...


@dataclass(frozen=True)
class ProbabilityBelief:
    """A belief that is one probability, such as a verifier's that the task is done; stop with `Agreement(q,
    least=1)`.

    Args:
        estimate: (observation, info) -> the probability, 0 to 1; None: no estimate yet.
    """

    estimate: Callable[[Value, Info], float | None]

    def believe(self, world: World, task: Task, *, seed: int) -> ProbabilityBelief:
        """Returns itself: the belief is the same for every episode."""
        return self

    def look(self, observation: Value, info: Info) -> Updating:
        """Returns the probability's summary; see `BeliefTracker`. Raises ConfigError for an invalid probability."""
        chance = self.estimate(observation, info)
        return None if chance is None else probability_summary(np.array([chance]))
        yield ()  # a generator that never asks


@dataclass(frozen=True)
class StoppingAgent:
    """Acts as another agent does, until its detector decides to stop.

    The belief is updated before every action. Each step's info has the score of the update before it, `stop_score`;
    where the agent ended the episode, the trajectory's meta has the last score, and its reason as `stopped`.

    Args:
        agent: the acting agent. belief: the belief model. detector: decides when the belief is sufficient.
    """

    agent: Agent
    belief: BeliefModel
    detector: Detector

    def begin(self, world: World, task: Task, *, seed: int) -> _StoppingMind:
        """Returns a mind for one episode; see `Agent`."""
        tracker = self.belief.believe(world, task, seed=seed)
        return _StoppingMind(self.agent.begin(world, task, seed=seed), tracker, self.detector)


class _StoppingMind:
    def __init__(self, mind: Mind, tracker: BeliefTracker, detector: Detector) -> None:
        self._mind, self._believing, self._detector = mind, tracker, detector
        self._history: list[StopDecision] = []

    def act(self, observation: Value, info: Info) -> Acting:
        """Updates the belief, then acts or ends."""
        summary = yield from self._believing.look(observation, info)
        marks: dict[str, Any] = {}
        if summary is not None:
            stop_decision = self._detector(summary, self._history)
            self._history.append(stop_decision)
            score = float(stop_decision.score[0])
            marks = {"stop_score": score} if np.isfinite(score) else {}
            if stop_decision.stop[0]:
                return Decision("", ends="agent", info={**marks, "stopped": stop_decision.reason})
        decision = yield from self._mind.act(observation, info)
        return replace(decision, info={**decision.info, **marks})


def stop_scores(trajectory: Trajectory) -> NDArray[np.float64]:
    """Returns [T] the scores of an episode's updates: one before each step, and the last where the agent ended it.

    Infinite where nothing could be said. For `belief.comparison.ScoredRun`.
    """
    marks = [step.info for step in trajectory.steps]
    marks += [trajectory.meta] if "stopped" in trajectory.meta else []
    return np.array([float(mark.get("stop_score", np.inf)) for mark in marks])
