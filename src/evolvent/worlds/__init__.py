"""Environments and their task panels, one file per world. No torch here.

`evolvent.worlds` offers every world class, the protocols and the grammars, loaded when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from evolvent.lazy import lazy_namespace

if TYPE_CHECKING:
    from evolvent.worlds.backoffice.world import Backoffice as Backoffice
    from evolvent.worlds.base import Env as Env
    from evolvent.worlds.base import Forkable as Forkable
    from evolvent.worlds.base import Grammar as Grammar
    from evolvent.worlds.base import Parsed as Parsed
    from evolvent.worlds.base import Plain as Plain
    from evolvent.worlds.base import ReAct as ReAct
    from evolvent.worlds.base import SupportsRationales as SupportsRationales
    from evolvent.worlds.base import SupportsRenaming as SupportsRenaming
    from evolvent.worlds.base import TextWorld as TextWorld
    from evolvent.worlds.base import World as World
    from evolvent.worlds.bfcl.world import Bfcl as Bfcl
    from evolvent.worlds.code.world import Code as Code
    from evolvent.worlds.countdown import Countdown as Countdown
    from evolvent.worlds.crafting import Crafting as Crafting
    from evolvent.worlds.datasci.world import DataSci as DataSci
    from evolvent.worlds.deduction.world import Deduction as Deduction
    from evolvent.worlds.functions.world import Functions as Functions
    from evolvent.worlds.grid.world import GridWorld as GridWorld
    from evolvent.worlds.gym.export import as_gymnasium as as_gymnasium
    from evolvent.worlds.gym.world import GymnasiumWorld as GymnasiumWorld
    from evolvent.worlds.household.nouns import HouseholdNouns as HouseholdNouns
    from evolvent.worlds.household.world import HouseholdWorld as HouseholdWorld
    from evolvent.worlds.kitchen.world import Kitchen as Kitchen
    from evolvent.worlds.lookup import Lookup as Lookup
    from evolvent.worlds.maze import Maze as Maze
    from evolvent.worlds.microwave import Microwave as Microwave
    from evolvent.worlds.panel import Sizes as Sizes
    from evolvent.worlds.plume.world import PlumeWorld as PlumeWorld
    from evolvent.worlds.preference.world import Preference as Preference
    from evolvent.worlds.prompts.world import PromptWorld as PromptWorld
    from evolvent.worlds.reasoning.arithmetic import Arithmetic as Arithmetic
    from evolvent.worlds.reasoning.entailment import Entailment as Entailment
    from evolvent.worlds.reasoning.graded import Graded as Graded
    from evolvent.worlds.reasoning.maths import Maths as Maths
    from evolvent.worlds.reasoning.problems import Problems as Problems
    from evolvent.worlds.reasoning.reading import Reading as Reading
    from evolvent.worlds.reasoning.rules import Rules as Rules
    from evolvent.worlds.science.world import Science as Science
    from evolvent.worlds.searchqa.world import SearchQA as SearchQA
    from evolvent.worlds.shop.world import Shop as Shop
    from evolvent.worlds.site.world import Site as Site
    from evolvent.worlds.sql.world import SqlWorld as SqlWorld
    from evolvent.worlds.teams.as_parallel import as_parallel as as_parallel
    from evolvent.worlds.tools.academia import Academia as Academia
    from evolvent.worlds.tools.movie import Movie as Movie
    from evolvent.worlds.tools.sheet import Sheet as Sheet
    from evolvent.worlds.tools.todo import Todo as Todo
    from evolvent.worlds.tools.weather import Weather as Weather
    from evolvent.worlds.web_replay.world import WebReplayWorld as WebReplayWorld
    from evolvent.worlds.wordle import Wordle as Wordle

__getattr__, __dir__, __all__ = lazy_namespace(
    __name__,
    __path__,
    {
        "backoffice.world": ("Backoffice",),
        "base": (
            "Env",
            "Forkable",
            "Grammar",
            "Parsed",
            "Plain",
            "ReAct",
            "SupportsRationales",
            "SupportsRenaming",
            "TextWorld",
            "World",
        ),
        "bfcl.world": ("Bfcl",),
        "code.world": ("Code",),
        "countdown": ("Countdown",),
        "crafting": ("Crafting",),
        "datasci.world": ("DataSci",),
        "deduction.world": ("Deduction",),
        "functions.world": ("Functions",),
        "grid.world": ("GridWorld",),
        "gym.export": ("as_gymnasium",),
        "gym.world": ("GymnasiumWorld",),
        "household.nouns": ("HouseholdNouns",),
        "household.world": ("HouseholdWorld",),
        "kitchen.world": ("Kitchen",),
        "lookup": ("Lookup",),
        "maze": ("Maze",),
        "microwave": ("Microwave",),
        "panel": ("Sizes",),
        "plume.world": ("PlumeWorld",),
        "preference.world": ("Preference",),
        "prompts.world": ("PromptWorld",),
        "reasoning.arithmetic": ("Arithmetic",),
        "reasoning.entailment": ("Entailment",),
        "reasoning.graded": ("Graded",),
        "reasoning.maths": ("Maths",),
        "reasoning.problems": ("Problems",),
        "reasoning.reading": ("Reading",),
        "reasoning.rules": ("Rules",),
        "science.world": ("Science",),
        "searchqa.world": ("SearchQA",),
        "shop.world": ("Shop",),
        "site.world": ("Site",),
        "sql.world": ("SqlWorld",),
        "teams.as_parallel": ("as_parallel",),
        "tools.academia": ("Academia",),
        "tools.movie": ("Movie",),
        "tools.sheet": ("Sheet",),
        "tools.todo": ("Todo",),
        "tools.weather": ("Weather",),
        "web_replay.world": ("WebReplayWorld",),
        "wordle": ("Wordle",),
    },
)
