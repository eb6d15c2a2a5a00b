"""A schedule of episode lengths during training, as in ScalingInter-RL.

Xi et al., "AgentGym-RL: Training LLM Agents for Long-Horizon Decision Making through Multi-Turn Reinforcement
Learning" (arXiv 2509.08755): interaction is scaled up in phases. Short horizons first make the agent exploit;
longer ones then let it explore.
"""

from __future__ import annotations

from dataclasses import dataclass

from evolvent.errors import ConfigError, Problem

__all__ = ["HorizonSchedule"]


@dataclass(frozen=True, slots=True)
class HorizonSchedule:
    """The schedule horizon(g) = rounds[min(g // every, len(rounds) - 1)]: a pure function of g, so that runs can
    resume.

    Args:
        rounds: Maximum environment steps of an episode in each phase. Empty: only the world's own limit.
        every: Updates (or rounds of a method) in a phase.
    Raises:
        ConfigError: a horizon or a phase below 1.
    """

    rounds: tuple[int, ...] = ()
    every: int = 1

    def __post_init__(self) -> None:
        problems = [
            Problem("horizon.rounds", f"got {steps} steps, expected a whole number of at least 1")
            for steps in self.rounds
            if steps < 1
        ]
        if self.every < 1:
            problems.append(Problem("horizon.every", f"got {self.every} updates, expected at least 1"))
        if problems:
            raise ConfigError(problems)

    def __call__(self, g: int) -> int | None:
        """Returns the horizon of update `g`, counted from 1; None: the world's own."""
        return self.rounds[min(g // self.every, len(self.rounds) - 1)] if self.rounds else None
