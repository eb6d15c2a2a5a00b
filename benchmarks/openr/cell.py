"""The arms of `benchmarks.openr` on one task and seed, from one policy and in one run, so that they share its stages.

Everything is `methods.openr.openr` with one setting or another: without learning (its guided decoding), with its online
learning, its offline learning, both. The control imitates its demonstrations further. Arms that learn learn as many
tokens as the online one; the arm with both has half of each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.prm.bases import RECIPES, policy_of, took
from benchmarks.search_bases import Base, panel, shown_of, world_of
from evolvent.bench.results import hold_lock
from evolvent.errors import ConfigError
from evolvent.identity import version_1_text, version_1_values
from evolvent.learn.learner import TrainConfig
from evolvent.learn.objectives import weighted_nll
from evolvent.learn.optim.make import OptimizerConfig
from evolvent.methods.openr import OpenRConfig, openr
from evolvent.models.policy import Policy
from evolvent.reward.labelling import LabellingConfig
from evolvent.rl.trainer import RLConfig
from evolvent.run import Evaluation, Run
from evolvent.scale.local_backend import EvaluationPanel, LocalBackend
from evolvent.search.settings import SearchConfig
from evolvent.store.log import read_rows
from evolvent.trajectory import Task, canonical_json, sample_seed

__all__ = ["ARMS", "LEARNING", "TASKS", "Cell", "Protocol", "run_arms"]

TASKS = ("deduction", "problems")
ARMS = ("base", "majority", "guided", "online", "imitated", "offline", "all")
"""In the order in which they are played: what is learned online says how much the others learn."""
LEARNING = ("online", "offline", "all")
_SLOTS = 96
_NONE = SearchConfig(method="greedy", score="process")  # arms that are not decoded with the judge
Row = dict[str, Any]


@dataclass(frozen=True)
class Protocol:
    """All that the benchmark fixes before it runs.

    Args:
        seeds: of base, labels, learning and search.
        tasks: training tasks, none of them demonstrated. samples: of each, to be labeled and to learn offline from.
        labelling: how spans get labels. labels: that the reward model learns, repeats included.
        online, reward, outcome, offline, per_task: as `OpenR` has them.
        practice: of the arm that learns online alone; the arm with both has half of its iterations.
        lr: learning rate online. fitting: of everything else that is learned. lr_scale: offline, of its rate.
        paths: samples of a guided decoding. votes: of the majority, which has no judge that reads samples, too: as many
            as come to the tokens of a guided decoding on development tasks.
        panel: held-out tasks. split: of the panel.
    """

    seeds: tuple[int, ...] = (0, 1, 2)
    tasks: int = 40
    samples: int = 8
    labelling: LabellingConfig = field(default_factory=lambda: LabellingConfig(kind="omega", count=8, rollouts=48))
    labels: int = 4_000
    online: str = "grpo"
    reward: str = "gain"
    outcome: float = 1.0
    offline: str = "rft"
    per_task: int = 2
    practice: RLConfig = field(
        default_factory=lambda: RLConfig(
            iterations=8, tasks_per_iteration=16, group_size=4, ppo_epochs=2, minibatches=2, save_every=1000
        )
    )
    lr: float = 2e-4
    fitting: TrainConfig = field(
        default_factory=lambda: TrainConfig(lr=1e-3, batch_tokens=1536, weight_decay=0.01, warmup_steps=10)
    )
    lr_scale: float = 0.5
    paths: int = 8
    votes: int = 11
    panel: int = 50
    split: str = "test"
    quick: bool = False

    @property
    def bases(self) -> Mapping[str, Base]:
        """The recipes of the policies: the deductions of `benchmarks.prm`, and word problems."""
        return RECIPES[self.quick]

    def config(self, arm: str, task: str, *, tokens: int | None = None) -> OpenRConfig:
        """The settings of the method in an arm; tokens: that are learned offline."""
        labelling = self.labelling.model_copy(update={"max_tokens": self.bases[task].max_tokens})
        practice = self.practice.model_copy(update={"iterations": max(1, self.practice.iterations // 2)})
        return OpenRConfig.model_validate(
            {
                "samples": self.samples,
                "labelling": labelling,
                "prm_tokens": self.labels,
                "reward": self.reward,
                "online": self.online if arm in ("online", "all") else "none",
                "offline": self.offline if arm in ("offline", "all") else "none",
                "per_task": self.per_task,
                "outcome": self.outcome,
                "offline_tokens": tokens,
                "lr_scale": self.lr_scale,
                "practice": practice if arm == "all" else self.practice,
                "search": self.guided(task) if arm in ("guided", "all") else _NONE,
            }
        )

    def guided(self, task: str) -> SearchConfig:
        """Decoding with the judge: best of n, a vote by the least of the spans' scores."""
        most = self.bases[task].max_tokens
        return SearchConfig(
            method="best_of_n", score="process", paths=self.paths, reduce="min", rule="vote", max_tokens=most
        )

    def majority(self, task: str) -> SearchConfig:
        """Self-consistency."""
        most = self.bases[task].max_tokens
        return SearchConfig(method="samples", value="none", paths=self.votes, rule="majority", max_tokens=most)

    @property
    def digest(self) -> str:
        """16 hex digits: cells of another protocol are not mixed with these."""
        own = {name: value for name, value in vars(self).items() if name not in ("seeds", *_MODELS)}
        own |= {name: version_1_values(getattr(self, name)) for name in _MODELS}
        own |= {
            "bases": [self.bases[task].digest for task in TASKS],
            "search": [version_1_text((self.guided(task), self.majority(task))).replace(_LATER, "") for task in TASKS],
        }
        return f"{sample_seed(canonical_json(own)):016x}"


_MODELS = ("labelling", "practice", "fitting")
_LATER = ", widen=0.0"  # told of a search only since cells were kept; at its default it changes nothing they hold


@dataclass(frozen=True, order=True)
class Cell:
    """An arm on a task and seed."""

    task: str
    seed: int
    arm: str

    @property
    def key(self) -> str:
        """Of its file."""
        return f"{self.task}-{self.arm}-{self.seed}"


def run_arms(
    protocol: Protocol,
    folder: Path,
    bases: Path,
    task: str,
    seed: int,
    *,
    rows: Mapping[Cell, Mapping[str, Any]],
    note: Callable[[Cell, Mapping[str, Any]], None],
) -> None:
    """Play the arms of a task and seed that have no row yet, and note each.

    A run that was stopped goes on in its folder: a row names the stages that its arm was the first to need, and what
    no row has named yet is this arm's.
    """
    if all(Cell(task, seed, arm) in rows for arm in ARMS):
        return
    place = folder / "runs" / f"openr-{protocol.digest}-{task}-{seed}"
    recipe, policy = protocol.bases[task], policy_of(task, seed, bases, bases=protocol.bases)
    world = world_of(task, bases=protocol.bases)
    panels = EvaluationPanel(split=protocol.split, tiers=(recipe.tier,), limit=protocol.panel)
    online = protocol.fitting.model_copy(
        update={"lr": protocol.lr, "final_lr": 1.0, "warmup_updates": 0, "clip": 0.5, "batch_tokens": 4096}
    )
    verbs = LocalBackend(
        {world.name: world},
        protocol.fitting,
        panels,
        _SLOTS,
        recipe.max_tokens,
        rl_train=online,
        optimizer=OptimizerConfig(),
    )
    known = {cell.arm: dict(row) for cell, row in rows.items() if (cell.task, cell.seed) == (task, seed)}
    with (
        hold_lock(folder / "locks" / place.name, wait_s=60.0),
        Run(place, verbs, seed=seed, settings=verbs.settings()) as run,
    ):
        arms = _Arms(protocol, run, policy, task, seed, panel(task, "train", protocol.tasks, bases=protocol.bases))
        for arm in ARMS:
            if arm in known:
                continue
            found = arms.played(arm, known["online"]["tokens"]["learned"] if "online" in known else 0)
            named = {name for row in known.values() for name in row["stages"]}
            spent = [row for row in read_rows(place / "stages.jsonl") if row["name"] not in named]
            known[arm] = {
                "task": task,
                "seed": seed,
                "arm": arm,
                "digest": protocol.digest,
                **_right(found),
                "stages": [row["name"] for row in spent],
                **_spent(spent, epochs=protocol.practice.ppo_epochs),
                "base": took(task, seed, bases, bases=protocol.bases)["cpu_s"],
            }
            note(Cell(task, seed, arm), known[arm])


@dataclass(frozen=True)
class _Arms:
    """The arms of one run."""

    protocol: Protocol
    run: Run[Policy]
    policy: Policy
    task: str
    seed: int
    tasks: Sequence[Task]

    def played(self, arm: str, learned: int) -> list[Evaluation]:
        """What an arm comes to on the panel; learned: tokens of the online arm."""
        run, asked = self.run.arm(arm), self.protocol
        if arm == "base":
            return run.evaluate(self.policy, 0)
        if arm == "majority":
            return run.evaluate(self.policy, 0, search=asked.majority(self.task))
        if arm == "imitated":
            shown = shown_of(self.task, self.seed, bases=asked.bases)
            again = run.fit(self.policy, shown, weighted_nll, tokens=learned, lr_scale=asked.lr_scale)
            return run.evaluate(again, 1)
        tokens = {"offline": learned, "all": learned // 2}.get(arm)
        config = asked.config(arm, self.task, tokens=tokens)
        policy, judge = openr(self.policy, self.tasks, config=config, run=run)
        if arm not in ("guided", "all"):
            return run.evaluate(policy)
        last = 1 if arm == "guided" else config.practice.iterations + 1  # as `openr` counts: it has played this already
        return run.arm("guided").evaluate(policy, last, search=config.search, value_model=judge)


def _right(found: Sequence[Evaluation]) -> Row:
    """For each task whether it was solved; ConfigError where a verdict is missing."""
    outcomes = [outcome for row in found for outcome in row.outcomes]
    lost = [name for name, _, success in outcomes if success is None]
    if lost:
        raise ConfigError("tasks that could not be scored", value=lost[:3], expected="a verdict on each")
    return {
        "ids": [name for name, _, _ in outcomes],
        "right": [int(bool(success)) for _, _, success in outcomes],
        "generated": sum(row.generated for row in found),
        "computed": sum(row.computed for row in found),
    }


def _spent(rows: Sequence[Mapping[str, Any]], *, epochs: int) -> Row:
    """Tokens that were sampled, fed and learned to make an arm, measurements apart; CPU seconds of all of it.

    Of a practice every sampled token is learned once an epoch; of a reward model "learned" are its labels.
    """
    made = [row for row in rows if row["verb"] != "evaluate"]
    names = ("generated", "computed", "fed")
    learned = sum(
        row["counts"]["generated"] * epochs if row["verb"] == "practise" else row["counts"].get("trained", 0)
        for row in made
    )
    return {
        "tokens": {**{name: sum(row["counts"].get(name, 0) for row in made) for name in names}, "learned": learned},
        "cpu_s": round(sum(row["cpu_s"] for row in rows), 1),
    }
