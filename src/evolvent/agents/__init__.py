"""Agents, which turn observations into actions.

The classes below are loaded when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from evolvent.lazy import lazy_namespace

if TYPE_CHECKING:
    from evolvent.agents.base import Agent as Agent
    from evolvent.agents.base import Decision as Decision
    from evolvent.agents.base import Mind as Mind
    from evolvent.agents.calling import ValidCalls as ValidCalls
    from evolvent.agents.candidates import CandidateAgent as CandidateAgent
    from evolvent.agents.chat import ChatAgent as ChatAgent
    from evolvent.agents.history import History as History
    from evolvent.agents.history import Refuse as Refuse
    from evolvent.agents.history import Summarise as Summarise
    from evolvent.agents.history import Window as Window
    from evolvent.agents.knowing import StoppingAgent as StoppingAgent
    from evolvent.agents.language import LanguageAgent as LanguageAgent
    from evolvent.agents.plain import Expert as Expert
    from evolvent.agents.plain import Random as Random
    from evolvent.agents.plain import Script as Script
    from evolvent.agents.steps import StepAgent as StepAgent
    from evolvent.agents.writers import ScriptedWriter as ScriptedWriter
    from evolvent.agents.writers import Writer as Writer

__getattr__, __dir__, __all__ = lazy_namespace(
    __name__,
    __path__,
    {
        "base": ("Agent", "Decision", "Mind"),
        "calling": ("ValidCalls",),
        "candidates": ("CandidateAgent",),
        "chat": ("ChatAgent",),
        "history": ("History", "Refuse", "Summarise", "Window"),
        "knowing": ("StoppingAgent",),
        "language": ("LanguageAgent",),
        "plain": ("Expert", "Random", "Script"),
        "steps": ("StepAgent",),
        "writers": ("ScriptedWriter", "Writer"),
    },
)
