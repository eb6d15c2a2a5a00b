"""Tree search as generators of requests: selection, expansion, valuing and backup; no model, no world.

`evolvent.search.mcts` is the module of MCTS, with the function `mcts`; settings, records and the drivers are also here,
loaded when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from evolvent.lazy import lazy_namespace

if TYPE_CHECKING:
    from evolvent.search.aggregate import Answer as Answer
    from evolvent.search.drive import run_search as run_search
    from evolvent.search.drive import search_functions as search_functions
    from evolvent.search.environments import search_env as search_env
    from evolvent.search.gumbel import GumbelConfig as GumbelConfig
    from evolvent.search.gumbel import gumbel_mcts as gumbel_mcts
    from evolvent.search.records import Budget as Budget
    from evolvent.search.records import Child as Child
    from evolvent.search.records import ExpandRequest as ExpandRequest
    from evolvent.search.records import Request as Request
    from evolvent.search.records import Response as Response
    from evolvent.search.records import SearchResult as SearchResult
    from evolvent.search.records import State as State
    from evolvent.search.samples import best_of_n as best_of_n
    from evolvent.search.samples import self_consistency as self_consistency
    from evolvent.search.settings import ForestConfig as ForestConfig
    from evolvent.search.settings import RStarConfig as RStarConfig
    from evolvent.search.settings import SearchConfig as SearchConfig
    from evolvent.search.settings import SearchMethod as SearchMethod
    from evolvent.search.texts import search_text as search_text
    from evolvent.search.tree import Tree as Tree

__getattr__, __dir__, __all__ = lazy_namespace(
    __name__,
    __path__,
    {
        "aggregate": ("Answer",),
        "drive": ("run_search", "search_functions"),
        "environments": ("search_env",),
        "gumbel": ("GumbelConfig", "gumbel_mcts"),
        "records": ("Budget", "Child", "ExpandRequest", "Request", "Response", "SearchResult", "State"),
        "samples": ("best_of_n", "self_consistency"),
        "settings": ("ForestConfig", "RStarConfig", "SearchConfig", "SearchMethod"),
        "texts": ("search_text",),
        "tree": ("Tree",),
    },
)
