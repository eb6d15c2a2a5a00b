"""Prefetching of rollouts: later iterations are played with the present policy while this one is trained on.

With a depth of k, iteration n is played by the weights that iteration n - k began with: k versions behind the weights
that learn from it. The schedule alone decides that, so the speed of the threads changes nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from typing import Protocol

import torch

from evolvent.errors import ConfigError
from evolvent.models.policy import Policy
from evolvent.trajectory import Start, Trajectory

__all__ = ["RolloutPrefetcher"]


class PrefetchFunction(Protocol):
    """Plays starts with a policy in an iteration, at most `horizon` steps each."""

    def __call__(
        self, policy: Policy, starts: Sequence[Start], iteration: int, /, *, horizon: int | None
    ) -> Iterable[Trajectory]: ...


@dataclass(frozen=True, slots=True)
class _Prefetch:
    """An iteration that is being played, or was played and not yet taken."""

    version: int
    horizon: int | None
    starts: list[Start]
    trajectories: Future[list[Trajectory]]


class RolloutPrefetcher:
    """Batches of episodes that are played on a thread one after another, each with its own copy of the weights.

    Args:
        policy: its weights are copied into a separate policy at every launch.
        play: plays starts in an iteration.
        depth: number of iterations that are played ahead.
    Attributes:
        policies: the copies. Checkpoints store them: after a stop the pending iterations are played by the same
            weights again. Iteration n uses copy n modulo `depth`.
    """

    def __init__(self, policy: Policy, play: PrefetchFunction, *, depth: int = 1) -> None:
        self.policies, self._play = [policy.clone() for _ in range(depth)], play
        self._thread_id: int | None = None
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="ahead", initializer=self._note_thread)
        self._under_way: dict[int, _Prefetch] = {}
        self._over = False

    def _note_thread(self) -> None:
        self._thread_id = threading.get_ident()

    @property
    def is_closing(self) -> bool:
        """Returns whether this thread plays ahead for a training that ends, so that nobody needs what it plays."""
        return self._over and threading.get_ident() == self._thread_id

    @property
    def depth(self) -> int:
        """Returns the number of iterations that are played ahead."""
        return len(self.policies)

    def reduce_depth(self, depth: int) -> None:
        """Keeps the first `depth` copies, before anything is launched."""
        del self.policies[depth:]

    def is_launched(self, iteration: int) -> bool:
        """Returns whether an iteration is being played or waits to be taken."""
        return iteration in self._under_way

    def launch(self, policy: Policy, starts: Sequence[Start], iteration: int, *, horizon: int | None) -> None:
        """Starts to play an iteration with the policy's present weights, at most `horizon` steps an episode."""
        with torch.no_grad():
            current_weights = dict(policy.model.named_parameters())  # a value head may hang on it, which does not play
            for name, copied_weight in self.policies[iteration % self.depth].model.named_parameters():
                copied_weight.copy_(current_weights[name])
        self.relaunch(policy.version, starts, iteration, horizon=horizon)

    def relaunch(self, version: int, starts: Sequence[Start], iteration: int, *, horizon: int | None) -> None:
        """Starts to play an iteration with the weights of its copy, which belong to `version`."""
        copy = self.policies[iteration % self.depth] = replace(self.policies[iteration % self.depth], version=version)
        start_list = list(starts)
        playing = self._pool.submit(self._play_starts, copy, start_list, iteration, horizon=horizon)
        self._under_way[iteration] = _Prefetch(version, horizon, start_list, playing)

    def _play_starts(
        self, policy: Policy, starts: list[Start], iteration: int, *, horizon: int | None
    ) -> list[Trajectory]:
        trajectories = []
        for trajectory in self._play(policy, starts, iteration, horizon=horizon):
            trajectories.append(trajectory)
            if self._over:
                break
        return trajectories

    def take(self, starts: Sequence[Start], iteration: int) -> list[Trajectory] | None:
        """Returns the episodes that were prefetched for these starts, when finished; None: they were not prefetched.

        Raises:
            ConfigError: other starts were prefetched for this iteration.
        """
        prefetch = self._under_way.get(iteration)
        if prefetch is None:
            return None
        if prefetch.starts != list(starts):
            raise ConfigError(
                "prefetch_rollouts needs the same tasks in every iteration",
                value=f"other tasks in iteration {iteration}",
                hint="set prefetch_rollouts=False",
            )
        del self._under_way[iteration]
        return prefetch.trajectories.result()

    def wait(self) -> None:
        """Waits until everything that was launched has been played; the thread that plays ahead does not wait."""
        if threading.get_ident() != self._thread_id:
            wait([prefetch.trajectories for prefetch in self._under_way.values()])

    def describe_pending(self) -> list[dict[str, int | None]]:
        """Returns the iterations that are being played or wait to be taken, with their policy versions and horizons."""
        return [
            {"iteration": iteration, "version": prefetch.version, "horizon": prefetch.horizon}
            for iteration, prefetch in self._under_way.items()
        ]

    def close(self) -> None:
        """Stops playing; episodes that are finished by then stay in the store."""
        self._over = True
        self._pool.shutdown(wait=True, cancel_futures=True)
