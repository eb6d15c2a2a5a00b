"""Settings of a search: its method, width and depth, its budget, and the rule that makes one answer of its samples."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field, model_validator

from evolvent.config import Choice, Config
from evolvent.errors import ConfigError, Problem, unknown_name_problem
from evolvent.plugins import installed_plugins, load_plugin, plugin_type_error
from evolvent.search.aggregate import Answer, Same
from evolvent.search.beam import beam
from evolvent.search.depth_first import depth_first
from evolvent.search.forest import Between
from evolvent.search.gumbel import GumbelConfig, gumbel_mcts
from evolvent.search.mcts import Commit, Descend, Explore, Restart, mcts
from evolvent.search.records import Budget, Search, State
from evolvent.search.rstar import Decay, RStarTreeConfig, mutual_consistency, rstar
from evolvent.search.samples import best_of_n, sampled_tree, search_greedy, voted_tree
from evolvent.search.select import puct
from evolvent.search.stopping import Stop

__all__ = [
    "SEARCHES",
    "Begin",
    "ForestConfig",
    "RStarConfig",
    "SearchConfig",
    "SearchMethod",
    "find_search",
    "forest_names",
    "search_names",
    "stoppable_searches",
]

Begin = Callable[[State, Budget, np.random.Generator], Search]


@dataclass(frozen=True)
class SearchMethod:
    """One kind of search, as `--search.method NAME` begins it; packages add their own (`evolvent.plugins`).

    Args:
        description: one line of help.
        build: returns the search for its settings, begun later at a root; `stop` is a detector that may end it early,
            handed in only where `can_stop` is true.
        can_stop: whether a detector can end it early: it comes to votes, or moves by visits.
        uses_values: whether states are valued (by a judge, by rollouts or by the world).
        grows_tree: whether several independent trees of one problem differ from a wider search.
    """

    description: str
    build: Callable[[SearchConfig, Stop | None], Begin]
    can_stop: bool = False
    uses_values: bool = True
    grows_tree: bool = True


def _tree(config: SearchConfig) -> dict[str, Any]:
    return {"width": config.width, "depth": config.depth}


def _explore(config: SearchConfig) -> Explore:
    noise = 0.25 if config.sampled else 0.0
    return Explore(partial(puct, c_init=config.explore), noise=noise, widen=config.widen)


def _build_mcts(config: SearchConfig, start: Commit | Restart | Descend) -> Begin:
    return partial(mcts, **_tree(config), start=start, explore=_explore(config), leaves=config.leaves)


def _build_mcts_moves(config: SearchConfig, stop: Stop | None) -> Begin:
    if config.sampled:  # without drawn moves every further path of one tree would be the same again
        return _build_mcts(config, Commit(config.simulations, temperature=1.0, paths=config.paths))
    return _build_mcts(config, Commit(config.simulations, stop=stop))


def _build_sampled_tree(config: SearchConfig, stop: Stop | None) -> Begin:
    if stop is None:
        return partial(sampled_tree, **_tree(config), paths=config.paths)
    return partial(voted_tree, **_tree(config), paths=config.paths, stop=stop)


def _build_gumbel(config: SearchConfig, stop: Stop | None) -> Begin:
    settings = GumbelConfig(scale=1.0 if config.sampled else config.noise)
    return partial(
        gumbel_mcts,
        **_tree(config),
        simulations=config.simulations,
        considered=config.considered,
        settings=settings,
    )


SEARCHES: dict[str, SearchMethod] = {
    "greedy": SearchMethod(
        "the likeliest continuation", lambda config, stop: search_greedy, uses_values=False, grows_tree=False
    ),
    "samples": SearchMethod(
        "independent samples and the answer of most of them (self-consistency)",
        lambda config, stop: partial(best_of_n, n=config.paths, valued=False, stop=stop),
        can_stop=True,
        uses_values=False,
        grows_tree=False,
    ),
    "best_of_n": SearchMethod(
        "independent samples, judged when they are whole",
        lambda config, stop: partial(best_of_n, n=config.paths),
        grows_tree=False,
    ),
    "sampled_tree": SearchMethod(
        "samples drawn in one tree, by the shares of its children",
        _build_sampled_tree,
        can_stop=True,
        uses_values=False,
    ),
    "beam": SearchMethod(
        "the best prefixes of each depth go on (BFS-V)",
        lambda config, stop: partial(beam, **_tree(config), keep=config.paths),
    ),
    "depth_first": SearchMethod(
        "depth first by value, poor children left out (DFS-V)",
        lambda config, stop: partial(depth_first, **_tree(config), paths=config.paths, prune_ratio=config.prune),
    ),
    "mcts": SearchMethod(
        "MCTS with PUCT; simulations, then a move, until the end (MCTS-alpha)", _build_mcts_moves, can_stop=True
    ),
    "mcts_restart": SearchMethod(
        "the same, always from the beginning, until there are enough ends (MCTS-rollout)",
        lambda config, stop: _build_mcts(config, Restart(config.paths, config.simulations, stop)),
        can_stop=True,
    ),
    "mcts_descend": SearchMethod(
        "descents to an end that widen every node on the way (OpenR's, RAP's)",
        lambda config, stop: _build_mcts(config, Descend(config.paths, stop)),
        can_stop=True,
    ),
    "gumbel": SearchMethod("Gumbel noise and sequential halving at every move (ReSCALE)", _build_gumbel),
}
"""The searches that are built in; `find_search` knows those of other packages too."""


def search_names() -> tuple[str, ...]:
    """Returns the names of all searches, those of other packages last."""
    return (*SEARCHES, *installed_plugins("searches", SEARCHES))


def forest_names() -> tuple[str, ...]:
    """Returns the names that a command's search may have: also rStar, which needs a reader of answers."""
    return (*SEARCHES, "rstar", *installed_plugins("searches", (*SEARCHES, "rstar")))


def find_search(name: str) -> SearchMethod:
    """Returns the search of a name.

    Raises:
        ConfigError: an unknown name, or a package's search that cannot be loaded or is no `SearchMethod`.
    """
    if name in SEARCHES:
        return SEARCHES[name]
    plugins = installed_plugins("searches", SEARCHES)
    if name not in plugins:
        raise ConfigError([unknown_name_problem("search", name, search_names())])
    loaded = load_plugin("search", plugins[name])
    if not isinstance(loaded, SearchMethod):
        raise plugin_type_error("search", plugins[name], loaded, "an object of evolvent.search.settings.SearchMethod")
    return loaded


def stoppable_searches() -> tuple[str, ...]:
    """Returns the names of the built-in searches that a detector can end early."""
    return tuple(name for name, method in SEARCHES.items() if method.can_stop)


class SearchConfig(Config):
    """The settings of a search."""

    method: Annotated[str, Choice(search_names)] = Field(default="mcts", description="which search")
    level: Literal["auto", "span", "token", "turn"] = Field(
        default="auto", description="what an action is: a span of text, a token, a turn; auto: turns if there are some"
    )
    width: int = Field(default=4, ge=1, description="children of a node: samples, or likeliest tokens")
    depth: int = Field(default=16, ge=1, description="actions from the root to the deepest node")
    paths: int = Field(default=4, ge=1, description="ends to come to: samples, beams, descents, drawn paths")
    simulations: int = Field(default=16, ge=1, description="of MCTS, for each move (restart: in all)")
    considered: int = Field(default=4, ge=1, description="actions of the root that gumbel halves among")
    leaves: int = Field(default=1, ge=1, description="leaves of MCTS that are expanded at once")
    explore: float = Field(default=1.25, ge=0, description="PUCT's c_init")
    widen: float = Field(
        default=0.0, ge=0, le=1, description="MCTS: after N visits a node has width * N^widen samples; 0: width"
    )
    noise: float = Field(default=1.0, ge=0, description="scale of gumbel's noise at the root; 0: none")
    prune: float = Field(default=0.7, gt=0, le=1, description="share of children that depth_first leaves out")
    sampled: bool = Field(default=False, description="noise at the root and sampled moves, to gather data")
    value: Literal["none", "judge", "rollouts", "reward"] = Field(
        default="judge",
        description="where values come from: a judge; what samples of the rest earn; what the world has paid so far",
    )
    score: Literal["value", "outcome", "process", "generative"] = Field(
        default="value", description="what the judge is: a value head, an outcome head, a process model, a verifier"
    )
    reduce: Literal["last", "min", "prod"] = Field(default="last", description="a path's value from its spans' scores")
    rollouts: int = Field(default=4, ge=1, description="samples that value a state")
    terminal: Literal["value", "reward"] = Field(
        default="value", description="what an episode's end is worth: the judge's value, or what the world paid"
    )
    rule: Literal["max", "vote", "majority"] = Field(default="max", description="how ends become one answer")
    temperature: float = Field(default=1.0, gt=0, description="of sampling")
    top_k: int = Field(default=0, ge=0, description="likeliest tokens that are drawn from; 0: all")
    top_p: float = Field(default=1.0, gt=0, le=1, description="share of probability that is drawn from")
    separators: tuple[str, ...] = Field(default=(";", "\n"), description="what ends a span")
    span_tokens: int = Field(default=64, ge=1, description="longest action")
    max_tokens: int = Field(default=256, ge=1, description="longest response, or turn")
    generated: int | None = Field(default=None, ge=1, description="most tokens sampled; none: no limit")
    computed: int | None = Field(default=None, ge=1, description="most tokens fed to models; none: no limit")
    expansions: int | None = Field(default=None, ge=1, description="most states expanded; none: no limit")
    seconds: float | None = Field(default=None, gt=0, description="most seconds; none: no limit")

    @model_validator(mode="after")
    def _agree(self) -> SearchConfig:
        if self.score == "value" and (self.reduce == "prod" or self.rule == "vote"):
            raise ValueError(
                "values of a head may lie outside 0..1, which reverses products and votes; set score to 'outcome',"
                " or reduce to 'last' or 'min' with rule 'max' or 'majority'"
            )
        if not self.separators or not all(self.separators):
            raise ValueError("separators must hold at least one text, and no empty text")
        if self.method == "gumbel" and self.considered > self.simulations:
            raise ValueError(f"considered ({self.considered}) must be at most simulations ({self.simulations})")
        return self

    @property
    def budget(self) -> Budget:
        """Returns the search's budget."""
        return Budget(self.generated, self.computed, self.expansions, self.seconds)

    @property
    def uses_judge(self) -> bool:
        """Returns whether a judge is used at all."""
        return self.value == "judge" and find_search(self.method).uses_values

    def stopping_problems(self) -> list[Problem]:
        """Returns why a detector could not end this search early; empty where it can."""
        if self.method not in search_names() or not find_search(self.method).can_stop:  # rStar has no detector
            names = ", ".join(stoppable_searches())
            return [Problem("stop", f"{self.method} has no votes to stop early", f"choose one of {names}")]
        if self.method in ("mcts_restart", "mcts_descend") and self.rule != "majority":
            return [
                Problem("stop", f"rule {self.rule!r} does not count votes of {self.method}", "set rule to 'majority'")
            ]
        if self.method == "mcts" and self.sampled:
            return [Problem("stop", "stopping early would change the visit counts that moves are sampled from")]
        return []

    def begin(self, *, stop: Stop | None = None) -> Begin:
        """Returns the search as a function of a root, a budget and random numbers.

        Args:
            stop: when fewer votes, or simulations before a move, are enough.
        Raises:
            ConfigError: a search that cannot end early.
        """
        if stop is not None and (problems := self.stopping_problems()):
            raise ConfigError(problems)
        return find_search(self.method).build(self, stop)


class RStarConfig(Config):
    """The settings of rStar (`search/rstar.py`); the defaults are those of the paper and its code."""

    rollouts: int = Field(default=32, ge=1, description="ways from the root to an end, one after another")
    actions: tuple[int, ...] = Field(
        default=(3, 10, 3, 1, 1), description="children by kind, A1 to A5 (A2: completions that vote); 0: not this kind"
    )
    depth: int = Field(default=5, ge=1, description="actions from the root to the deepest end")
    last_votes: int = Field(default=32, ge=1, description="completions that vote where only they are left")
    c: float = Field(default=2.0, ge=0, description="UCT's constant")
    decay: Decay = Field(default="constant", description="whether it falls to c / 10 over the rollouts, and how")
    discriminator: Literal["none", "policy", "judge"] = Field(
        default="none", description="who completes masked solutions, of which those stay that come to the same answer"
    )
    completions: int = Field(default=1, ge=1, description="completions of a masked solution, by majority")

    @model_validator(mode="after")
    def _agree(self) -> RStarConfig:
        if len(self.actions) != 5 or min(self.actions, default=0) < 0 or self.actions[1:2] == (0,):
            raise ValueError(
                "actions must be five numbers of 0 or more, and the second (A2, which ends a solution) 1 or more"
            )
        return self

    @property
    def reasoning(self) -> RStarTreeConfig:
        """Returns the settings of the tree."""
        widths = {f"A{number}": width for number, width in enumerate(self.actions, 1) if width}
        return RStarTreeConfig(widths, self.depth, self.last_votes, self.c, self.decay)

    @property
    def votes(self) -> int:
        """Returns the number of completions in the first request of a search."""
        return self.last_votes if self.depth == 1 else self.actions[1]

    def begin(self, answer: Answer, same: Same | None = None) -> Begin:
        """Returns the search as a function of a state of `begin_solution`; the arguments are those of `rstar`."""
        agree = mutual_consistency(answer, completions=self.completions, same=same)
        return partial(
            rstar,
            answer=answer,
            rollouts=self.rollouts,
            reasoning=self.reasoning,
            same=same,
            agree=None if self.discriminator == "none" else agree,
        )


class ForestConfig(SearchConfig):
    """The settings of a command's searches, including rStar and several trees for one problem."""

    method: Annotated[str, Choice(forest_names)] = Field(default="mcts", description="which search")
    forest: int = Field(default=1, ge=1, description="independent trees of a problem, which share its budget")
    between: Between = Field(
        default="ends", description="how trees become one answer: all their ends together; or of what each decided for"
    )
    rstar: RStarConfig = Field(default_factory=RStarConfig, description="rStar")

    @property
    def uses_rstar(self) -> bool:
        """Returns whether it writes solutions by rStar's kinds of actions, and not continuations or turns."""
        return str(self.method) == "rstar"

    @property
    def trees(self) -> int:
        """Returns the number of trees: one for methods without a tree."""
        return self.forest if self.uses_rstar or find_search(self.method).grows_tree else 1

    @property
    def uses_judge(self) -> bool:
        """Returns whether a judge is used for values."""
        return not self.uses_rstar and super().uses_judge

    def begin(self, *, stop: Stop | None = None) -> Begin:
        """Returns the search, see `SearchConfig.begin`; rStar needs a reader of answers, so `rstar.begin` begins it."""
        if self.uses_rstar:
            raise ConfigError([Problem("method", "'rstar' needs a reader of answers", "call rstar.begin(answer)")])
        return super().begin(stop=stop)

    def forest_problems(self, level: str) -> list[Problem]:
        """Returns why several trees would not be better than one, or could not be combined; empty where they can.

        Args:
            level: the unit of an action, "span", "token" or "turn".
        """
        if self.trees == 1:
            return []
        problems = []
        if level == "token" and not self._is_random:
            problems.append(
                Problem(
                    "forest",
                    f"{self.method} does not sample tokens, so all trees would be equal",
                    "set level to 'span', or sampled to true",
                )
            )
        if self.between in ("vote", "max") and not self.uses_rstar:
            if self.value == "none" or self.method == "sampled_tree":
                problems.append(
                    Problem("between", f"got {self.between!r}, but ends have no values", "use 'ends' or 'majority'")
                )
            elif self.between == "vote" and self.score == "value":
                problems.append(
                    Problem("between", "got 'vote', but values may lie outside 0..1", "set score to 'outcome'")
                )
        return problems

    @property
    def _is_random(self) -> bool:
        """Returns whether random numbers influence a search over likeliest tokens."""
        noisy = self.method == "gumbel" and (self.sampled or self.noise > 0)
        return self.method == "sampled_tree" or noisy or (self.sampled and self.method.startswith("mcts"))
