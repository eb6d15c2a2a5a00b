"""An Env wrapper that closes the Env exactly once, after calls that still run in it have returned."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from evolvent.errors import EnvLost, EvolventError, boundary
from evolvent.worlds.base import Env

__all__ = ["DeferredClose", "Limits"]

_log = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Limits:
    """Deadlines of one environment in seconds (blocking worlds only), and a horizon that replaces the world's."""

    reset_s: float = 60.0
    step_s: float = 60.0
    horizon: int | None = None


class DeferredClose:
    """Closes its Env once: at `end`, or, if a call still runs then, when that call returns.

    Args:
        name: name of the world, for messages.
        env: the Env, or None until its creator sets it.
    """

    def __init__(self, name: str, env: Env | None = None) -> None:
        self.name, self.env = name, env
        self._lock = threading.Lock()
        self._running = self._over = False

    def run(self, call: Callable[[], T]) -> T:
        """Runs a call that may hang on the calling thread; `end` may come before the call returns."""
        with self._lock:
            self._running = True
        try:
            return call()
        finally:
            with self._lock:
                self._running, must_close = False, self._over
            if must_close:
                self._close()

    def end(self) -> None:
        """Closes the Env, or leaves that to the call that runs now; a second call does nothing."""
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
