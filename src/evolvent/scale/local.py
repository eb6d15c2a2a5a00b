"""A run in this process: one engine, one learner, the worlds at hand."""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from threading import RLock
from typing import Any

import torch

from evolvent.agents.candidates import CandidateAgent
from evolvent.agents.history import History, Refuse
from evolvent.agents.language import LanguageAgent
from evolvent.agents.plain import Expert
from evolvent.engine.asks import Engine, Sampling, Usage
from evolvent.engine.local import LocalEngine
from evolvent.engine.recompute import RecomputeEngine
from evolvent.errors import ConfigError, Problem
from evolvent.files import plain_json, write_atomic
from evolvent.learn.checkpoint import Checkpointer
from evolvent.learn.learner import Learner, Metrics, TrainConfig
from evolvent.learn.objectives import Objective
from evolvent.learn.optim.make import OptimizerConfig
from evolvent.learn.parts import flatten
from evolvent.learn.practice import Practice, Setup
from evolvent.models.policy import Policy, load_policy, tiny_policy
from evolvent.rollout.branches import Branching, Origins
from evolvent.rollout.collect import collect
from evolvent.rollout.episode import Limits
from evolvent.rollout.evaluate import example_row, outcome_rows, panel_starts
from evolvent.run import Evaluation, Run, Stage
from evolvent.trajectory import Start, Step, Task, Trajectory, canonical_json, sample_seed, trajectory_name
from evolvent.worlds.base import Renamable, World
from evolvent.worlds.grammar import Parsed

__all__ = ["LocalVerbs", "Panel", "demonstrations", "keep_credit", "local_run", "policy_for"]

_log = logging.getLogger(__name__)
_CONTEXT, _SAMPLED = 256, 12  # least tokens of an episode; tasks of a tier that are looked at for more
_WORDS = re.compile(r"\w+|[^\w\s]")
_RECOMPUTED = 16  # texts of a forward that keeps nothing: their logits lie in memory at every position


@dataclass(frozen=True)
class Panel:
    """What `evaluate` plays: a split, its tiers (None: all), at most `limit` tasks of each, greedily by default."""

    split: str = "test"
    tiers: tuple[str, ...] | None = None
    limit: int | None = 200
    temperature: float = 0.0
    examples: int = 6


@dataclass
class LocalVerbs:
    """`collect`, `fit` and `evaluate` in this process.

    Args:
        worlds: by name.
        train: how `fit` learns.
        panel: what `evaluate` plays.
        slots: episodes open at once.
        max_tokens: longest action.
        history: what agents do when their context is full.
        limits: deadlines and horizon of the environments.
        choose: actions are sampled among those that a world lists, token by token.
        deciding: policies choose among the actions that a world lists, instead of writing theirs.
        practising: how practices learn; None: as `fit` does. optimizer: theirs.
    Raises:
        ConfigError: slots or max_tokens below 1.
    """

    worlds: Mapping[str, World]
    train: TrainConfig = field(default_factory=TrainConfig)
    panel: Panel = field(default_factory=Panel)
    slots: int = 192
    max_tokens: int = 32
    history: History = field(default_factory=Refuse)
    limits: Limits = field(default_factory=Limits)
    choose: bool = False
    deciding: bool = False
    practising: TrainConfig | None = None
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    _one: Any = field(default_factory=RLock)
    _engine: Engine | None = None
    _served: Policy | None = None
    _usage: Usage = field(default_factory=Usage)
    _replayed: int = 0
    _trained: dict[str, int] = field(default_factory=lambda: {"trained": 0, "fed": 0})

    def __post_init__(self) -> None:
        counts = {"slots": self.slots, "max_tokens": self.max_tokens}
        problems = [Problem(name, f"must be 1 or more, got {count}") for name, count in counts.items() if count < 1]
        if problems:
            raise ConfigError(problems)

    def collect(
        self, policy: Policy, starts: Sequence[Start], stage: Stage, *, temperature: float = 1.0,
        horizon: int | None = None,
    ) -> Iterator[Trajectory]:  # fmt: skip
        """Play the starts with the policy; each trajectory is stored before it is yielded."""
        agent = self._agent(policy, Sampling(temperature), choose=self.choose, deciding=self.deciding)
        count = scored = wins = steps = 0
        with closing(self._playing(agent, starts, stage, horizon=horizon)) as played:
            for trajectory in played:
                count, steps = count + 1, steps + len(trajectory.steps)
                scored, wins = scored + (trajectory.success is not None), wins + (trajectory.success is True)
                if count % 200 == 0 or count == len(starts):
                    rate = {"episodes": count, "success": wins / scored} if scored else {}
                    stage.log({"step": count, "of": len(starts), "errors": count - scored, **rate, "env_steps": steps})
                yield trajectory

    def _agent(
        self, policy: Policy, sampling: Sampling, *, choose: bool = False, deciding: bool
    ) -> LanguageAgent | CandidateAgent:  # fmt: skip
        """What writes its actions, or chooses among those that the world lists."""
        if deciding:
            return CandidateAgent(policy, sampling.temperature, history=self.history)
        return LanguageAgent(policy, sampling, max_tokens=self.max_tokens, choose=choose, history=self.history)

    def _playing(
        self, agent: LanguageAgent | CandidateAgent, starts: Sequence[Start] | Branching, stage: Stage, *,
        horizon: int | None,
    ) -> Generator[Trajectory, None, None]:  # fmt: skip
        limits = self.limits if horizon is None else replace(self.limits, horizon=horizon)
        with self._one, ExitStack() as open_:  # one engine, one store: a practice may play ahead on a thread
            playing = collect(
                self.worlds, starts, agent, engine=self.engine(agent.policy), seed=stage.seed, slots=self.slots,
                limits=limits, name=lambda start: trajectory_name(start, stage.name),
            )  # fmt: skip
            for trajectory in open_.enter_context(closing(playing)):
                stage.store.append(trajectory)
                yield trajectory

    def practise(self, policy: Policy, stage: Stage, *, setup: Setup) -> Practice:
        """What plays with a copy of the policy and improves it; its episodes are stored under the stage's name."""
        config, origins = setup.config, Origins()

        def play(
            playing: Policy, starts: Sequence[Start], iteration: int, *, parents: Mapping[str, Trajectory],
            horizon: int | None,
        ) -> list[Trajectory]:  # fmt: skip
            here = replace(stage, name=f"{stage.name}/{iteration}", seed=sample_seed(stage.seed, iteration))
            names = [trajectory_name(start, here.name) for start in starts]
            found = {name: stage.done[name] for name in names if name in stage.done}
            todo = [start for start, name in zip(starts, names, strict=True) if name not in found]
            sampling = Sampling(config.temperature, config.top_k)
            agent = self._agent(playing, sampling, choose=config.choose, deciding=setup.deciding)
            origins.parents, before = parents, origins.replayed
            for trajectory in self._playing(agent, Branching(todo, origins), here, horizon=horizon):
                found[trajectory.id] = trajectory
            self._replayed += origins.replayed - before
            return [found[name] for name in names]

        def trains(learning: Policy, objective: Objective, name: str) -> Learner:
            train = self.practising or self.train
            if name != "policy" and config.critic_lr is not None:
                train = train.model_copy(update={"lr": config.critic_lr})
            return Learner(learning, objective, train, seed=sample_seed(stage.seed, name), optimizer=self.optimizer)

        def log(row: Mapping[str, Any]) -> None:
            for name in self._trained:
                self._trained[name] += int(row.get(name, 0))
            stage.log(row)

        def show(row: Mapping[str, Any]) -> None:
            keep_credit(stage.folder.parents[1] / "credit.json", {"stage": stage.name, "arm": stage.arm, **row})

        keeper = Checkpointer(stage.folder / "checkpoints", every=config.save_every)
        return Practice(policy, setup, seed=stage.seed, trains=trains, play=play, keeper=keeper, log=log, show=show)

    def fit(
        self, policy: Policy, data: Sequence[Trajectory], stage: Stage, *, objective: Objective,
        weight: Callable[[Trajectory], float] | None = None, tokens: int | None = None, lr_scale: float = 1.0,
    ) -> Policy:  # fmt: skip
        """Learn on a copy of the policy with a fresh optimizer; an interrupted fit goes on from its last checkpoint."""
        length = {} if tokens is None else {"tokens": tokens, "updates": None}
        config = self.train.model_copy(update={"lr": self.train.lr * lr_scale, **length})
        flat = flatten(
            data, policy.dialect, instructions=self._instructions, weight=weight, context=policy.context,
            render=self._text,
        )  # fmt: skip
        for problem in flat.refused:
            _log.warning("not learned: %s", problem)
        if flat.refused:
            stage.log({"refused": len(flat.refused)})
        learner = Learner(policy.clone(), objective, config, seed=stage.seed)

        def note(metrics: Metrics) -> None:
            stage.log(metrics.as_row())

        report = learner.fit(flat.parts, checkpoint=Checkpointer(stage.folder / "checkpoints"), on_update=note)
        self._trained["trained"] += report.tokens
        self._trained["fed"] += report.fed
        return learner.policy.advanced()

    def evaluate(
        self, policy: Policy, stage: Stage, *, split: str | None = None
    ) -> tuple[list[Evaluation], list[dict[str, Any]]]:
        """Play the panel, or that of another split; every episode is stored."""
        panel = self.panel
        starts = panel_starts(self.worlds, split=split or panel.split, tiers=panel.tiers, limit=panel.limit)
        played = dict(stage.done)
        todo = [start for start in starts if trajectory_name(start, stage.name) not in played]
        with self._one:  # what a practice plays ahead meanwhile is not this measurement's
            before = self.usage()["computed"]
            for trajectory in self.collect(policy, todo, stage, temperature=panel.temperature):
                played[trajectory.id] = trajectory
            computed = self.usage()["computed"] - before
        ordered = [played[trajectory_name(start, stage.name)] for start in starts]
        rows = outcome_rows(ordered, computed=computed)
        shown: dict[tuple[str, str], list[Trajectory]] = {}
        for trajectory in ordered:
            examples = shown.setdefault((trajectory.task.world, trajectory.task.tier), [])
            if len(examples) < panel.examples:
                examples.append(trajectory)
        return rows, [self._example(policy, trajectory) for examples in shown.values() for trajectory in examples]

    def _example(self, policy: Policy, trajectory: Trajectory) -> dict[str, Any]:
        word = policy.tokenizer.convert_ids_to_tokens
        return example_row(trajectory, instructions=self._instructions(trajectory.task), word=lambda at: str(word(at)))

    def engine(self, policy: Policy) -> Engine:
        """The one engine, serving this policy: one that shares prefixes, where its model allows that."""
        if self._engine is None or self._served is not policy:
            self._engine, self._served = self._serving(policy), policy
            self._engine.usage = self._usage
        return self._engine

    def _serving(self, policy: Policy) -> Engine:
        engine, self._engine = self._engine, None  # one that fails to sync is not used again
        try:
            if not isinstance(engine, LocalEngine):
                return LocalEngine(policy, slots=self.slots)
            engine.sync(policy)
        except ConfigError as problem:
            _log.warning("every text is computed from its beginning: %s", problem)
            return RecomputeEngine(policy, slots=min(self.slots, _RECOMPUTED))
        return engine

    def settings(self) -> dict[str, str]:
        """What the result of each verb depends on besides its arguments, for `Run`."""
        acting = (
            f"{self.max_tokens} {self.history.name} {self.limits}{' choose' * self.choose}{' deciding' * self.deciding}"
        )
        practised = f"{acting} {self.practising or self.train!r} {self.optimizer!r}"
        return {
            "collect": acting, "fit": repr(self.train), "evaluate": f"{acting} {self.panel}", "practise": practised,
        }  # fmt: skip

    def save(self, policy: Policy, folder: Path) -> None:
        policy.save(folder)

    def load(self, folder: Path) -> Policy:
        return load_policy(folder)

    def origin(self, policy: Policy) -> str:
        words = policy.tokenizer.get_vocab()
        digest = hashlib.sha256(canonical_json([policy.dialect.name, policy.context, words]).encode())
        head = policy.value_head.state_dict() if policy.value_head is not None else {}
        weights = {name: each for name, each in policy.model.state_dict().items() if not name.startswith("value_head.")}
        weights |= {f"value_head.{name}": each for name, each in head.items()}
        for name, weight in sorted(weights.items()):
            digest.update(canonical_json([name, str(weight.dtype), list(weight.shape)]).encode())
            digest.update(weight.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
        return digest.hexdigest()[:24]

    def usage(self) -> Mapping[str, int]:
        counted = ("generated", "computed", "recomputed", "padded", "shared")
        counts = {name: getattr(self._usage, name) for name in counted}
        return {**counts, **self._trained, "replayed": self._replayed}

    def _text(self, task: Task, step: Step) -> str:
        return self.worlds[task.world].grammar.render(Parsed(str(step.action), step.thought))

    def _instructions(self, task: Task) -> str:
        return self.worlds[task.world].instructions


def keep_credit(path: Path, row: Mapping[str, Any]) -> None:
    """Put a row (`learn/shown.py`) into the file, in place of one of the same stage and iteration."""
    rows: Any = None
    with suppress(OSError, ValueError):  # no file yet, or one that is damaged: it is for people to look at
        rows = json.loads(path.read_text(encoding="utf-8"))
    same = (row.get("stage"), row.get("iteration"))
    known = [one for one in rows if isinstance(one, dict)] if isinstance(rows, list) else []
    others = [one for one in known if (one.get("stage"), one.get("iteration")) != same]
    write_atomic(path, plain_json([*others, row]))


def policy_for(worlds: Sequence[World], *, size: str = "xs", context: int | None = None, seed: int = 0) -> Policy:
    """The embedded default policy for these worlds: untrained, over the union of their vocabularies.

    Args:
        context: most tokens of an episode; None: room for what the worlds' experts do.
    Raises:
        ConfigError: a world with an open vocabulary, which needs a model of its own.
    """
    words: dict[str, None] = {}
    for world in worlds:
        known = world.vocabulary()
        if known is None:
            raise ConfigError(f"world {world.name!r} has an open vocabulary", expected="a model folder",
                              hint="give the policy as a Hugging Face folder")  # fmt: skip
        words.update(dict.fromkeys(known))
    context = context or _roomy(worlds)
    return tiny_policy(sorted(words), size=size, context=context, seed=sample_seed(seed, "initialisation") % 2**31)


def _roomy(worlds: Sequence[World]) -> int:
    """A context that holds the experts' longest episodes with a quarter to spare: 256, 512, 1024, ... tokens."""
    longest = 0
    for world in worlds:
        tasks = [task for tier in world.tiers for task in world.tasks("dev", tier)[:_SAMPLED]]
        starts = [Start(task) for task in tasks if world.expert(task) is not None]
        for played in collect({world.name: world}, starts, Expert(), engine=None):
            said = [world.instructions, played.final_observation]
            said += [text for step in played.steps for text in (step.observation, step.action)]
            words = sum(len(_WORDS.findall(str(text))) for text in said)
            longest = max(longest, words + 3 * len(played.steps))  # a turn's own marks
    context = _CONTEXT
    while context < 1.25 * longest:
        context *= 2
    return context


def local_run(
    folder: Path | str, worlds: Sequence[World], *, seed: int = 0, train: TrainConfig | None = None,
    panel: Panel | None = None, slots: int = 192,
) -> Run[Policy]:  # fmt: skip
    """A run in this process over these worlds. Use it in a `with` statement."""
    verbs = LocalVerbs({world.name: world for world in worlds}, train or TrainConfig(), panel or Panel(), slots)
    return Run(Path(folder), verbs, seed=seed, settings=verbs.settings())


def demonstrations(
    worlds: Sequence[World], tasks: Sequence[Task], *, seed: int = 0, namings: int = 1
) -> list[Trajectory]:
    """What the worlds' experts do on these tasks.

    Args:
        namings: show each task so many times, from the second time on under other names, where its world can rename.
    Raises:
        ConfigError: a demonstration that does not succeed when it is played.
    """
    known = {world.name: world for world in worlds}
    shown = list(tasks)
    for task in tasks:
        world = known[task.world]
        with suppress(ConfigError):  # names that mean something, as those of a user's data, stay
            if isinstance(world, Renamable):
                shown += [world.renamed(task, Random(sample_seed(seed, task.id, n))) for n in range(1, namings)]
    starts = [Start(task) for task in dict.fromkeys(shown)]
    played = collect(known, starts, Expert(), engine=None, seed=seed, name=lambda s: f"demonstration/{s.task.id}")
    found = {trajectory.task.id: trajectory for trajectory in played}
    failed = [trajectory.id for trajectory in found.values() if not trajectory.success]
    if failed:
        raise ConfigError("demonstrations that do not succeed", value=failed[:5], expected="an expert that solves them")
    return [found[start.task.id] for start in starts]
