"""The arms of the study of AgentEvol: what each does with one seed. `benchmarks.evolve` freezes and runs them.

A seed draws everything anew: the initial weights, which tasks are demonstrated, which are explored, and every sample.
The panels are fixed. All arms go on from one cloned policy, with the same restarts of the optimizer, warm-up and decay,
and every arm ends with the round that was best on dev, its start among the candidates.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from itertools import zip_longest
from pathlib import Path

import torch

import evolvent
from evolvent.bench.plan import Arm, ArmRun
from evolvent.bench.results import ArmResult, Outcome, collect_outcomes, read_costs
from evolvent.cli.setup import registry
from evolvent.cli.setup.prompting import Prompt, prompt_worlds
from evolvent.config import Config
from evolvent.curate.balance import balance_worlds
from evolvent.errors import ConfigError, ScoringError
from evolvent.identity import version_1_values
from evolvent.learn.learner import TrainConfig
from evolvent.learn.objectives import weighted_nll
from evolvent.methods.agentevol import FORMULATED, PUBLISHED, AgentEvolConfig, Keep, evolve, select_successes
from evolvent.models.adapters import AdapterConfig, adapt
from evolvent.models.placement import DtypeName, Placement
from evolvent.models.policy import Policy
from evolvent.run import Evaluation, Run
from evolvent.scale.initial import collect_demonstrations, make_policy
from evolvent.scale.local_backend import EvaluationPanel, local_run
from evolvent.trajectory import Json, Task, Trajectory, sample_rng
from evolvent.worlds.base import World

__all__ = ["Plan", "Regardless", "arms", "drawn", "make_initial_policy", "played_worlds", "worlds"]

Rows = Sequence[Evaluation]
_PRETRAINED_FIELDS = ("model", "adapter", "dtype", "measured")
_PRETRAINED_SLOTS = 64


@dataclass(frozen=True)
class Plan:
    """What a study of AgentEvol fixes before it runs.

    Args:
        worlds: their registry.
        demonstrated, explored: tasks of each world.
        namings: how often a demonstration is shown, under other names where its world can rename.
        clone_tokens, clones: learned tokens of a cloning fit, and how many of them; the best on dev is the base.
        method: of the arm `evolve`; the others change one thing each.
        train: the learner of all fits.
        tiers: those that decide; "best on dev" is the best mean over these.
        limit: most tasks of a panel.
        context: of the embedded policy, in tokens.
        model: the pretrained model that all arms start from; none: an embedded policy, untrained.
        adapter: what is trained of a pretrained model.
        dtype: of its weights.
        measured: tiers of the panels; none: all.
    """

    worlds: tuple[str, ...]
    demonstrated: tuple[int, ...]
    explored: tuple[int, ...]
    namings: int
    clone_tokens: int
    clones: int
    method: AgentEvolConfig
    train: TrainConfig
    tiers: tuple[str, ...] = ("evo", "combo")
    limit: int = 200
    context: int = 256
    model: str = ""
    adapter: AdapterConfig | None = None
    dtype: DtypeName = "auto"
    measured: tuple[str, ...] = ()

    def described(self) -> dict[str, Json]:
        """All of it as JSON values."""
        own = {one.name: getattr(self, one.name) for one in fields(self)}
        if self.context == 256:  # what studies had that were frozen before this was a choice
            del own["context"]
        if not self.model:
            own = {name: value for name, value in own.items() if name not in _PRETRAINED_FIELDS}
        return {name: version_1_values(one) if isinstance(one, Config) else one for name, one in own.items()}


@cache
def worlds(chosen: tuple[str, ...]) -> Mapping[str, World]:
    """The worlds of these registry, dealt once for all arms and seeds."""
    return registry.load_worlds(chosen)


@cache
def _hinted_worlds(chosen: tuple[str, ...]) -> Mapping[str, World]:
    return prompt_worlds(worlds(chosen), Prompt(hint=True))


def played_worlds(plan: Plan) -> Mapping[str, World]:
    """Returns the worlds as the policy reads them: a pretrained model is told the form of an action."""
    return _hinted_worlds(plan.worlds) if plan.model else worlds(plan.worlds)


def make_initial_policy(plan: Plan, seed: int) -> Policy:
    """Returns the policy that a seed starts from: an untrained one, or the pretrained model with a new adapter."""
    made = list(played_worlds(plan).values())
    if not plan.model:
        return make_policy(made, context=plan.context, seed=seed)
    placement = Placement(dtype=plan.dtype, context=plan.context)
    loaded = registry.resolve_policy(plan.model, made, seed=seed, placement=placement)
    return adapt(loaded, plan.adapter or AdapterConfig(), seed=seed)


@dataclass
class Regardless:
    """Keeps as many trajectories in each round as the arm `evolve` did, one of each task, whatever their reward.

    The tasks come in one order, drawn once among those that a round explored.
    """

    counts: Sequence[int]
    seed: int
    _round: int = field(default=0)

    def __call__(self, tried: Sequence[Trajectory], config: AgentEvolConfig) -> list[Trajectory]:
        tasks: dict[str, list[Trajectory]] = {}
        for trajectory in tried:
            if trajectory.success is not None:
                tasks.setdefault(trajectory.task.id, []).append(trajectory)
        rng = sample_rng("regardless", self.seed)
        order = [list(tasks)[place] for place in rng.permutation(len(tasks))]
        count, self._round = [*self.counts, 0][min(self._round, len(self.counts))], self._round + 1
        picks = sample_rng("regardless", self.seed, self._round)
        return [tasks[task][int(picks.integers(len(tasks[task])))] for task in order[:count]]


def drawn(plan: Plan, made: Mapping[str, World], seed: int) -> tuple[list[Task], list[Task]]:
    """(tasks to demonstrate, tasks to explore) of a seed: disjoint, drawn from the training panels.

    Demonstrated are tasks of the first tier; explored are others of it and of every other tier that may be trained on.
    """
    shown: list[Task] = []
    tried: list[Task] = []
    for name, few, many in zip(made, plan.demonstrated, plan.explored, strict=True):
        panels = []
        for tier in made[name].tiers:
            tasks = made[name].tasks("train", tier)
            order = sample_rng("study", seed, name, tier).permutation(len(tasks))
            panels.append([tasks[place] for place in order])
        shown += panels[0][:few]
        rest = [panels[0][few:], *panels[1:]]
        tried += [task for row in zip_longest(*rest) for task in row if task is not None][:many]
    return shown, tried


@dataclass(frozen=True)
class _Ready:
    """What all arms of a seed begin with."""

    initial: Policy
    base: Policy
    taught: list[Trajectory]
    tried: list[Task]
    fits: int
    curve: list[float]
    gain_of_more: float
    rows: Rows


def _run(plan: Plan, seat: ArmRun, arm: str) -> Run[Policy]:
    torch.set_num_threads(1)
    folder = seat.folder.parent.parent / arm / str(seat.seed)
    made = list(played_worlds(plan).values())
    slots = _PRETRAINED_SLOTS if plan.model else 384 * 256 // plan.context  # as many positions, whatever the context
    panel = EvaluationPanel("test", plan.measured or None, plan.limit)
    return local_run(folder, made, seed=seat.seed, train=plan.train, panel=panel, slots=slots, context=plan.context)


def _rate(rows: Rows, tiers: Sequence[str]) -> float:
    own = [row.mean for row in rows if row.tier in tiers]
    scored = [mean for mean in own if mean is not None]
    if len(scored) < len(own) or not own:
        raise ScoringError("a panel with episodes that could not be scored has no rate", value=len(own) - len(scored))
    return sum(scored) / len(scored)


def _ready(plan: Plan, seat: ArmRun) -> _Ready:
    """Clone, and choose the best fit on dev. What the base's run has finished is read, not done again."""
    made = played_worlds(plan)
    shown, tried = drawn(plan, made, seat.seed)
    taught = collect_demonstrations(list(made.values()), shown, seed=seat.seed, namings=plan.namings)
    initial = make_initial_policy(plan, seat.seed)
    policy, found, curve = initial, [], []
    with _run(plan, seat, "base") as run:
        for number in run.rounds(plan.clones):
            scale = 1.0 if number == 1 else plan.method.lr_scale
            policy = run.fit(policy, balance_worlds(taught), weighted_nll, tokens=plan.clone_tokens, lr_scale=scale)
            curve.append(_rate(run.evaluate(policy, number, split="dev"), plan.tiers))
            found.append(policy)
        best = curve.index(max(curve))
        base = found[best]
        rows = run.evaluate(base, plan.clones)
        if plan.model:  # the arm "train" tells what more cloning gains, and costs a fifth of the study
            return _Ready(initial, base, taught, tried, best + 1, curve, 0.0, rows)
        quarter = round((best + 1) * plan.clone_tokens / 4)
        further = run.fit(base, balance_worlds(taught), weighted_nll, tokens=quarter, lr_scale=plan.method.lr_scale)
        more = run.evaluate(further, plan.clones + 1)
    gain = _rate(more, plan.tiers) - _rate(rows, plan.tiers)
    return _Ready(initial, base, taught, tried, best + 1, curve, gain, rows)


def _played(run: Run[Policy], rows: Rows, notes: Mapping[str, Json]) -> ArmResult:
    tokens, cpu_s = read_costs(run.folder)
    return ArmResult(
        collect_outcomes(rows),
        {**tokens, "computed": tokens["computed"] + tokens["fed"]},
        cpu_s,
        {**notes, "sources": sources()},
    )


@cache
def sources() -> str:
    """A digest of the library's own source: which code a result came from."""
    root = Path(evolvent.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(f"{path.relative_to(root)}\n".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def _base(plan: Plan, seat: ArmRun) -> ArmResult:
    ready = _ready(plan, seat)
    with _run(plan, seat, "base") as run:
        notes: dict[str, Json] = {"dev": list(ready.curve), "fits": ready.fits}
        if not plan.model:
            notes["gain_of_25_percent_more"] = ready.gain_of_more
        return _played(run, ready.rows, notes)


def _have_equal_outcomes(first: Mapping[str, Sequence[Outcome]], second: Mapping[str, Sequence[Outcome]]) -> bool:
    """Returns whether two results hold the same outcomes; a result that was read has them in the panel's order."""
    return {name: sorted(rows) for name, rows in first.items()} == {name: sorted(rows) for name, rows in second.items()}


def _arm(
    plan: Plan,
    seat: ArmRun,
    config: AgentEvolConfig,
    *,
    choose: Keep = select_successes,
    plans: bool = False,
    fits: bool = False,
) -> ArmResult:
    """Evolve from the base.

    Args:
        config: of the method.
        plans: also learn the expert's plans of the tasks to explore.
        fits: a round learns as many tokens as the base's cloning did.
    Raises:
        ConfigError: the base was made again and is not the one whose result is kept.
    """
    ready = _ready(plan, seat)
    if not _have_equal_outcomes(collect_outcomes(ready.rows), seat.previous["base"].result.outcomes):
        raise ConfigError(
            f"the base of seed {seat.seed} is not the one of its result",
            expected="the same outcomes",
            hint="play the seed again on one machine: remove its results and its runs",
        )
    tokens = {"round_tokens": ready.fits * plan.clone_tokens} if fits else {}
    config = config.model_copy(update={"iterations": plan.method.iterations, "select": "best", **tokens})
    counts: list[int] = []

    def counted(tried: Sequence[Trajectory], config: AgentEvolConfig) -> list[Trajectory]:
        kept = choose(tried, config)
        counts.append(len(kept))
        return kept

    taught = ready.taught
    if plans:
        taught = taught + collect_demonstrations(list(played_worlds(plan).values()), ready.tried, seed=seat.seed)
    with _run(plan, seat, seat.arm) as run:
        final = evolve(ready.base, ready.tried, taught, config=config, run=run, initial=ready.initial, select=counted)
        rows = run.evaluate(final, config.iterations)
        return _played(run, rows, {"kept": counts, "round_tokens": config.round_tokens or 0})


def _idle(plan: Plan, round_tokens: int | None = None) -> AgentEvolConfig:
    """The method with nothing explored and nothing kept: cloning goes on."""
    tokens = plan.method.round_tokens if round_tokens is None else round_tokens
    return plan.method.model_copy(update={"keep": "none", "samples_per_task": 0, "round_tokens": tokens})


def _total(plan: Plan, seat: ArmRun) -> ArmResult:
    """Cloning that computes as many tokens as evolve did in all, exploring included."""
    cost = seat.previous["evolve"].result.tokens
    share = cost["computed"] / max(1, cost["fed"])
    return _arm(plan, seat, _idle(plan, round((plan.method.round_tokens or 0) * share)))


def _regardless(plan: Plan, seat: ArmRun) -> ArmResult:
    counts = seat.previous["evolve"].result.notes["kept"]
    return _arm(plan, seat, plan.method, choose=Regardless(list(counts) if isinstance(counts, list) else [], seat.seed))


def arms(plan: Plan, chosen: Sequence[str]) -> tuple[Arm, ...]:
    """The arms of these names; the first is where the others start."""

    def at(play: Callable[[Plan, ArmRun], ArmResult]) -> Callable[[ArmRun], ArmResult]:
        return lambda seat: play(plan, seat)

    every = (
        Arm("base", "where all start: cloning, the best fit on dev", at(_base)),
        Arm("evolve", "the claim", lambda seat: _arm(plan, seat, plan.method), ("base",)),
        Arm(
            "train",
            "is it only more training? cloning with evolve's learned tokens",
            lambda seat: _arm(plan, seat, _idle(plan)),
            ("base",),
        ),
        Arm(
            "total",
            "was exploring worth its cost? cloning with all tokens that evolve computed",
            at(_total),
            ("base", "evolve"),
        ),
        Arm(
            "regardless",
            "does the reward matter? as many samples kept, whatever their reward",
            at(_regardless),
            ("base", "evolve"),
        ),
        Arm(
            "upper",
            "what could be had: cloning with expert plans of the explored tasks",
            lambda seat: _arm(plan, seat, _idle(plan), plans=True),
            ("base",),
        ),
        Arm(
            "published",
            "AgentEvol as its code has it",
            lambda seat: _arm(plan, seat, AgentEvolConfig.model_validate(PUBLISHED), fits=True),
            ("base",),
        ),
        Arm(
            "formulated",
            "AgentEvol as it is formulated",
            lambda seat: _arm(plan, seat, AgentEvolConfig.model_validate(FORMULATED), fits=True),
            ("base",),
        ),
    )
    return tuple(arm for arm in every if arm.name in chosen)
