"""History policies for full contexts: each has a name and is recorded where it was used.

A history policy is handed the turns so far and the maximum number of tokens; it returns the tokens of a new
root, or None to end the episode as truncated. Actions keep the very tokens that were sampled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Protocol

from evolvent.models.dialects import Dialect

__all__ = ["History", "Refuse", "Summarise", "Turn", "Window", "digest_turns"]


@dataclass(frozen=True, slots=True)
class Turn:
    """One past turn: the observation, the action's token ids, and whether the stop token is among them."""

    observation: str
    action: tuple[int, ...]
    stopped: bool


class History(Protocol):
    """A policy for full contexts."""

    @property
    def name(self) -> str:
        """Returns the policy's name in configs and records."""
        ...

    def __call__(
        self, dialect: Dialect, instructions: str, turns: Sequence[Turn], observation: str, max_tokens: int
    ) -> list[int] | None:
        """Returns at most `max_tokens` tokens of a new root that ends where the next action begins; None to give up."""
        ...


@dataclass(frozen=True)
class Refuse:
    """Ends the episode: it is recorded as truncated."""

    name: str = "refuse"

    def __call__(
        self, dialect: Dialect, instructions: str, turns: Sequence[Turn], observation: str, max_tokens: int
    ) -> list[int] | None:
        return None


@dataclass(frozen=True)
class Window:
    """Keeps the first turn (it holds the task) and as many of the last ones as fit into `share` of the limit."""

    share: float = 0.5
    name: str = "window"

    def __call__(
        self, dialect: Dialect, instructions: str, turns: Sequence[Turn], observation: str, max_tokens: int
    ) -> list[int] | None:
        if not turns:
            return None
        observations, count = [*(turn.observation for turn in turns), observation], len(turns)

        def encode_turn(index: int, stopped: bool) -> list[int]:
            ids = dialect.turn(observations[index], stopped=stopped)
            return [*ids, *turns[index].action] if index < count else ids

        head = [*dialect.open(instructions, observations[0]), *turns[0].action]
        later = [
            encode_turn(index, turns[index - 1].stopped) for index in range(1, count + 1)
        ]  # each text is made tokens once
        remaining = sum(map(len, later))
        for first in range(1, count + 1):
            remaining -= len(later[first - 1])
            if first == 1 < count:
                continue
            same = turns[0].stopped == turns[first - 1].stopped
            first_kept = later[first - 1] if same else encode_turn(first, turns[0].stopped)
            length = len(head) + len(first_kept) + remaining
            if length <= max_tokens * self.share or (first == count and length <= max_tokens):
                return [*head, *first_kept, *chain.from_iterable(later[first:])]
        return None


def digest_turns(turns: Sequence[tuple[str, str]]) -> str:
    """Lists a line for every action and one for its latest answer, in order: the plainest summary.

    It adds no words of its own, so that it can be read with a closed vocabulary too.
    """
    latest = dict(turns)
    return "\n".join(f"{action}\n{answer}" for action, answer in latest.items())


@dataclass(frozen=True)
class Summarise:
    """Starts again from the first observation and a summary of past actions and answers.

    `summary` is handed (action, answer) pairs; a model, a rule, or the default that lists each action's latest
    answer.
    """

    summary: Callable[[Sequence[tuple[str, str]]], str] = digest_turns
    name: str = "summarise"

    def __call__(
        self, dialect: Dialect, instructions: str, turns: Sequence[Turn], observation: str, max_tokens: int
    ) -> list[int] | None:
        if not turns:
            return None
        answers = [*(turn.observation for turn in turns[1:]), observation]
        pairs = [(dialect.read_reply(turn.action).text, answer) for turn, answer in zip(turns, answers, strict=True)]
        first = turns[0].observation
        while pairs:
            ids = dialect.open(instructions, f"{first}\n{self.summary(pairs)}")
            if len(ids) <= max_tokens:
                return ids
            pairs = pairs[1:]
        return None
