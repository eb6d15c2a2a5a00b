"""What the study of hard countdown fixes before it runs: sizes, budget, judges, gates, and settings to choose from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from evolvent.bench.plan import Gate
from evolvent.identity import version_1_values
from evolvent.learn.learner import TrainConfig
from evolvent.models.tiny import Size
from evolvent.trajectory import canonical_json, sample_seed

__all__ = [
    "GATES",
    "HARD",
    "LEARNED",
    "NONE",
    "QUICK_HARD",
    "SEARCHES",
    "Cell",
    "HardPlan",
    "Settings",
    "list_cells",
    "list_known_cells",
]

SEARCHES = ("beam", "mcts", "gumbel")
LEARNED = "learned"
NONE = "none"  # the judge of a method that asks for no values of states

_TASK_FIELDS = ("sizes", "train_tasks", "context", "theta")
_POLICY_FIELDS = (*_TASK_FIELDS, "policy_walks", "policy_tokens", "policy_train")
_JUDGE_FIELDS = (*_TASK_FIELDS, "judge_size", "judge_walks", "judge_lines", "judge_batch", "judge_train")

Settings = Mapping[str, Any]


@dataclass(frozen=True)
class HardPlan:
    """What the study fixes before it runs.

    Args:
        sizes: numbers of a task. tasks, dev_tasks: held-out tasks of each size, to measure, and for the gates.
        tuned_tasks: of the dev tasks of each size, to choose settings.
        train_tasks: of both sizes together, which policy and judge learn from.
        policy_walks, policy_tokens: random walks of a task, and learned tokens of the imitation.
        judge_size: of the value model, as `tiny_config` takes it; each seed trains its own.
        judge_walks, judge_lines: random walks of a training task, and lines of one set of numbers that are learned,
            `judge_batch` in an update.
        budget: written tokens of a problem, four a move. samples: of a dev task, for the gates.
        aucs: of the known judges; .5 knows nothing but how many numbers are left. development: the seed that settings
            are chosen on, with a policy and a value model of its own.
        seeds: of the study; each has its own policy, value model and searches.
        known_seeds, known_tasks: seeds, and first test tasks of each size, that known judges search too.
        candidates: settings that each search chooses from.
    """

    sizes: tuple[int, ...] = (5, 6)
    tasks: int = 40
    dev_tasks: int = 24
    tuned_tasks: int = 8
    train_tasks: int = 1200
    context: int = 96
    theta: float = 3000.0
    policy_walks: int = 8
    policy_tokens: int = 150_000
    judge_size: Size = "xs"
    judge_walks: int = 16
    judge_lines: int = 160_000
    judge_batch: int = 64
    budget: int = 800
    samples: int = 12
    aucs: tuple[float, ...] = (1.0, 0.9, 0.78, 0.5)
    development: int = 100
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    known_seeds: tuple[int, ...] = (0, 1, 2)
    known_tasks: int = 12
    policy_train: TrainConfig = field(default_factory=lambda: TrainConfig(lr=3e-3, batch_tokens=512))
    judge_train: TrainConfig = field(
        default_factory=lambda: TrainConfig(lr=3e-3, weight_decay=0.01, final_lr_ratio=0.02)
    )
    candidates: Mapping[str, tuple[Settings, ...]] = field(default_factory=lambda: CANDIDATES)

    def describe(self) -> dict[str, Any]:
        """Returns everything as JSON values."""
        trains = {name: version_1_values(getattr(self, name)) for name in ("policy_train", "judge_train")}
        return {**asdict(self), **trains, "gates": [asdict(gate) for gate in GATES]}

    @property
    def digest(self) -> str:
        """Returns 16 hex digits of the plan, which rows of the tuning carry."""
        return f"{sample_seed(canonical_json(self.describe())):016x}"

    @property
    def policy_digest(self) -> str:
        """Returns 16 hex digits of what policies depend on, for their names."""
        return self._compute_digest(_POLICY_FIELDS)

    @property
    def judge_digest(self) -> str:
        """Returns 16 hex digits of what value models depend on, for their names."""
        return self._compute_digest(_JUDGE_FIELDS)

    def _compute_digest(self, names: tuple[str, ...]) -> str:
        facts = {name: value for name, value in self.describe().items() if name in names}
        return f"{sample_seed(canonical_json(facts)):016x}"


CANDIDATES: Mapping[str, tuple[Settings, ...]] = {
    "beam": tuple({"width": width, "paths": keep} for width, keep in ((6, 6), (8, 6), (10, 4), (14, 3))),
    "mcts": (
        *({"method": "mcts_descend", "width": width, "explore": 0.2} for width in (5, 8, 12)),
        {"method": "mcts", "width": 6, "explore": 0.2, "simulations": 16},
        {"method": "mcts_restart", "width": 8, "explore": 0.05},
    ),
    "gumbel": tuple(
        {"width": width, "considered": considered, "simulations": simulations}
        for width, considered, simulations in ((4, 4, 24), (6, 4, 16), (8, 4, 12), (8, 8, 16))
    ),
}
GATES = (
    Gate("success of one sample, 5 numbers", "policy", "pass_at_1_5", minimum=0.0005, maximum=0.03),
    Gate("success of one sample, 6 numbers", "policy", "pass_at_1_6", minimum=0.0005, maximum=0.03),
    Gate("AUC of the judge among equally many numbers, tasks of 5", LEARNED, "auc_5", minimum=0.75),
    Gate("AUC of the judge among equally many numbers, tasks of 6", LEARNED, "auc_6", minimum=0.75),
)
HARD = HardPlan()
QUICK_HARD = HardPlan(
    tasks=2,
    dev_tasks=2,
    tuned_tasks=1,
    train_tasks=12,
    policy_walks=2,
    policy_tokens=600,
    judge_walks=2,
    judge_lines=128,
    budget=300,
    samples=2,
    known_tasks=1,
    aucs=(1.0,),
    candidates={name: settings[:1] for name, settings in CANDIDATES.items()},
)


@dataclass(frozen=True, order=True)
class Cell:
    """A method with a judge ("none", "learned", or its AUC) and the policy of a seed."""

    method: str
    judge: str
    seed: int

    @property
    def key(self) -> str:
        """Returns the name of the cell's row."""
        return f"{self.method}-{self.judge}-{self.seed}"


def list_cells(plan: HardPlan, seed: int) -> list[Cell]:
    """Lists the cells of a seed without known judges, in the order in which they are played."""
    cells = [Cell(method, NONE, seed) for method in ("greedy", "best_of_n")]
    return cells + [Cell(method, LEARNED, seed) for method in SEARCHES]


def list_known_cells(plan: HardPlan, seed: int) -> list[Cell]:
    """Lists the cells of a seed with known judges, which search fewer tasks; none of a seed that has no known judge."""
    aucs = plan.aucs if seed in plan.known_seeds else ()
    return [Cell(method, str(auc), seed) for auc in aucs for method in SEARCHES]
