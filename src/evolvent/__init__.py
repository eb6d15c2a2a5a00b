"""evolvent: agents that learn by acting.

Worlds, trajectories, one prefix trie, one learner. Names are loaded when they are first used, so that importing the
package is quick and needs neither torch nor a network.
"""

from __future__ import annotations

import warnings
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from evolvent import agents, engine, methods, search, store, worlds
    from evolvent.agents.language import LanguageAgent
    from evolvent.agents.plain import Expert, Random, Script
    from evolvent.cli.setup.registry import load_world
    from evolvent.config import Config
    from evolvent.engine.asks import SampleAsk, Sampling
    from evolvent.engine.driver import run_jobs
    from evolvent.engine.local import LocalEngine
    from evolvent.errors import ConfigError, EvolventError
    from evolvent.learn.learner import Learner, TrainConfig
    from evolvent.learn.objectives import Objective, weighted_nll
    from evolvent.methods.agentevol import AgentEvolConfig, agentevol
    from evolvent.models.policy import Policy, load_policy, tiny_policy
    from evolvent.rollout.episode import collect
    from evolvent.rollout.prompting import prompt_world
    from evolvent.run import Run
    from evolvent.scale.evaluation import evaluate
    from evolvent.scale.initial import collect_demonstrations, make_policy
    from evolvent.scale.local_backend import local_run
    from evolvent.scale.train_grpo import train_grpo
    from evolvent.store.store import Store
    from evolvent.trajectory import Generation, Score, Start, Step, Task, Trajectory
    from evolvent.view import report
    from evolvent.worlds.base import Env, TextWorld, World
    from evolvent.worlds.crafting import Crafting
    from evolvent.worlds.lookup import Lookup

_HOMES = {
    "agents.language": ("LanguageAgent",),
    "agents.plain": ("Expert", "Random", "Script"),
    "cli.setup.registry": ("load_world",),
    "config": ("Config",),
    "engine.asks": ("SampleAsk", "Sampling"),
    "engine.driver": ("run_jobs",),
    "engine.local": ("LocalEngine",),
    "errors": ("ConfigError", "EvolventError"),
    "learn.learner": ("Learner", "TrainConfig"),
    "learn.objectives": ("Objective", "weighted_nll"),
    "methods.agentevol": ("AgentEvolConfig", "agentevol"),
    "models.policy": ("Policy", "load_policy", "tiny_policy"),
    "rollout.episode": ("collect",),
    "rollout.prompting": ("prompt_world",),
    "run": ("Run",),
    "scale.evaluation": ("evaluate",),
    "scale.initial": ("collect_demonstrations", "make_policy"),
    "scale.local_backend": ("local_run",),
    "scale.train_grpo": ("train_grpo",),
    "store.store": ("Store",),
    "trajectory": ("Generation", "Score", "Start", "Step", "Task", "Trajectory"),
    "view": ("report",),
    "worlds.base": ("Env", "TextWorld", "World"),
    "worlds.crafting": ("Crafting",),
    "worlds.lookup": ("Lookup",),
}
_HOME = {name: f"evolvent.{module}" for module, names in _HOMES.items() for name in names}

_NAMESPACES = ("agents", "engine", "methods", "search", "store", "worlds")
_FORMER_NAMES = {
    "AgentEvol": "AgentEvolConfig",
    "demonstrations": "collect_demonstrations",
    "drive": "run_jobs",
    "policy_for": "make_policy",
}
_MOVED_NAMES = {"Annotation": "trajectory", "ScoreAsk": "engine"}  # to a module, because few need them

__version__ = "0.2.0"
__all__ = [
    "AgentEvolConfig",
    "Config",
    "ConfigError",
    "Crafting",
    "Env",
    "EvolventError",
    "Expert",
    "Generation",
    "LanguageAgent",
    "Learner",
    "LocalEngine",
    "Lookup",
    "Objective",
    "Policy",
    "Random",
    "Run",
    "SampleAsk",
    "Sampling",
    "Score",
    "Script",
    "Start",
    "Step",
    "Store",
    "Task",
    "TextWorld",
    "TrainConfig",
    "Trajectory",
    "World",
    "agentevol",
    "agents",
    "collect",
    "collect_demonstrations",
    "engine",
    "evaluate",
    "load_policy",
    "load_world",
    "local_run",
    "make_policy",
    "methods",
    "prompt_world",
    "report",
    "run_jobs",
    "search",
    "store",
    "tiny_policy",
    "train_grpo",
    "weighted_nll",
    "worlds",
]


def __getattr__(name: str) -> Any:
    if name in _FORMER_NAMES:
        warnings.warn(f"evolvent.{name} is now evolvent.{_FORMER_NAMES[name]}", DeprecationWarning, stacklevel=2)
        name = _FORMER_NAMES[name]
    if name in _MOVED_NAMES:
        namespace = _MOVED_NAMES[name]
        warnings.warn(f"evolvent.{name} is now evolvent.{namespace}.{name}", DeprecationWarning, stacklevel=2)
        return getattr(import_module(f"evolvent.{namespace}"), name)
    if name in _NAMESPACES:
        return import_module(f"evolvent.{name}")
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'evolvent' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
