"""The trajectory database: an append-only log, sealed to Parquet, read as one. No torch here.

The names below are loaded when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from evolvent.lazy import lazy_namespace

if TYPE_CHECKING:
    from evolvent.store.episodes import Episodes as Episodes
    from evolvent.store.episodes import load_episodes as load_episodes
    from evolvent.store.episodes import save_episodes as save_episodes
    from evolvent.store.exchange import read_agenttraj as read_agenttraj
    from evolvent.store.exchange import read_jsonl as read_jsonl
    from evolvent.store.exchange import read_messages as read_messages
    from evolvent.store.exchange import write_agenttraj as write_agenttraj
    from evolvent.store.exchange import write_csv as write_csv
    from evolvent.store.exchange import write_jsonl as write_jsonl
    from evolvent.store.exchange import write_messages as write_messages
    from evolvent.store.metrics import MetricsTable as MetricsTable
    from evolvent.store.metrics import read_metrics as read_metrics
    from evolvent.store.minari import write_minari as write_minari
    from evolvent.store.minari import write_minari_episodes as write_minari_episodes
    from evolvent.store.offline import read_d4rl as read_d4rl
    from evolvent.store.offline import read_minari as read_minari
    from evolvent.store.store import Store as Store

__getattr__, __dir__, __all__ = lazy_namespace(
    __name__,
    __path__,
    {
        "episodes": ("Episodes", "load_episodes", "save_episodes"),
        "exchange": (
            "read_agenttraj",
            "read_jsonl",
            "read_messages",
            "write_agenttraj",
            "write_csv",
            "write_jsonl",
            "write_messages",
        ),
        "metrics": ("MetricsTable", "read_metrics"),
        "minari": ("write_minari", "write_minari_episodes"),
        "offline": ("read_d4rl", "read_minari"),
        "store": ("Store",),
    },
)
