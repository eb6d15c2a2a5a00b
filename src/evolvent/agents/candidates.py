"""The agent that chooses among listed actions by its policy's log-probabilities: TWOSOME (arXiv 2401.14151).

`P(a) = softmax_a(sum_j log p(w_j | o, w_<j) / words(a))`. The candidates of a step are branches of one
conversation: their common tokens are computed once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from evolvent.agents.base import Acting, Decision
from evolvent.agents.history import History, Refuse
from evolvent.agents.language import LanguageAgent, LanguageMind
from evolvent.engine.asks import Continuation, ScoreAsk
from evolvent.errors import ConfigError, WorldError
from evolvent.models.policy import Policy
from evolvent.trajectory import Task, Value, sample_rng
from evolvent.worlds.base import Info, World

__all__ = ["CandidateAgent", "CandidateDivisor"]

CandidateDivisor = Literal["words", "tokens", "one"]
"""What the log-probability of a candidate is divided by: its words, its tokens, or nothing."""


@dataclass(frozen=True)
class CandidateAgent:
    """Chooses among the actions that the world lists as possible.

    Args:
        policy: whose log-probabilities decide; its version marks the generations.
        temperature: of the choice; 0: the likeliest.
        per: the divisor of a candidate's log-probability: its words (as published), its tokens, or nothing.
        history: the policy for full contexts.
    Raises:
        ConfigError: a negative temperature.
    """

    policy: Policy
    temperature: float = 1.0
    per: CandidateDivisor = "words"
    history: History = field(default_factory=Refuse)

    def __post_init__(self) -> None:
        if not self.temperature >= 0:
            raise ConfigError("temperature out of range", value=self.temperature)

    def begin(self, world: World, task: Task, *, seed: int) -> _CandidateMind:
        longest = LanguageAgent(self.policy, max_tokens=1, history=self.history)
        return _CandidateMind(longest, world, seed, self)


class _CandidateMind(LanguageMind):
    """One conversation; a step's info records the candidates' tokens, the chosen index, and the divisors."""

    def __init__(self, agent: LanguageAgent, world: World, seed: int, chooser: CandidateAgent) -> None:
        super().__init__(agent, world, seed)
        self._chooser, self._rng = chooser, sample_rng(seed, "candidates")

    def act(self, observation: Value, info: Info) -> Acting:
        candidates = self._list_candidates(info)
        tokens = self._next_tokens(str(observation), info)
        longest = max(map(len, candidates))
        if tokens is not None and self._turns and self._length + len(tokens) + longest > self._context:
            max_tokens, world = self._context - longest, self._world  # the history policy makes room for all of them
            tokens = self._agent.history(self._dialect, world.instructions, self._turns, str(observation), max_tokens)
            self._node, self._length, self._read = None, 0, []
        if tokens is None or self._length + len(tokens) + longest > self._context:
            return Decision("", ends="horizon", info={"context_full": True})
        candidate_scores = yield tuple([ScoreAsk(self._node, [*tokens, *ids]) for ids in candidates])
        divisors = [self._divisor(ids) for ids in candidates]
        score = np.asarray(
            [
                candidate_score.logprobs[-len(ids) :].sum(dtype=np.float64) / size
                for candidate_score, ids, size in zip(candidate_scores, candidates, divisors, strict=True)
            ]
        )
        index, logprob = self._choose(score)
        logprobs = np.zeros(len(candidates[index]), np.float32)
        logprobs[0] = logprob  # of the whole choice
        continuation = Continuation(
            candidate_scores[index].node, np.asarray(candidates[index], np.int32), logprobs, "choice"
        )
        decision = self._decide(str(observation), tokens, continuation)
        candidate_info = {"candidates": [list(ids) for ids in candidates], "chosen": index, "words": divisors}
        return replace(decision, info={**decision.info, **candidate_info})

    def _list_candidates(self, info: Info) -> list[tuple[int, ...]]:
        admissible = info.get("admissible")
        if not admissible:
            raise WorldError(
                "the world does not list its admissible actions",
                value=sorted(info),
                expected="admissible",
                hint="use a method that writes actions as text",
            )
        return list(dict.fromkeys(tuple(self._dialect.action(action)) for action in admissible))

    def _divisor(self, ids: Sequence[int]) -> int:
        if self._chooser.per == "words":
            return max(1, len(self._dialect.text(ids).split()))
        return len(ids) if self._chooser.per == "tokens" else 1

    def _choose(self, score: np.ndarray[tuple[int], np.dtype[np.float64]]) -> tuple[int, float]:
        """Samples one candidate and returns its index and log-probability."""
        if self._chooser.temperature == 0:
            return int(score.argmax()), 0.0
        shifted = (score - score.max()) / self._chooser.temperature
        logp = shifted - np.log(np.exp(shifted).sum())
        index = min(int(np.searchsorted(np.exp(logp).cumsum(), self._rng.random(), side="right")), len(score) - 1)
        return index, float(logp[index])
