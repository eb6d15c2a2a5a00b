"""An agent that ends its episode itself, as soon as what it believes is sure enough.

The belief is handed in: what a verifier says of the chance that the task is done, votes among sampled answers, a
filter's summary. The detectors are those of `belief/stopping.py`. An episode ended so has `ended_by="agent"`; whether
the world agrees that it was done is what `belief.outcomes.outcomes_of` counts.
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
from evolvent.engine.asks import Answer, Ask, Wait
from evolvent.trajectory import Task, Trajectory, Value
from evolvent.worlds.base import Info, World

__all__ = ["Believer", "Believing", "Knowing", "Probability", "stop_scores"]

Looking = Generator[Sequence[Ask | Wait], Sequence[Answer], BeliefSummary | None]


class Believing(Protocol):
    """What is believed in one episode."""

    def look(self, observation: Value, info: Info) -> Looking:
        """The belief, B = 1, after another observation, asking the engine as often as it likes; None: none yet."""
        ...


class Believer(Protocol):
    """Anything that can begin to believe something about an episode."""

    def believe(self, world: World, task: Task, *, seed: int) -> Believing:
        """A belief for one episode. It must not read the task's answer: what it knows is what it sees."""
        ...


@dataclass(frozen=True)
class Probability:
    """A belief that is one chance, such as a verifier's that the task is done; stop with `Agreement(q, least=1)`.

    Args:
        read: (observation, info) -> the chance, 0 to 1; None: nothing can be said yet.
    """

    read: Callable[[Value, Info], float | None]

    def believe(self, world: World, task: Task, *, seed: int) -> Probability:
        """The same for every episode."""
        return self

    def look(self, observation: Value, info: Info) -> Looking:
        """See `Believing`. Raises ConfigError for what is no chance."""
        chance = self.read(observation, info)
        return None if chance is None else probability_summary(np.array([chance]))
        yield ()  # a generator that never asks


@dataclass(frozen=True)
class Knowing:
    """Acts as another agent does, until its detector says that it knows enough.

    It looks before every action. Each step's info has the score of the look before it, `stop_score`, and where the
    agent ended the episode the trajectory's meta has that of the last look, and why it was the last, `stopped`.

    Args:
        agent: who acts. belief: what is believed. detector: when that is enough.
    """

    agent: Agent
    belief: Believer
    detector: Detector

    def begin(self, world: World, task: Task, *, seed: int) -> _KnowingMind:
        """A mind for one episode; see `Agent`."""
        believing = self.belief.believe(world, task, seed=seed)
        return _KnowingMind(self.agent.begin(world, task, seed=seed), believing, self.detector)


class _KnowingMind:
    def __init__(self, mind: Mind, believing: Believing, detector: Detector) -> None:
        self._mind, self._believing, self._detector = mind, believing, detector
        self._history: list[StopDecision] = []

    def act(self, observation: Value, info: Info) -> Acting:
        """Look, then act or end."""
        summary = yield from self._believing.look(observation, info)
        marks: dict[str, Any] = {}
        if summary is not None:
            said = self._detector(summary, self._history)
            self._history.append(said)
            score = float(said.score[0])
            marks = {"stop_score": score} if np.isfinite(score) else {}
            if said.stop[0]:
                return Decision("", ends="agent", info={**marks, "stopped": said.reason})
        decision = yield from self._mind.act(observation, info)
        return replace(decision, info={**decision.info, **marks})


def stop_scores(trajectory: Trajectory) -> NDArray[np.float64]:
    """[T] the scores of an episode's looks: one before each step, and the last one where the agent ended it.

    Infinite where nothing could be said. For `belief.replay.ScoredRun`.
    """
    marks = [step.info for step in trajectory.steps]
    marks += [trajectory.meta] if "stopped" in trajectory.meta else []
    return np.array([float(each.get("stop_score", np.inf)) for each in marks])
