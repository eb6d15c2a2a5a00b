"""Engines: requests of samples and scores over one prefix trie, answered by a local model or a server.

The names below are loaded when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from evolvent.lazy import lazy_namespace

if TYPE_CHECKING:
    from evolvent.engine.asks import Ask as Ask
    from evolvent.engine.asks import Engine as Engine
    from evolvent.engine.asks import LogitsAsk as LogitsAsk
    from evolvent.engine.asks import SampleAsk as SampleAsk
    from evolvent.engine.asks import Sampling as Sampling
    from evolvent.engine.asks import ScoreAsk as ScoreAsk
    from evolvent.engine.asks import Usage as Usage
    from evolvent.engine.driver import JobResult as JobResult
    from evolvent.engine.driver import MultiModelEngine as MultiModelEngine
    from evolvent.engine.driver import run_jobs as run_jobs
    from evolvent.engine.endpoint import Endpoint as Endpoint
    from evolvent.engine.fitting import engine_for as engine_for
    from evolvent.engine.local import LocalEngine as LocalEngine
    from evolvent.engine.recompute import RecomputeEngine as RecomputeEngine
    from evolvent.engine.remote import RemoteEngine as RemoteEngine
    from evolvent.engine.sglang import SglangEndpoint as SglangEndpoint
    from evolvent.engine.vllm import VllmEndpoint as VllmEndpoint

__getattr__, __dir__, __all__ = lazy_namespace(
    __name__,
    __path__,
    {
        "asks": ("Ask", "Engine", "LogitsAsk", "SampleAsk", "Sampling", "ScoreAsk", "Usage"),
        "driver": ("JobResult", "MultiModelEngine", "run_jobs"),
        "endpoint": ("Endpoint",),
        "fitting": ("engine_for",),
        "local": ("LocalEngine",),
        "recompute": ("RecomputeEngine",),
        "remote": ("RemoteEngine",),
        "sglang": ("SglangEndpoint",),
        "vllm": ("VllmEndpoint",),
    },
)
