"""The engine that fits a model: one that shares prefixes, or where the model's cache does not allow that, the other."""

from __future__ import annotations

import logging
from typing import Any

from evolvent.engine.asks import Engine
from evolvent.engine.local import LocalEngine
from evolvent.engine.recompute import RecomputeEngine
from evolvent.errors import ConfigError

__all__ = ["engine_for"]

_log = logging.getLogger(__name__)
_RECOMPUTED = 16  # texts of a forward that keeps nothing: their logits lie in memory at every position


def engine_for(policy: Any, *, slots: int = 64, engine: Engine | None = None) -> Engine:
    """An engine that serves this policy.

    Args:
        slots: texts that are worked on at once; memory grows with slots x context.
        engine: one that is free to serve it: its memory is used again where it fits.
    Raises:
        ConfigError: slots below 1.
    """
    try:
        if isinstance(engine, LocalEngine):
            engine.sync(policy)
            return engine
        return LocalEngine(policy, slots=slots)
    except ConfigError as problem:
        _log.warning("every text is computed from its beginning: %s", problem)
        return RecomputeEngine(policy, slots=min(slots, _RECOMPUTED))
