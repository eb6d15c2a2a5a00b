"""One cell of `benchmarks.p3`: a way of choosing on a task and a seed, from a base that all of them share.

The pool is as those of APPS and MATH are: it has levels, here chains of two, three and four steps, as many of each. In
a level a few kinds of problems are common (a kind's share falls as one over its rank) and many are rare. The base has
learned other problems, of the lowest level and some of the next, until it can read and begins to solve: most of the
pool is above it. Every variant learns as many tokens in as many rounds. The panels are held-out problems of all levels
and of one more. In a noisy pool a share of the problems, whose places are drawn, have the answers of other problems of
their kind, as data that were gathered and not made often have; the base and the panels are the same.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

from evolvent.agents.language import LanguageAgent
from evolvent.curate.difficulty import split_by_lines
from evolvent.curate.selectors import facility_location
from evolvent.engine.asks import GREEDY
from evolvent.engine.local import LocalEngine
from evolvent.errors import ScoringError
from evolvent.identity import version_1_values
from evolvent.learn.learner import TrainConfig
from evolvent.learn.objectives import weighted_nll
from evolvent.learn.token_sequences import TokenSequence, flatten
from evolvent.methods.p3 import FULL, NO_DIFFICULTY, NO_DIVERSITY, NO_PACE, P3Config, p3
from evolvent.models.policy import Policy, tiny_policy
from evolvent.rollout.episode import collect
from evolvent.run import Run
from evolvent.scale.initial import collect_demonstrations
from evolvent.scale.local_backend import EvaluationPanel, LocalBackend
from evolvent.trajectory import Start, Task, Trajectory, canonical_json, sample_rng, sample_seed
from evolvent.worlds.base import World
from evolvent.worlds.panel import Sizes
from evolvent.worlds.reasoning.arithmetic import Arithmetic
from evolvent.worlds.reasoning.problems import Problems

__all__ = ["MAIN", "TASKS", "TIERS", "VARIANTS", "Cell", "Protocol", "panel", "run_cell"]

TASKS = ("maths", "programs", "noisy maths", "noisy programs")
TIERS = ("seen", "evo", "longer")
ROUNDS = EvaluationPanel(split="dev", limit=2)  # rounds are not compared: as little as can be played
MAIN = ("p3", "random", "full", "no difficulty", "no pace", "no diversity")
_QUALITY: Mapping[str, object] = {"quality": True}
VARIANTS: Mapping[str, Mapping[str, object]] = {
    "p3": _QUALITY,
    "random": FULL,
    "full": FULL,
    "no difficulty": NO_DIFFICULTY,
    "no pace": {**NO_PACE, **_QUALITY},
    "no diversity": NO_DIVERSITY,
    "no quality": {},
    "within": {"within": 0.5, **_QUALITY},
    "spans": {"difficulty": "spans", **_QUALITY},
    "facility": _QUALITY,
}
"""Settings of P3, with the paper's L = diag(s) F F^T diag(s). Without quality, leaving out the pace and leaving out the
difficulty would be one thing: where all are let in, only quality asks how easy they are. `no diversity` draws among
those that the pace lets in. `full` chooses the whole pool; `facility` chooses by facility location instead of a
determinant."""
_LEVELS, _COMMON = (2, 3, 4), 60  # steps of a problem; kinds of a level in the pool


@dataclass(frozen=True)
class Protocol:
    """All that the benchmark fixes before it runs.

    Args:
        seeds: of the base, the pool and the choices.
        pool: demonstrations to choose from. chosen: of each round. rounds, tokens: of all variants, tokens a round.
        base: learned tokens of the base. panel: held-out problems of each tier.
        next_level: problems of the level above the lowest among those that the base learns, as a share.
        noise: share of the problems of a noisy pool that have another's answer.
        train: how all learn.
    """

    seeds: tuple[int, ...] = (0, 1, 2)
    pool: int = 2000
    chosen: int = 500
    rounds: int = 5
    tokens: int = 50_000
    base: int = 150_000
    next_level: float = 0.1
    noise: float = 0.3
    panel: int = 150
    context: int = 160
    max_tokens: int = 72
    train: TrainConfig = field(
        default_factory=lambda: TrainConfig(lr=1e-3, batch_tokens=2048, weight_decay=0.01, warmup_steps=10)
    )
    base_train: TrainConfig = field(
        default_factory=lambda: TrainConfig(lr=3e-3, betas=(0.9, 0.95), batch_tokens=2048, warmup_steps=20)
    )

    @property
    def digest(self) -> str:
        """16 hex digits: cells of another protocol are not mixed with these."""
        own = asdict(replace(self, train=None, base_train=None))  # type: ignore[arg-type]
        own |= {name: version_1_values(getattr(self, name)) for name in ("train", "base_train")}
        own["levels"] = [*_LEVELS, _COMMON]
        own["variants"] = {name: dict(more) for name, more in VARIANTS.items()}
        return f"{sample_seed(canonical_json(own)):016x}"


@dataclass(frozen=True, order=True)
class Cell:
    """A variant on a task and a seed."""

    task: str
    variant: str
    seed: int

    @property
    def key(self) -> str:
        return f"{self.task}-{self.variant}-{self.seed}".replace(" ", "_")


@cache
def world_of(protocol: Protocol, task: str) -> World:
    """Chains of arithmetic, worked out line by line; word problems, answered by a program."""
    sizes = Sizes(train=8000, dev=max(protocol.panel, 2), test=max(protocol.panel, 2))
    return Arithmetic(sizes=sizes) if task.endswith("maths") else Problems(form="program", sizes=sizes)


def panel(protocol: Protocol, task: str, split: str = "test") -> list[Task]:
    """Held-out problems of each tier; those of `longer` have more steps than any that was learned."""
    world = world_of(protocol, task)
    return [one for tier in TIERS for one in world.tasks(split, tier)[: protocol.panel]]


@cache
def drawn(protocol: Protocol, task: str, seed: int) -> tuple[list[Task], list[Task]]:
    """Problems of the base, most of them of the lowest level, and those of the pool, of all levels; disjoint."""
    world = world_of(protocol, task)
    by_kind: dict[str, list[Task]] = {}
    for tier in TIERS[:2]:
        for one in world.tasks("train", tier):
            by_kind.setdefault(one.kind, []).append(one)
    rng = sample_rng(seed, "p3 pool")
    base: list[Task] = []
    pool: list[Task] = []
    for level in _LEVELS:
        kinds = [kind for kind in sorted(by_kind) if len(kind.split()) == level]
        rng.shuffle(kinds)
        common = sorted(kinds, key=lambda kind: -len(by_kind[kind]))[:_COMMON]  # those of which there are enough
        rng.shuffle(common)  # a kind's rank
        chosen = _unequal([by_kind[kind] for kind in common], protocol.pool // len(_LEVELS))
        pool += chosen
        if level in _LEVELS[:2]:
            known = {one.id for one in chosen}
            left = [one for kind in kinds for one in by_kind[kind] if one.id not in known]
            rng.shuffle(left)
            base += left if level == _LEVELS[0] else left[: round(protocol.next_level * len(base))]
    rng.shuffle(pool)
    return base, pool


def _unequal(kinds: Sequence[Sequence[Task]], count: int) -> list[Task]:
    """So many problems, of each kind a share that falls as one over its rank, or all that there are."""
    taken = [0] * len(kinds)
    while sum(taken) < min(count, sum(map(len, kinds))):
        left = [
            (taken[rank] + 1) * (rank + 1) if taken[rank] < len(kinds[rank]) else float("inf")
            for rank in range(len(kinds))
        ]
        taken[left.index(min(left))] += 1
    return [one for kind, number in zip(kinds, taken, strict=True) for one in kind[:number]]


def mixed_up(shown: Sequence[Trajectory], share: float, seed: int) -> list[Trajectory]:
    """The same problems, a share of them with the answers of others of their kind, passed round among those drawn."""
    rng = sample_rng(seed, "p3 noise")
    drawn = sorted(rng.choice(len(shown), round(share * len(shown)), replace=False), key=lambda at: shown[at].task.kind)
    found = list(shown)
    for _, group in groupby(drawn, key=lambda at: shown[at].task.kind):
        places = list(group)
        for place, other in zip(places, places[1:] + places[:1], strict=True):
            steps = (replace(shown[place].steps[0], action=shown[other].steps[0].action),)
            found[place] = replace(shown[place], steps=steps)
    return found


def parts_of(
    world: World, policy: Policy, tasks: Sequence[Task], seed: int, *, noise: float = 0.0
) -> list[TokenSequence]:
    """Demonstrations as they are learned, with spans on their lines."""
    shown = mixed_up(collect_demonstrations([world], tasks, seed=seed), noise, seed)
    flat = flatten(shown, policy.dialect, instructions=lambda one: world.instructions, context=policy.context)
    words = policy.tokenizer
    return [split_by_lines(part, lambda token: words.decode([token])) for part in flat.sequences]


def untrained(protocol: Protocol, world: World, seed: int) -> Policy:
    """A fresh policy over the world's words."""
    words = sorted(world.vocabulary() or ())
    return tiny_policy(words, size="xs", context=protocol.context, seed=sample_seed("p3 model", seed) % 2**31)


def solved(protocol: Protocol, policy: Policy, world: World, tasks: Sequence[Task]) -> tuple[list[int], int]:
    """Whether each problem is solved greedily, and the tokens that were generated."""
    agent = LanguageAgent(policy, GREEDY, max_tokens=protocol.max_tokens)
    engine = LocalEngine(policy, slots=64)
    played = {one.task.id: one for one in collect({world.name: world}, [*map(Start, tasks)], agent, engine=engine)}
    won = [played[one.id].success for one in tasks]
    if None in won:
        raise ScoringError("episodes that could not be scored", value=won.count(None))
    return [int(bool(each)) for each in won], engine.usage.generated


def run_cell(protocol: Protocol, folder: Path, cell: Cell, *, split: str = "test") -> dict[str, Any]:
    """Make the base (once for all variants of a seed), choose, learn, measure; goes on where it was stopped."""
    began = time.process_time()
    world = world_of(protocol, cell.task)
    tasks = panel(protocol, cell.task, split)
    even, pool = drawn(protocol, cell.task, cell.seed)
    start = untrained(protocol, world, cell.seed)
    place = folder / "runs" / f"{protocol.digest}-{cell.task}-{cell.seed}"
    verbs = LocalBackend({world.name: world}, protocol.base_train, ROUNDS)
    with Run(place / "base", verbs, seed=cell.seed, settings=verbs.settings()) as run:
        base = run.fit(start, parts_of(world, start, even, cell.seed), weighted_nll, tokens=protocol.base)
    noise = protocol.noise if cell.task.startswith("noisy") else 0.0
    parts = parts_of(world, base, pool, cell.seed, noise=noise)
    count = len(parts) if cell.variant == "full" else protocol.chosen
    config = P3Config.model_validate(
        {"rounds": protocol.rounds, "count": count, "tokens": protocol.tokens, **VARIANTS[cell.variant]}
    )
    more = {"select": facility_location} if cell.variant == "facility" else {}
    verbs = LocalBackend({world.name: world}, protocol.train, ROUNDS)
    with Run(place / cell.variant, verbs, seed=cell.seed, settings=verbs.settings()) as run:
        learned = p3(base, parts, config=config, run=run, **more)
    before, _ = solved(protocol, base, world, tasks)
    right, generated = solved(protocol, learned, world, tasks)
    return {
        **asdict(cell),
        "digest": protocol.digest,
        "right": right,
        "base": before,
        "generated": generated,
        "pool": len(parts),
        "kinds": len({one.kind for one in pool}),
        "learned_tokens": protocol.rounds * protocol.tokens,
        "cpu_s": round(time.process_time() - began, 1),
    }
