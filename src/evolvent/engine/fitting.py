"""The choice of a model's engine: the engine that shares prefixes, or the recomputing engine for other caches."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from evolvent.engine.asks import Engine
from evolvent.engine.local import LocalEngine
from evolvent.engine.recompute import RecomputeEngine
from evolvent.errors import ConfigError

if TYPE_CHECKING:
    from evolvent.models.policy import Policy

__all__ = ["engine_for"]

_log = logging.getLogger(__name__)
_MAX_RECOMPUTE_SLOTS = 16  # texts of a forward that keeps nothing: their logits lie in memory at every position


def engine_for(policy: Policy, *, slots: int = 64, engine: Engine | None = None) -> Engine:
    """Returns an engine that serves this policy.

    Args:
        slots: number of texts that are processed at once; memory grows with the tokens that are held.
        engine: an idle engine that may serve it: its memory is reused where it fits.
    Raises:
        ConfigError: slots below 1.
    """
    try:
        if isinstance(engine, LocalEngine):
            engine.sync(policy)
            return engine
        return LocalEngine(policy, slots=slots)
    except ConfigError as problem:
        _log.warning("prefixes are not shared: %s", problem)
        return RecomputeEngine(policy, slots=min(slots, _MAX_RECOMPUTE_SLOTS))
