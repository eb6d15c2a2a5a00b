"""What `search_quality` fixes before it runs: tasks, budgets, how each method spends a budget, and how judges learn.

All of it was chosen on development seed 100 and its dev panel (`search_quality/pilot.md`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from benchmarks.search_bases import BASES, QUICK, Base
from evolvent.identity import version_1_values
from evolvent.learn.learner import TrainConfig
from evolvent.search.settings import SearchConfig
from evolvent.trajectory import canonical_json, sample_seed

__all__ = ["METHODS", "TASKS", "Cell", "Place", "Protocol", "how_of", "shared"]

METHODS = ("greedy", "samples", "best_of_n", "beam", "mcts", "gumbel")


@dataclass(frozen=True)
class Place:
    """A task: how its responses are searched, and the budgets in computed tokens.

    Args:
        search: settings that all methods share. moves: actions of a usual response.
        child: computed tokens of one child, sampled and judged, on dev tasks.
        widest: most children of a node.
        budgets: of one problem, policy and judge together. measure: success, or the mean return.
        goal: the word before the number that is asked for, where what an episode made can be told in hindsight.
    """

    search: Mapping[str, Any]
    moves: int
    child: float
    widest: int
    budgets: tuple[int, ...]
    measure: str = "success"
    goal: str | None = None


TASKS: Mapping[str, Place] = {
    "countdown": Place({"depth": 8, "span_tokens": 8}, 3, 7.0, 16, (250, 500, 1000, 2000), goal="make"),
    "deduction": Place({"depth": 24, "span_tokens": 24, "max_tokens": 112}, 9, 24.0, 8, (2000, 4000, 8000, 16_000)),
    "preference": Place({"depth": 64, "max_tokens": 64, "level": "token"}, 64, 2.0, 4, (2000, 4000, 8000), "return"),
}


@dataclass(frozen=True)
class Protocol:
    """All that the benchmark fixes before it runs.

    Args:
        seeds: of base, judge and search. panel: held-out tasks. judged, samples: training tasks and samples of each
            that a judge learns from. train: how it learns, judge_tokens: from how many states.
        pairs: labeled pairs that a reward model is fitted to.
        loop_tasks: that the TS-LLM loop searches, each with so many tokens a round. loop_tokens: learned in a round,
            at a rate, with so many in an update.
        budgets: how many of a task's are run.
    """

    seeds: tuple[int, ...] = (0, 1, 2)
    panel: int = 100
    judged: int = 2500
    samples: int = 4
    pairs: int = 1500
    judge_tokens: int = 200_000
    train: TrainConfig = field(
        default_factory=lambda: TrainConfig(lr=2e-3, batch_tokens=1536, weight_decay=0.01, warmup_steps=20)
    )
    loop_tasks: int = 2400
    loop_computed: int = 350
    loop_tokens: int = 250_000
    loop_rate: float = 3e-3
    loop_batch: int = 512
    budgets: int = 99
    quick: bool = False

    @property
    def bases(self) -> Mapping[str, Base]:
        """The recipes of the policies; for a quick run those that have learned next to nothing."""
        return QUICK if self.quick else BASES

    def digest(self, task: str) -> str:
        """16 hex digits: cells of a task under another protocol are not mixed with these."""
        own = {name: value for name, value in vars(self).items() if name not in _ELSEWHERE and name[:5] != "loop_"}
        own |= {"train": version_1_values(self.train), "base": self.bases[task].digest}
        own["place"] = asdict(replace(TASKS[task], budgets=()))
        return f"{sample_seed(canonical_json(own)):016x}"

    def loop_digest(self, task: str) -> str:
        """The same for loops."""
        own = {name: value for name, value in vars(self).items() if name[:5] == "loop_"}
        return f"{sample_seed(self.digest(task), canonical_json(own)):016x}"


_ELSEWHERE = ("seeds", "budgets")  # which cells there are changes none of them


@dataclass(frozen=True, order=True)
class Cell:
    """A method at a budget (0: none) on a task, with the policy of a seed."""

    task: str
    seed: int
    method: str
    budget: int

    @property
    def key(self) -> str:
        return f"{self.task}-{self.method}-{self.budget}-{self.seed}"


def shared(task: str) -> SearchConfig:
    """The settings that all methods of a task share: where values are asked for, and of what kind."""
    return SearchConfig(score="outcome", **TASKS[task].search)


def how_of(cell: Cell) -> SearchConfig:
    """A method's settings at a budget.

    Searches are as wide as a beam of w children that keeps w at each move and fills the budget,
    `w (1 + (moves - 1) w) child <= budget`. Samples are drawn until the budget is spent.
    """
    place = TASKS[cell.task]
    fits = [w for w in range(2, place.widest + 1) if w * (1 + (place.moves - 1) * w) * place.child <= cell.budget]
    width = max(fits, default=2)
    settings: dict[str, dict[str, Any]] = {
        "greedy": {"value": "none"},
        "samples": {"value": "none", "paths": 512},
        "best_of_n": {"paths": 512},
        "beam": {"width": width, "paths": width},
        "mcts": {"method": "mcts_restart", "width": width, "paths": 512, "simulations": 300, "explore": 2.0},
        "gumbel": {"width": width, "considered": width, "simulations": 8 * width, "noise": 0.0},
    }
    budget: dict[str, Any] = {} if cell.method == "greedy" else {"computed": cell.budget}
    given: dict[str, Any] = {"method": cell.method, "score": "outcome", **place.search, **settings[cell.method]}
    return SearchConfig(**given, **budget)
