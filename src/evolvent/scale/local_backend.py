"""A run in this process: one engine, one learner, the worlds at hand."""

from __future__ import annotations

import hashlib
import json
import logging
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from threading import RLock
from typing import Any

import torch

from evolvent.agents.candidates import CandidateAgent
from evolvent.agents.history import History, Refuse
from evolvent.agents.language import LanguageAgent
from evolvent.backend import StageSettings
from evolvent.engine.asks import Engine, Sampling, Usage
from evolvent.engine.driver import drive
from evolvent.engine.fitting import engine_for
from evolvent.engine.local import LocalEngine
from evolvent.engine.recompute import RecomputeEngine
from evolvent.errors import ConfigError, Problem
from evolvent.files import append_line, plain_json, write_atomic
from evolvent.identity import version_1_text
from evolvent.learn.checkpoint import Checkpointer
from evolvent.learn.learner import Learner, Metrics, TrainConfig
from evolvent.learn.objectives import Objective
from evolvent.learn.optim.make import OptimizerConfig
from evolvent.learn.prefix_sharing import in_practice
from evolvent.learn.token_sequences import Parts, flatten
from evolvent.models.policy import Policy, load_policy
from evolvent.reward.labelling import Labelling
from evolvent.rl.trainer import Practice, Setup
from evolvent.rollout.branches import Branching, Origins
from evolvent.rollout.collect import collect
from evolvent.rollout.episode import Limits
from evolvent.rollout.evaluate import example_row, outcome_rows, panel_starts
from evolvent.rollout.search import Player, Searched, graded, searching
from evolvent.run import Evaluation, Run, Stage
from evolvent.scale.judging import JUDGE, judged, scorer_of
from evolvent.scale.reading import next_root
from evolvent.search.settings import SearchConfig
from evolvent.store.ledger import read_spent
from evolvent.trajectory import Start, Step, Task, Trajectory, canonical_json, sample_seed, trajectory_name
from evolvent.worlds.base import World
from evolvent.worlds.grammar import Parsed

__all__ = ["LocalVerbs", "Panel", "keep_credit", "keep_search", "local_run"]

_log = logging.getLogger(__name__)
_SEARCHES, _TREES = 64, 4  # searches of a call that are under way at once; trees that are kept of it
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
    _second: Engine | None = None
    _judge: Policy | None = None
    _usage: Usage = field(default_factory=Usage)
    _replayed: int = 0
    _trained: dict[str, int] = field(default_factory=lambda: {"trained": 0, "fed": 0})

    def __post_init__(self) -> None:
        counts = {"slots": self.slots, "max_tokens": self.max_tokens}
        problems = [Problem(name, f"must be 1 or more, got {count}") for name, count in counts.items() if count < 1]
        if problems:
            raise ConfigError(problems)

    def collect(
        self,
        policy: Policy,
        starts: Sequence[Start],
        stage: Stage,
        *,
        temperature: float = 1.0,
        horizon: int | None = None,
    ) -> Iterator[Trajectory]:
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

    def search(
        self, policy: Policy, starts: Sequence[Start], stage: Stage, *, how: SearchConfig, judge: Policy | None = None
    ) -> Iterator[Trajectory]:
        """Search from the starts; what each search decided for is stored before it is yielded.

        What each search has cost is in the stage's `searches.jsonl`, the first trees are in its `trees.jsonl`.
        """
        own = policy if judge is None else judge
        scorer = scorer_of(own, how, model=None if own is policy else JUDGE) if how.judged else None
        with self._one, ExitStack() as open_:
            engine = self.engine(policy)
            if scorer is not None and own is not policy:
                engine = judged(policy, own, engine=engine, judging=self._judging(own))
            playing = searching(
                self.worlds,
                starts,
                how,
                player=Player(policy, engine, scorer),
                seed=stage.seed,
                slots=min(self.slots, _SEARCHES),
                trees=_TREES,
                name=lambda start: trajectory_name(start, stage.name),
            )
            for count, found in enumerate(open_.enter_context(closing(playing)), 1):
                stage.store.append(found.trajectory)
                keep_search(stage.folder, found)
                if count % 20 == 0 or count == len(starts):
                    stage.log({"step": count, "of": len(starts), "episodes": count})
                yield found.trajectory

    def label(
        self, policy: Policy, data: Sequence[Trajectory], stage: Stage, *, how: Labelling
    ) -> Iterator[tuple[str, list[dict[str, Any]]]]:
        """Label trajectories by completions of the policy; in order of completion."""
        works = (
            how.work(
                policy,
                one,
                partial(self._correct, one.task),
                seed=sample_seed(stage.seed, one.id),
                slow=self.worlds[one.task.world].blocking,
            )
            for one in data
        )
        with self._one, closing(drive(works, self.engine(policy), slots=min(self.slots, _SEARCHES))) as finished:
            for count, done in enumerate(finished, 1):
                if done.error is not None:
                    _log.warning("not labelled: %s: %s", data[done.index].id, done.error)
                if count % 20 == 0 or count == len(data):
                    stage.log({"step": count, "of": len(data), "episodes": count})
                yield data[done.index].id, done.value or []

    def _correct(self, task: Task, said: str) -> bool | None:
        return graded(self.worlds[task.world], task, said).score.success

    def _judging(self, judge: Policy) -> Engine:
        """The judge's own engine; what it computes is counted with the rest."""
        if self._second is None or self._judge is not judge:
            self._second, self._judge = engine_for(judge, slots=self.slots, engine=self._second), judge
            self._second.usage = self._usage
        return self._second

    def _agent(
        self, policy: Policy, sampling: Sampling, *, choose: bool = False, deciding: bool
    ) -> LanguageAgent | CandidateAgent:
        """What writes its actions, or chooses among those that the world lists."""
        if deciding:
            return CandidateAgent(policy, sampling.temperature, history=self.history)
        return LanguageAgent(policy, sampling, max_tokens=self.max_tokens, choose=choose, history=self.history)

    def _playing(
        self,
        agent: LanguageAgent | CandidateAgent,
        starts: Sequence[Start] | Branching,
        stage: Stage,
        *,
        horizon: int | None,
    ) -> Generator[Trajectory, None, None]:
        limits = self.limits if horizon is None else replace(self.limits, horizon=horizon)
        with self._one, ExitStack() as open_:  # one engine, one store: a practice may play ahead on a thread
            playing = collect(
                self.worlds,
                starts,
                agent,
                engine=self.engine(agent.policy),
                seed=stage.seed,
                slots=self.slots,
                limits=limits,
                name=lambda start: trajectory_name(start, stage.name),
            )
            for trajectory in open_.enter_context(closing(playing)):
                stage.store.append(trajectory)
                yield trajectory

    def practise(self, policy: Policy, stage: Stage, *, setup: Setup) -> Practice:
        """What plays with a copy of the policy and improves it; its episodes are stored under the stage's name."""
        config, origins = setup.config, Origins()

        def play(
            playing: Policy,
            starts: Sequence[Start],
            iteration: int,
            *,
            parents: Mapping[str, Trajectory],
            horizon: int | None,
        ) -> Iterator[Trajectory]:
            here = replace(stage, name=f"{stage.name}/{iteration}", seed=sample_seed(stage.seed, iteration))
            names = deque(trajectory_name(start, here.name) for start in starts)
            found = {name: stage.done[name] for name in names if name in stage.done}
            todo = [start for start, name in zip(starts, names, strict=True) if name not in found]
            sampling = Sampling(config.temperature, config.top_k)
            agent = self._agent(playing, sampling, choose=config.choose, deciding=setup.deciding)
            with self._one, closing(self._playing(agent, Branching(todo, origins), here, horizon=horizon)) as played:
                origins.parents, before = parents, origins.replayed  # here: what is played ahead has other parents
                for trajectory in played:
                    found[trajectory.id] = trajectory
                    while names and names[0] in found:
                        yield found[names.popleft()]
                self._replayed += origins.replayed - before
            yield from (found[name] for name in names)

        def trains(learning: Policy, objective: Objective, name: str) -> Learner:
            train = in_practice(self.practising or self.train, learning.model)
            if name != "policy" and config.critic_lr is not None:
                train = train.model_copy(update={"lr": config.critic_lr})
            return Learner(learning, objective, train, seed=sample_seed(stage.seed, name), optimizer=self.optimizer)

        def log(row: Mapping[str, Any]) -> None:
            for name in self._trained:
                self._trained[name] += int(row.get(name, 0))
            stage.log(row)

        def show(row: Mapping[str, Any]) -> None:
            keep_credit(stage.folder.parents[1] / "credit.json", {"stage": stage.name, "arm": stage.arm, **row})

        def shorter(one: Trajectory) -> Sequence[int] | None:
            agent, world = self._agent(policy, Sampling(), deciding=setup.deciding), self.worlds[one.task.world]
            return next_root(one, agent, world=world, parents=made.parents)

        keeper = Checkpointer(stage.folder / "checkpoints", every=config.save_every)
        made = Practice(policy, setup, seed=stage.seed, trains=trains, play=play, keeper=keeper, log=log, show=show)
        made.shorter = shorter
        return made

    def fit(
        self,
        policy: Policy,
        data: Sequence[Trajectory | Parts],
        stage: Stage,
        *,
        objective: Objective,
        weight: Callable[[Trajectory], float] | None = None,
        tokens: int | None = None,
        lr_scale: float = 1.0,
    ) -> Policy:
        """Learn on a copy of the policy with a fresh optimizer; an interrupted fit goes on from its last checkpoint.

        Parts are learned as they are: weights and columns are their maker's.
        """
        length = {} if tokens is None else {"tokens": tokens, "updates": None}
        config = self.train.model_copy(update={"lr": self.train.lr * lr_scale, **length})
        prepared = [one for one in data if isinstance(one, Parts)]
        played = [one for one in data if isinstance(one, Trajectory)]
        flat = flatten(
            played,
            policy.dialect,
            instructions=self._instructions,
            weight=weight,
            context=policy.context,
            render=self._text,
        )
        for problem in flat.refused:
            _log.warning("not learned: %s", problem)
        if flat.refused:
            stage.log({"refused": len(flat.refused)})
        learner = Learner(policy.clone(), objective, config, seed=stage.seed)

        def note(metrics: Metrics) -> None:
            stage.log(metrics.as_row())

        report = learner.fit(
            [*prepared, *flat.parts], checkpoint=Checkpointer(stage.folder / "checkpoints"), on_update=note
        )
        self._trained["trained"] += report.tokens
        self._trained["fed"] += report.fed
        return learner.policy.advanced()

    def evaluate(
        self,
        policy: Policy,
        stage: Stage,
        *,
        split: str | None = None,
        how: SearchConfig | None = None,
        judge: Policy | None = None,
    ) -> tuple[list[Evaluation], list[dict[str, Any]]]:
        """Play the panel, or that of another split, or with a search; every episode is stored."""
        panel = self.panel
        with self._one, stage.alone():  # what a practice plays ahead meanwhile is not this measurement's
            starts = panel_starts(self.worlds, split=split or panel.split, tiers=panel.tiers, limit=panel.limit)
            played = dict(stage.done)
            todo = [start for start in starts if trajectory_name(start, stage.name) not in played]
            before = self.usage()["computed"] - read_spent(stage.folder).get("computed", 0)  # of interrupted tries
            playing = (
                self.collect(policy, todo, stage, temperature=panel.temperature)
                if how is None
                else self.search(policy, todo, stage, how=how, judge=judge)
            )
            for trajectory in playing:
                played[trajectory.id] = trajectory
            computed = round(self.usage()["computed"] - before)
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

    def settings(self) -> dict[str, StageSettings]:
        """Returns the settings that the result of each verb depends on besides its arguments, for `Run`."""
        flags = f"{' choose' * self.choose}{' deciding' * self.deciding}"
        acting = f"{self.max_tokens} {self.history.name} {version_1_text(self.limits)}{flags}"
        values = (self.max_tokens, self.history.name, self.limits, self.choose, self.deciding)
        learning = (self.practising or self.train, self.optimizer)
        return {
            "collect": StageSettings(values, acting),
            "fit": StageSettings((self.train,), version_1_text(self.train)),
            "evaluate": StageSettings((*values, self.panel), f"{acting} {version_1_text(self.panel)}"),
            "practise": StageSettings((*values, *learning), " ".join([acting, *map(version_1_text, learning)])),
        }

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


def keep_search(folder: Path, found: Searched) -> None:
    """Note what a search has cost and come to, and its tree where it is told, in the files of its stage."""
    spent = {name: round(value, 4) for name, value in asdict(found.spent).items()}
    row = {
        "id": found.trajectory.id,
        "success": found.trajectory.success,
        "passed": found.passed,
        "spent": spent,
        "ended_by": found.ended_by,
        "dropped": found.dropped,
        "answers": [dict(each) for each in found.answers[:16]],
    }
    append_line(folder / "searches.jsonl", row, durable=False)
    if found.tree:
        append_line(folder / "trees.jsonl", {"id": found.trajectory.id, **found.tree}, durable=False)


def keep_credit(path: Path, row: Mapping[str, Any]) -> None:
    """Put a row (`rl/credit_samples.py`) into the file, in place of one of the same stage and iteration."""
    rows: Any = None
    with suppress(OSError, ValueError):  # no file yet, or one that is damaged: it is for people to look at
        rows = json.loads(path.read_text(encoding="utf-8"))
    same = (row.get("stage"), row.get("iteration"))
    known = [one for one in rows if isinstance(one, dict)] if isinstance(rows, list) else []
    others = [one for one in known if (one.get("stage"), one.get("iteration")) != same]
    write_atomic(path, plain_json([*others, row]))


def local_run(
    folder: Path | str,
    worlds: Sequence[World],
    *,
    seed: int = 0,
    train: TrainConfig | None = None,
    panel: Panel | None = None,
    slots: int = 192,
) -> Run[Policy]:
    """A run in this process over these worlds. Use it in a `with` statement."""
    verbs = LocalVerbs({world.name: world for world in worlds}, train or TrainConfig(), panel or Panel(), slots)
    return Run(Path(folder), verbs, seed=seed, settings=verbs.settings())
