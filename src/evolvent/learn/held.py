"""What a checkpoint of a practice holds of each of its networks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torch import Tensor

from evolvent.learn.learner import Learner
from evolvent.learn.trained import Numbers, check_resumes

__all__ = ["Holder"]


class Holder:
    """What a checkpoint of a practice holds of one network: a Learner's weights and moments, or weights alone.

    Raises:
        ConfigError: an optimizer that does not go on from a checkpoint as if it had not been stopped.
    """

    def __init__(self, learner: Learner | None, weights: Mapping[str, Tensor] | None = None) -> None:
        self._learner, self._weights = learner, dict(weights or {})
        if learner is not None:
            check_resumes(learner.optimizer_config)

    @property
    def learner(self) -> Learner | None:
        """The Learner, where there is one."""
        return self._learner

    def groups(self, name: str) -> dict[str, Mapping[str, Tensor]]:
        """Named tensors, by the name of their group."""
        if self._learner is None:
            return {name: self._weights}
        return {name: self._learner.trained.named(), f"{name}-optimizer": self._learner.trained.moments()}

    @property
    def numbers(self) -> Numbers:
        """What the optimizer counts for all weights together; nothing where there is none."""
        return {} if self._learner is None else self._learner.trained.numbers()

    def renumber(self, numbers: Numbers) -> None:
        """Let the optimizer go on from these numbers.

        A checkpoint of an earlier version has the weights that learn where those to play are others: they are turned.
        """
        if self._learner is not None:
            self._learner.trained.renumber(numbers)
            self._learner.trained.settle()

    def progressed(self, share: float) -> None:
        """So much of the practice is behind it: rates may fall."""
        if self._learner is not None:
            self._learner.share = share

    def begin(self, moments: Iterable[str]) -> None:
        """Let the optimizer make the state that is to be filled."""
        if self._learner is not None:
            self._learner.trained.begin({moment.partition("/")[2] for moment in moments})
