"""Playing ahead: the next iteration is played, by the policy as it is, while this one is learned from.

What is played is one version of the policy behind, always exactly one: which thread is faster changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

import torch

from evolvent.models.policy import Policy
from evolvent.trajectory import Start, Trajectory

__all__ = ["Ahead"]

Played = Callable[[Policy, Sequence[Start], int], Iterable[Trajectory]]


class Ahead:
    """One batch of episodes under way, on a thread, with a copy of the policy's weights.

    Args:
        policy: whose weights are copied into a policy of one's own at every launch.
        play: plays starts in an iteration.
    Attributes:
        policy: the copy. It is kept in checkpoints: what is under way at a stop is played again by the same weights.
    """

    def __init__(self, policy: Policy, play: Played) -> None:
        self.policy, self._play = policy.clone(), play
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="ahead")
        self._under_way: tuple[int, list[Start], Future[list[Trajectory]]] | None = None
        self._over = False

    def launch(self, policy: Policy, starts: Sequence[Start], iteration: int) -> None:
        """Begin to play an iteration with the weights that the policy has now."""
        with torch.no_grad():
            now = dict(policy.model.named_parameters())  # a value head may hang on it, which does not play
            for name, own in self.policy.model.named_parameters():
                own.copy_(now[name])
        self.relaunch(policy.version, starts, iteration)

    def relaunch(self, version: int, starts: Sequence[Start], iteration: int) -> None:
        """Begin to play an iteration with the weights of the copy, which are those of a version."""
        self.policy = replace(self.policy, version=version)
        wanted = list(starts)
        self._under_way = (iteration, wanted, self._pool.submit(self._played, self.policy, wanted, iteration))

    def _played(self, policy: Policy, starts: list[Start], iteration: int) -> list[Trajectory]:
        found = []
        for trajectory in self._play(policy, starts, iteration):
            found.append(trajectory)
            if self._over:
                break
        return found

    def take(self, starts: Sequence[Start], iteration: int) -> list[Trajectory] | None:
        """What was played ahead for these starts, when it is finished; None: they were not."""
        if self._under_way is None or self._under_way[:2] != (iteration, list(starts)):
            return None
        future, self._under_way = self._under_way[2], None
        return future.result()

    def under_way(self) -> dict[str, int]:
        """Which iteration is being played, and by which version; empty where none is."""
        return {} if self._under_way is None else {"iteration": self._under_way[0], "version": self.policy.version}

    def close(self) -> None:
        """Stop playing; what is finished by then is kept where it was stored."""
        self._over = True
        self._pool.shutdown(wait=True, cancel_futures=True)
