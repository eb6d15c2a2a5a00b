"""An Env that calls may still be running in when whoever plays it is done: it is closed once, when nobody uses it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from evolvent.errors import EnvLost, EvolventError, boundary
from evolvent.worlds.base import Env

__all__ = ["Held", "Limits"]

_log = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Limits:
    """Deadlines of one environment in seconds (blocking worlds only), and a horizon that replaces the world's."""

    reset_s: float = 60.0
    step_s: float = 60.0
    horizon: int | None = None


class Held:
    """Closes its Env once: when it is told to end, or, where a call still runs then, when that call returns.

    Args:
        name: of the world, for messages.
        env: None: it is not made yet; whoever makes it puts it here.
    """

    def __init__(self, name: str, env: Env | None = None) -> None:
        self.name, self.env = name, env
        self._lock = threading.Lock()
        self._running = self._over = False

    def run(self, call: Callable[[], T]) -> T:
        """A call that may hang, on a thread of its own: the end may come before it returns."""
        with self._lock:
            self._running = True
        try:
            return call()
        finally:
            with self._lock:
                self._running, late = False, self._over
            if late:
                self._close()

    def end(self) -> None:
        """Close the Env, or leave that to the call that runs now; a second time does nothing."""
        with self._lock:
            if self._over:
                return
            self._over = True
            if self._running:
                return
        self._close()

    def _close(self) -> None:
        if self.env is None:
            return
        try:
            with boundary(EnvLost, f"world {self.name!r} failed in close"):
                self.env.close()
        except EvolventError as problem:
            _log.warning("%s", problem)
