"""Prefetching of rollouts: the next iteration is played with the present policy while this one is trained on.

Prefetched episodes are always exactly one policy version behind, so the speed of the threads changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

import torch

from evolvent.models.policy import Policy
from evolvent.trajectory import Start, Trajectory

__all__ = ["RolloutPrefetcher"]

PrefetchFunction = Callable[[Policy, Sequence[Start], int], Iterable[Trajectory]]


class RolloutPrefetcher:
    """One batch of episodes that is played on a thread, with a copy of the policy's weights.

    Args:
        policy: its weights are copied into a separate policy at every launch.
        play: plays starts in an iteration.
    Attributes:
        policy: the copy. Checkpoints store it: after a stop the running batch is played again by the same weights.
    """

    def __init__(self, policy: Policy, play: PrefetchFunction) -> None:
        self.policy, self._play = policy.clone(), play
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="ahead")
        self._under_way: tuple[int, list[Start], Future[list[Trajectory]]] | None = None
        self._over = False

    def launch(self, policy: Policy, starts: Sequence[Start], iteration: int) -> None:
        """Starts to play an iteration with the policy's present weights."""
        with torch.no_grad():
            current_weights = dict(policy.model.named_parameters())  # a value head may hang on it, which does not play
            for name, copied_weight in self.policy.model.named_parameters():
                copied_weight.copy_(current_weights[name])
        self.relaunch(policy.version, starts, iteration)

    def relaunch(self, version: int, starts: Sequence[Start], iteration: int) -> None:
        """Starts to play an iteration with the weights of the copy, which belong to `version`."""
        self.policy = replace(self.policy, version=version)
        start_list = list(starts)
        self._under_way = (
            iteration,
            start_list,
            self._pool.submit(self._play_starts, self.policy, start_list, iteration),
        )

    def _play_starts(self, policy: Policy, starts: list[Start], iteration: int) -> list[Trajectory]:
        trajectories = []
        for trajectory in self._play(policy, starts, iteration):
            trajectories.append(trajectory)
            if self._over:
                break
        return trajectories

    def take(self, starts: Sequence[Start], iteration: int) -> list[Trajectory] | None:
        """Returns the episodes that were prefetched for these starts, when finished; None: they were not prefetched."""
        if self._under_way is None or self._under_way[:2] != (iteration, list(starts)):
            return None
        future, self._under_way = self._under_way[2], None
        return future.result()

    def describe_pending(self) -> dict[str, int]:
        """Returns the iteration that is being played and its policy version; empty where none is."""
        return {} if self._under_way is None else {"iteration": self._under_way[0], "version": self.policy.version}

    def close(self) -> None:
        """Stops playing; episodes that are finished by then stay in the store."""
        self._over = True
        self._pool.shutdown(wait=True, cancel_futures=True)
