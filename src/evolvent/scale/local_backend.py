"""A backend in this process: one engine, one learner, and local worlds.

The prompt that an agent would have read next, had its episode not been cut: its value stands for the
remaining rewards.

Where a conversation continues, the prompt is the conversation and its final observation. Where these do not fit
the context, it is what the agent's history policy makes of them, computed here from the record alone without a
model.
"""

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
from typing import Any, ClassVar, Literal

import torch

from evolvent.agents.base import recorded_turn
from evolvent.agents.candidates import CandidateAgent, CandidateDivisor
from evolvent.agents.history import History, Refuse, Turn
from evolvent.agents.language import LanguageAgent
from evolvent.backend import StageSettings
from evolvent.engine.asks import Engine, Sampling, Usage
from evolvent.engine.driver import run_jobs
from evolvent.engine.fitting import engine_for
from evolvent.engine.local import LocalEngine
from evolvent.engine.recompute import RecomputeEngine
from evolvent.errors import ConfigError, Problem
from evolvent.files import append_line, plain_json, write_atomic
from evolvent.identity import version_1_text
from evolvent.learn.checkpoint import Checkpointer
from evolvent.learn.forward import Layout
from evolvent.learn.learner import RL_OPTIMIZER, RL_TRAIN, Learner, TrainConfig, UpdateMetrics
from evolvent.learn.objectives import Objective
from evolvent.learn.optim.make import OptimizerConfig
from evolvent.learn.parallel.ranks import SINGLE_PROCESS, Parallelism, Ranks
from evolvent.learn.prefix_sharing import resolve_rl_layout
from evolvent.learn.token_sequences import TokenSequence, flatten
from evolvent.messages import Instructions
from evolvent.models.defaults import (
    PRETRAINED_REPLY_TOKENS,
    REPLY_TOKENS,
    ModelFacts,
    fill_settings,
    rl_settings,
    train_settings,
)
from evolvent.models.dialects import Chat, Dialect, Words
from evolvent.models.placement import ContextSetting, Placement
from evolvent.models.policy import Policy, load_policy
from evolvent.models.tuned import kind_of
from evolvent.reward.labelling import LabellingConfig
from evolvent.rl.trainer import PlayFunction, PolicyTrainer, RLSpec
from evolvent.rollout.episode import BranchedStarts, BranchOrigins, FailureCounts, Limits, collect
from evolvent.rollout.evaluate import example_row, panel_starts, summarize_outcomes
from evolvent.rollout.search import SearchOutcome, SearchPlayer, graded, search_starts
from evolvent.run import Evaluation, Run, RunStage
from evolvent.scale.judging import JUDGE, combine_engines, make_scorer
from evolvent.search.settings import SearchConfig
from evolvent.store.log import read_stage_cost
from evolvent.trajectory import (
    Json,
    JsonObject,
    Start,
    Step,
    Task,
    Trajectory,
    canonical_json,
    sample_seed,
    trajectory_name,
)
from evolvent.worlds.base import Parsed, World

__all__ = [
    "EvaluationPanel",
    "LocalBackend",
    "RolloutDtype",
    "local_run",
    "log_search",
    "lower_precision",
    "next_prompt",
    "policy_digest",
    "save_credit",
]


def next_prompt(
    trajectory: Trajectory, agent: LanguageAgent | CandidateAgent, *, world: World, parents: Mapping[str, Trajectory]
) -> Sequence[int] | None:
    """Returns the new prompt that the agent would read at the end of this episode: the past as its chat template
    renders it, or what its history policy makes of a full context; None where that policy gives up.

    An agent that chooses among listed actions reserves tokens for the longest of them, too: the next list of the
    world is not recorded, so that of the last step is used.

    Args:
        trajectory: Episode of the agent, cut at its horizon.
        agent: The agent.
        world: World of its task.
        parents: Trajectories that branches started from, by id; None is returned for a branch with a missing
            parent.
    """
    policy, observation = agent.policy, str(trajectory.final_observation)
    turns = _collect_turns(trajectory, policy.dialect, world=world, parents=parents)
    if turns is None:
        return None
    if isinstance(policy.dialect, Chat) and policy.dialect.renders_past:
        past = [(turn.observation, turn.action) for turn in turns]
        rendered_prompt = policy.dialect.rendered_prompt(world.instructions, past, observation)
        if len(rendered_prompt) < policy.context:
            return rendered_prompt
    make_prompt = partial(agent.history, policy.dialect, world.instructions, turns, observation)
    if isinstance(agent, LanguageAgent):
        return make_prompt(policy.context - agent.max_tokens)
    max_candidate_length = max(map(len, trajectory.steps[-1].info.get("candidates", ())), default=1)
    prompt = make_prompt(policy.context - 1)
    return (
        prompt
        if prompt is None or len(prompt) + max_candidate_length <= policy.context
        else make_prompt(policy.context - max_candidate_length)
    )


def _collect_turns(
    trajectory: Trajectory, dialect: Dialect, *, world: World, parents: Mapping[str, Trajectory]
) -> list[Turn] | None:
    """Returns all turns, from the first turn of the parent on where the episode is a branch."""

    def render(step: Step) -> str:
        return world.grammar.render(Parsed(str(step.action), step.thought))

    turns, branch = [recorded_turn(step, dialect, render=render) for step in trajectory.steps], trajectory.branch
    if branch is None:
        return turns
    parent = parents.get(branch.parent)
    if parent is None:
        return None
    parent_turns = [recorded_turn(step, dialect, render=render) for step in parent.steps[: branch.step]]
    if branch.token and turns:  # the first action began with tokens of the parent's
        parent_tokens = recorded_turn(parent.steps[branch.step], dialect, render=render).action[: branch.token]
        turns[0] = replace(turns[0], action=(*parent_tokens, *turns[0].action))
    return [*parent_turns, *turns]


RolloutDtype = Literal["bfloat16", "int8"]
_log = logging.getLogger(__name__)
_MAX_SEARCHES, _MAX_TREES = 64, 4  # searches of a call that are under way at once; trees that are kept of it
_RECOMPUTE_SLOTS = 16  # texts of a forward that keeps nothing: their logits lie in memory at every position


@dataclass(frozen=True)
class EvaluationPanel:
    """Settings of `evaluate`: a split, its tiers (None: all), at most `limit` tasks of each, greedy by default."""

    split: str = "test"
    tiers: tuple[str, ...] | None = None
    limit: int | None = 200
    temperature: float = 0.0
    examples: int = 6


@dataclass
class LocalBackend:
    """The operations of a run in this process.

    Args:
        worlds: Worlds by name.
        train: Training settings of `fit`; None: those that fit the policy. What is not set follows from the policy too.
        panel: Settings of `evaluate`.
        slots: Number of simultaneous episodes.
        max_tokens: Maximum tokens of an action; None: 32, or 64 where the policy is pretrained.
        history: Treatment of a full context.
        limits: Deadlines and horizon of the environments.
        restrict_to_admissible: Whether actions are sampled among those that a world lists, token by token.
        action_level: Whether policies choose among the actions that a world lists, instead of writing theirs.
        candidate_divisor: What the log-probability of a listed action is divided by.
        rl_train: Training settings of RL; None: those of `fit`, or where there are none, those that fit the policy.
        optimizer: Optimizer settings of RL; None: those that fit the policy.
        placement: Where policies of an earlier session run when they are loaded, and how much of their context is
            used.
        rollout_dtype: Numbers of the weights that play; None: those that are trained. With fewer bits the sampler
            differs from the learner, which computes the log-probabilities again.
        engine_bytes: Memory for the keys and values of what is played, beyond which episodes wait; None: half of what
            is free when the first episode is played.
        parallelism: Distribution of what is trained over `ranks`; None: this process alone.
        ranks: This process among the ranks of the training (`scale.ranks_backend`).
        failures: Counts of the episodes of RL that could not be scored.
    Raises:
        ConfigError: slots or max_tokens below 1.
    """

    worlds: Mapping[str, World]
    train: TrainConfig | None = None
    panel: EvaluationPanel = field(default_factory=EvaluationPanel)
    slots: int = 192
    max_tokens: int | None = None
    history: History = field(default_factory=Refuse)
    limits: Limits = field(default_factory=Limits)
    restrict_to_admissible: bool = False
    action_level: bool = False
    rl_train: TrainConfig | None = None
    optimizer: OptimizerConfig | None = None
    placement: Placement = field(default_factory=Placement)
    rollout_dtype: RolloutDtype | None = None
    engine_bytes: int | None = None
    parallelism: Parallelism | None = None
    ranks: Ranks = SINGLE_PROCESS
    failures: FailureCounts = field(default_factory=FailureCounts)
    candidate_divisor: CandidateDivisor = "words"
    _reported_failures: FailureCounts = field(default_factory=FailureCounts)  # of episodes that measure
    _tells_failures: ClassVar[bool] = True  # whether the end of a training tells them
    _lock: Any = field(default_factory=RLock)
    _engine: Engine | None = None
    _served_policy: Policy | None = None
    _judge_engine: Engine | None = None
    _judge: Policy | None = None
    _usage: Usage = field(default_factory=Usage)
    _replayed: int = 0
    _trained: dict[str, int] = field(default_factory=lambda: {"trained": 0, "fed": 0})

    def __post_init__(self) -> None:
        counts = {"slots": self.slots, "max_tokens": self.max_tokens}
        problems = [
            Problem(name, f"got {count}, expected 1 or more")
            for name, count in counts.items()
            if count is not None and count < 1
        ]
        if problems:
            raise ConfigError(problems)

    def collect(
        self,
        policy: Policy,
        starts: Sequence[Start],
        stage: RunStage,
        *,
        temperature: float = 1.0,
        horizon: int | None = None,
    ) -> Iterator[Trajectory]:
        """Plays the starts with the policy; each trajectory is stored before it is yielded."""
        agent = self._make_agent(
            policy,
            Sampling(temperature),
            restrict_to_admissible=self.restrict_to_admissible,
            candidate_divisor=self.candidate_divisor if self.action_level else None,
        )
        count = scored = wins = steps = 0
        with closing(self._play_starts(agent, starts, stage, horizon=horizon)) as trajectories:
            for trajectory in trajectories:
                count, steps = count + 1, steps + len(trajectory.steps)
                scored, wins = scored + (trajectory.success is not None), wins + (trajectory.success is True)
                if count % 200 == 0 or count == len(starts):
                    rate = {"episodes": count, "success": wins / scored} if scored else {}
                    stage.log({"step": count, "of": len(starts), "errors": count - scored, **rate, "env_steps": steps})
                yield trajectory

    def search(
        self,
        policy: Policy,
        starts: Sequence[Start],
        stage: RunStage,
        *,
        search: SearchConfig,
        value_model: Policy | None = None,
    ) -> Iterator[Trajectory]:
        """Searches from the starts; the chosen trajectory of each search is stored before it is yielded.

        What each search has cost is in the stage's `searches.jsonl`, the first trees are in its `trees.jsonl`.
        """
        scoring_policy = policy if value_model is None else value_model
        scorer = (
            make_scorer(scoring_policy, search, model=None if scoring_policy is policy else JUDGE)
            if search.uses_judge
            else None
        )
        with self._lock, ExitStack() as open_:
            engine = self.serve_policy(policy)
            if scorer is not None and scoring_policy is not policy:
                engine = combine_engines(
                    policy, scoring_policy, engine=engine, value_engine=self._engine_of_judge(scoring_policy)
                )
            playing = search_starts(
                self.worlds,
                starts,
                search,
                player=SearchPlayer(policy, engine, scorer),
                seed=stage.seed,
                slots=min(self.slots, _MAX_SEARCHES),
                trees=_MAX_TREES,
                name=lambda start: trajectory_name(start, stage.name),
            )
            for count, outcome in enumerate(open_.enter_context(closing(playing)), 1):
                stage.store.append(outcome.trajectory)
                log_search(stage.folder, outcome)
                if count % 20 == 0 or count == len(starts):
                    stage.log({"step": count, "of": len(starts), "episodes": count})
                yield outcome.trajectory

    def label(
        self, policy: Policy, data: Sequence[Trajectory], stage: RunStage, *, labeler: LabellingConfig
    ) -> Iterator[tuple[str, list[dict[str, Json]]]]:
        """Labels trajectories by completions of the policy; in order of completion."""
        jobs = (
            labeler.work(
                policy,
                trajectory,
                partial(self._grade_text, trajectory.task),
                seed=sample_seed(stage.seed, trajectory.id),
                slow=self.worlds[trajectory.task.world].run_in_thread,
            )
            for trajectory in data
        )
        with (
            self._lock,
            closing(run_jobs(jobs, self.serve_policy(policy), slots=min(self.slots, _MAX_SEARCHES))) as finished,
        ):
            for count, finished_job in enumerate(finished, 1):
                if finished_job.error is not None:
                    _log.warning("not labeled: %s: %s", data[finished_job.index].id, finished_job.error)
                if count % 20 == 0 or count == len(data):
                    stage.log({"step": count, "of": len(data), "episodes": count})
                yield data[finished_job.index].id, finished_job.value or []

    def _grade_text(self, task: Task, text: str) -> bool | None:
        return graded(self.worlds[task.world], task, text).score.success

    def _engine_of_judge(self, value_model: Policy) -> Engine:
        """Returns the engine of the value model; its computation is counted with the rest."""
        if self._judge_engine is None or self._judge is not value_model:
            self._judge_engine, self._judge = (
                engine_for(value_model, slots=self.slots, engine=self._judge_engine),
                value_model,
            )
            self._judge_engine.usage = self._usage
        return self._judge_engine

    def _make_agent(
        self,
        policy: Policy,
        sampling: Sampling,
        *,
        restrict_to_admissible: bool = False,
        candidate_divisor: CandidateDivisor | None,
    ) -> LanguageAgent | CandidateAgent:
        """Creates an agent that writes its actions (divisor None), or chooses among those that the world lists."""
        if candidate_divisor is not None:
            return CandidateAgent(policy, sampling.temperature, candidate_divisor, self.history)
        return LanguageAgent(
            policy,
            sampling,
            max_tokens=self.max_tokens
            or (REPLY_TOKENS if _pretrained_facts(policy) is None else PRETRAINED_REPLY_TOKENS),
            restrict_to_admissible=restrict_to_admissible,
            history=self.history,
        )

    def _play_starts(
        self,
        agent: LanguageAgent | CandidateAgent,
        starts: Sequence[Start] | BranchedStarts,
        stage: RunStage,
        *,
        horizon: int | None,
        failures: FailureCounts | None = None,
    ) -> Generator[Trajectory, None, None]:
        with self._lock:  # one engine, one store: a practice may play ahead on a thread
            playing = self._play_episodes(agent, starts, stage, horizon=horizon, failures=failures)
            with closing(playing) as trajectories:
                for trajectory in trajectories:
                    stage.store.append(trajectory)
                    yield trajectory

    def _play_episodes(
        self,
        agent: LanguageAgent | CandidateAgent,
        starts: Sequence[Start] | BranchedStarts,
        stage: RunStage,
        *,
        horizon: int | None,
        failures: FailureCounts | None,
    ) -> Generator[Trajectory, None, None]:
        """Plays the starts with the engine of this process; stores nothing."""
        limits = self.limits if horizon is None else replace(self.limits, horizon=horizon)
        with self._lock:
            engine = self.serve_policy(agent.policy)
            playing = collect(
                self.worlds,
                starts,
                agent,
                engine=engine,
                seed=stage.seed,
                slots=self.slots,
                limits=limits,
                name=lambda start: trajectory_name(start, stage.name),
                failures=failures,
            )
            with closing(playing) as trajectories:
                for trajectory in trajectories:
                    if failures is None:
                        self._reported_failures.record(trajectory)
                    yield trajectory
            del playing, trajectories  # with the conversations, whose nodes hold keys and values
            if isinstance(engine, LocalEngine):
                engine.release_unused()

    def train_rl(self, policy: Policy, stage: RunStage, *, spec: RLSpec) -> PolicyTrainer:
        """What plays with a copy of the policy and improves it; its episodes are stored under the stage's name."""
        config, origins = spec.config, BranchOrigins()

        def trains(learning: Policy, objective: Objective, name: str) -> Learner:
            train = self._rl_train_config(learning)
            train = train.model_copy(update={"layout": self._resolve_layout(train.layout, learning)})
            if name != "policy" and config.critic_lr is not None:
                train = train.model_copy(update={"lr": config.critic_lr})
            optimizer = self.optimizer or (RL_OPTIMIZER if _pretrained_facts(learning) is None else OptimizerConfig())
            return Learner(
                learning,
                objective,
                train,
                seed=sample_seed(stage.seed, name),
                optimizer=optimizer,
                parallelism=self.parallelism,
                ranks=self.ranks,
                keeps_whole=True,
            )

        train_config = self._rl_train_config(policy)

        def log(row: Mapping[str, Any]) -> None:
            for name in self._trained:
                self._trained[name] += int(row.get(name, 0))
            if "lr" in row:
                warmup = train_config.warmup_steps
                row = {**row, "lr_reached": min(1.0, int(row["updates"]) / warmup) if warmup else 1.0}
            stage.log(row)
            is_last = row.get("kind") == "practise" and row.get("step") == config.iterations
            if is_last and self._tells_failures and (description := self.failures.describe()):
                _log.warning("%s", description)
            if is_last:
                _warn_of_short_training(train_config, int(row.get("updates", 0)))

        def show(row: Mapping[str, Any]) -> None:
            save_credit(stage.folder.parents[1] / "credit.json", {"stage": stage.name, "arm": stage.arm, **row})

        def shorter(one: Trajectory) -> Sequence[int] | None:
            agent, world = (
                self._make_agent(policy, Sampling(), candidate_divisor=_divisor_of(spec)),
                self.worlds[one.task.world],
            )
            return next_prompt(one, agent, world=world, parents=made.parents)

        keeper = Checkpointer(
            stage.folder / "checkpoints",
            every=config.save_every,
            ranks=self.ranks,
            timeout=max(1.0, (self.parallelism or Parallelism()).timeout),
        )
        made = PolicyTrainer(
            policy,
            spec,
            seed=stage.seed,
            build_learner=trains,
            play=self._make_player(stage, spec, origins),
            checkpointer=keeper,
            log=log,
            save_samples=show if self.ranks.is_leader else None,
            release_player=self._release_engine,
        )
        made.truncate_history = shorter
        return made

    def _make_player(self, stage: RunStage, spec: RLSpec, origins: BranchOrigins) -> PlayFunction:
        """Returns what plays the starts of an iteration; episodes that the stage holds already are not played again."""
        config = spec.config

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
            found = {name: stage.finished[name] for name in names if name in stage.finished}
            todo = [start for start, name in zip(starts, names, strict=True) if name not in found]
            sampling = Sampling(config.temperature, config.top_k)
            agent = self._make_agent(
                playing,
                sampling,
                restrict_to_admissible=config.restrict_to_admissible,
                candidate_divisor=_divisor_of(spec),
            )
            with (
                self._lock,
                closing(
                    self._play_starts(
                        agent, BranchedStarts(todo, origins), here, horizon=horizon, failures=FailureCounts()
                    )
                ) as played,
            ):
                origins.parents, before = parents, origins.replayed  # here: what is played ahead has other parents
                for trajectory in played:
                    if self.failures.record(trajectory) and not self._reported_failures.has_reason_of(trajectory):
                        _log.warning("an episode could not be scored: %s", trajectory.failure)
                    found[trajectory.id] = trajectory
                    while names and names[0] in found:
                        yield found[names.popleft()]
                self._replayed += origins.replayed - before
            yield from (found[name] for name in names)

        return play

    def fit(
        self,
        policy: Policy,
        data: Sequence[Trajectory | TokenSequence],
        stage: RunStage,
        *,
        objective: Objective,
        weight: Callable[[Trajectory], float] | None = None,
        tokens: int | None = None,
        lr_scale: float = 1.0,
    ) -> Policy:
        """Trains a copy of the policy with a fresh optimizer; an interrupted fit resumes from its last checkpoint.

        Parts are learned as they are: weights and columns are their maker's.
        """
        length_settings = {} if tokens is None else {"tokens": tokens, "max_steps": None}
        train = self._train_config(policy)
        config = train.model_copy(update={"lr": train.lr * lr_scale, **length_settings})
        prepared = [training_input for training_input in data if isinstance(training_input, TokenSequence)]
        trajectories = [training_input for training_input in data if isinstance(training_input, Trajectory)]
        flattened = flatten(
            trajectories,
            policy.dialect,
            instructions=self._instructions,
            weight=weight,
            context=policy.context,
            render=self._render_step,
        )
        for problem in flattened.refused:
            _log.warning("not learned: %s", problem)
        if flattened.refused:
            stage.log({"refused": len(flattened.refused)})
        self._release_engine(only_idle=True)
        learner = Learner(
            policy.clone(),
            objective,
            config,
            seed=stage.seed,
            parallelism=self.parallelism,
            ranks=self.ranks,
            keeps_whole=True,
        )

        def note(metrics: UpdateMetrics) -> None:
            stage.log(metrics.as_row())

        keeper = Checkpointer(stage.folder / "checkpoints", ranks=self.ranks)
        report = learner.fit([*prepared, *flattened.sequences], checkpoint=keeper, on_update=note)
        learner.sync_whole()
        self._trained["trained"] += report.tokens
        self._trained["fed"] += report.fed
        return learner.policy.next_version()

    def evaluate(
        self,
        policy: Policy,
        stage: RunStage,
        *,
        split: str | None = None,
        search: SearchConfig | None = None,
        value_model: Policy | None = None,
    ) -> tuple[list[Evaluation], list[JsonObject]]:
        """Plays the panel, or that of another split, or with a search; every episode is stored."""
        panel = self.panel
        with self._lock, stage.exclusive():  # what a practice plays ahead meanwhile is not this measurement's
            starts = panel_starts(self.worlds, split=split or panel.split, tiers=panel.tiers, limit=panel.limit)
            episodes = dict(stage.finished)
            remaining_starts = [start for start in starts if trajectory_name(start, stage.name) not in episodes]
            computed_before = self.usage()["computed"] - read_stage_cost(stage.folder).get(
                "computed", 0
            )  # of interrupted tries
            playing = (
                self.collect(policy, remaining_starts, stage, temperature=panel.temperature)
                if search is None
                else self.search(policy, remaining_starts, stage, search=search, value_model=value_model)
            )
            for trajectory in playing:
                episodes[trajectory.id] = trajectory
            computed = round(self.usage()["computed"] - computed_before)
        ordered = [episodes[trajectory_name(start, stage.name)] for start in starts]
        rows = summarize_outcomes(ordered, computed=computed)
        examples_by_panel: dict[tuple[str, str], list[Trajectory]] = {}
        for trajectory in ordered:
            examples = examples_by_panel.setdefault((trajectory.task.world, trajectory.task.tier), [])
            if len(examples) < panel.examples:
                examples.append(trajectory)
        return rows, [
            self._make_example(policy, trajectory) for examples in examples_by_panel.values() for trajectory in examples
        ]

    def _make_example(self, policy: Policy, trajectory: Trajectory) -> dict[str, Any]:
        word = policy.tokenizer.convert_ids_to_tokens
        return example_row(trajectory, instructions=self._instructions(trajectory.task), word=lambda at: str(word(at)))

    def serve_policy(self, policy: Policy) -> Engine:
        """Returns the one engine serving this policy: an engine that shares prefixes, where its model allows it."""
        if self._engine is None or self._served_policy is not policy:
            self._engine, self._served_policy = self._update_engine(lower_precision(policy, self.rollout_dtype)), policy
            self._engine.usage = self._usage
        return self._engine

    def _update_engine(self, policy: Policy) -> Engine:
        engine, self._engine = self._engine, None  # one that fails to sync is not used again
        try:
            if not isinstance(engine, LocalEngine):
                return LocalEngine(policy, slots=self.slots, memory_bytes=self.engine_bytes)
            engine.sync(policy)
        except ConfigError as problem:
            _log.warning("prefixes are not shared: %s", problem)
            return RecomputeEngine(policy, slots=min(self.slots, _RECOMPUTE_SLOTS))
        return engine

    def _release_engine(self, *, only_idle: bool = False) -> None:
        """Releases what the engine holds for a policy whose weights are about to be replaced; a busy one stays.

        Args:
            only_idle: whether an engine stays as it is while somebody holds one of its nodes.
        """
        if not self._lock.acquire(blocking=False):
            return  # another thread plays
        try:
            engine = self._engine
            if isinstance(engine, LocalEngine) and not engine.pending() and (engine.is_idle or not only_idle):
                engine.release()
        finally:
            self._lock.release()

    def _train_config(self, policy: Policy) -> TrainConfig:
        """Returns the settings of imitation; what nobody set follows from a pretrained policy."""
        facts, config = _pretrained_facts(policy), self.train or TrainConfig()
        if facts is None:
            return config
        layout = self._resolve_layout(config.layout, policy)  # the instructions of episodes are read once
        return fill_settings(config, train_settings(facts)).model_copy(update={"layout": layout})

    def _resolve_layout(self, layout: Layout, policy: Policy) -> Layout:
        """Returns the layout of rows; ranks that share a matrix product or are stages have rows of one shape."""
        if self.ranks.mesh.tp * self.ranks.mesh.pp > 1:
            return layout
        return resolve_rl_layout(layout, policy.model)

    def _rl_train_config(self, policy: Policy) -> TrainConfig:
        """Returns the settings of reinforcement learning; what nobody set follows from a pretrained policy."""
        facts, config = _pretrained_facts(policy), self.rl_train or self.train
        if facts is None:
            return config or RL_TRAIN
        settings = rl_settings(facts)
        return RL_TRAIN.model_copy(update=settings) if config is None else fill_settings(config, settings)

    def settings(self) -> dict[str, StageSettings]:
        """Returns the settings that the result of each verb depends on besides its arguments, for `Run`."""
        flags = f"{' choose' * self.restrict_to_admissible}{' deciding' * self.action_level}"
        divisor = (self.candidate_divisor,) if self.action_level and self.candidate_divisor != "words" else ()
        flags += "".join(f" {name}" for name in divisor)
        max_tokens = self.max_tokens or REPLY_TOKENS  # that of a pretrained policy follows from the policy
        acting = f"{max_tokens} {self.history.name} {version_1_text(self.limits)}{flags}"
        prompts = {
            name: world.instructions.digest
            for name, world in self.worlds.items()
            if isinstance(world.instructions, Instructions)
        }
        acting += f" {canonical_json(prompts)}" if prompts else ""
        values = (
            max_tokens,
            self.history.name,
            self.limits,
            self.restrict_to_admissible,
            self.action_level,
            *divisor,
            *([prompts] if prompts else []),
        )
        lowered = () if self.rollout_dtype is None else (self.rollout_dtype,)
        train = self.train or TrainConfig()
        learning = (self.rl_train or self.train or RL_TRAIN, self.optimizer or RL_OPTIMIZER)
        return {
            "collect": StageSettings((*values, *lowered), " ".join([acting, *lowered])),
            "fit": StageSettings(
                (train, *([prompts] if prompts else [])),  # experts' episodes are read behind the instructions
                " ".join([version_1_text(train), *([canonical_json(prompts)] if prompts else [])]),
            ),
            "evaluate": StageSettings(
                (*values, self.panel, *lowered), " ".join([acting, version_1_text(self.panel), *lowered])
            ),
            "practise": StageSettings(
                (*values, *learning, *lowered), " ".join([acting, *map(version_1_text, learning), *lowered])
            ),
        }

    def save(self, policy: Policy, folder: Path) -> None:
        policy.save(folder)

    def load(self, folder: Path) -> Policy:
        return load_policy(folder, context=self.placement.context, device=self.placement.device)

    def origin(self, policy: Policy) -> str:
        return policy_digest(policy)

    def usage(self) -> Mapping[str, int]:
        counted = ("generated", "computed", "recomputed", "padded", "shared")
        counts = {name: getattr(self._usage, name) for name in counted}
        return {**counts, **self._trained, "replayed": self._replayed}

    def _render_step(self, task: Task, step: Step) -> str:
        return self.worlds[task.world].grammar.render(Parsed(str(step.action), step.thought))

    def _instructions(self, task: Task) -> str:
        return self.worlds[task.world].instructions


def lower_precision(policy: Policy, dtype: RolloutDtype | None) -> Policy:
    """Returns a copy of a policy whose weights have fewer bits; the policy itself where no dtype is named.

    "int8": every matrix is rounded to 8 bits with a scale per row, as `models.quantized` writes it; forward passes
    compute in the dtype that the policy has.
    """
    if dtype is None:
        return policy
    lowered = policy.clone()
    with torch.no_grad():
        for weight in lowered.model.parameters():
            if dtype == "bfloat16":
                weight.data = weight.data.to(torch.bfloat16)
            elif weight.dim() > 1:
                scale = (weight.abs().amax(-1, keepdim=True) / 127).clamp(min=1e-12)
                weight.data = (weight / scale).round_().clamp_(-128, 127).mul_(scale)
    return lowered


def policy_digest(policy: Policy) -> str:
    """Returns a digest of a policy: its vocabulary, dialect, context and weights."""
    vocabulary = policy.tokenizer.get_vocab()
    history = ["template"] if isinstance(policy.dialect, Chat) and policy.dialect.renders_past else []
    digest = hashlib.sha256(canonical_json([policy.dialect.name, policy.context, vocabulary, *history]).encode())
    head = policy.value_head.state_dict() if policy.value_head is not None else {}
    weights = {name: tensor for name, tensor in policy.model.state_dict().items() if not name.startswith("value_head.")}
    weights |= {f"value_head.{name}": tensor for name, tensor in head.items()}
    for name, weight in sorted(weights.items()):
        digest.update(canonical_json([name, str(weight.dtype), list(weight.shape)]).encode())
        digest.update(weight.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    return digest.hexdigest()[:24]


def _divisor_of(spec: RLSpec) -> CandidateDivisor | None:
    """Returns the divisor of listed actions; None where actions are written."""
    return spec.candidate_divisor if spec.action_level else None


def _pretrained_facts(policy: Policy) -> ModelFacts | None:
    """Returns the facts of a pretrained policy; None for a small one, whose settings are the defaults."""
    if isinstance(policy.dialect, Words):
        return None
    has_adapter = kind_of(policy.model) is not None
    facts = ModelFacts.of_model(policy.parameters(), policy.dialect.name, has_adapter=has_adapter)
    return facts if facts.is_pretrained else None


def _warn_of_short_training(config: TrainConfig, updates: int) -> None:
    """Tells that the learning rate never reached its value, because the warm-up was longer than the training."""
    if 0 < updates < config.warmup_steps:
        reached = f"{updates / config.warmup_steps:.0%} of {config.lr:g}"
        warmup = f"warm-up takes {config.warmup_steps} updates, and there were {updates}"
        _log.warning("the learning rate only reached %s: %s. Lower warmup_steps, or train longer", reached, warmup)


def log_search(folder: Path, outcome: SearchOutcome) -> None:
    """Writes the cost and result of a search, and its tree if present, to the files of its stage."""
    costs = {name: round(value, 4) for name, value in asdict(outcome.spent).items()}
    row = {
        "id": outcome.trajectory.id,
        "success": outcome.trajectory.success,
        "passed": outcome.passed,
        "spent": costs,
        "ended_by": outcome.ended_by,
        "dropped": outcome.dropped,
        "answers": [dict(answer_row) for answer_row in outcome.answers[:16]],
    }
    append_line(folder / "searches.jsonl", row, durable=False)
    if outcome.tree:
        append_line(folder / "trees.jsonl", {"id": outcome.trajectory.id, **outcome.tree}, durable=False)


def save_credit(path: Path, row: Mapping[str, object]) -> None:
    """Writes a row (`rl/diagnostics.py`) to the file and replaces the row of the same stage and iteration."""
    rows: Any = None
    with suppress(OSError, ValueError):  # no file yet, or one that is damaged: it is for people to look at
        rows = json.loads(path.read_text(encoding="utf-8"))
    same = (row.get("stage"), row.get("iteration"))
    valid_rows = [credit_row for credit_row in rows if isinstance(credit_row, dict)] if isinstance(rows, list) else []
    other_rows = [
        credit_row for credit_row in valid_rows if (credit_row.get("stage"), credit_row.get("iteration")) != same
    ]
    write_atomic(path, plain_json([*other_rows, row]))


def local_run(
    folder: Path | str,
    worlds: World | Sequence[World],
    *,
    seed: int = 0,
    train: TrainConfig | None = None,
    panel: EvaluationPanel | None = None,
    slots: int = 192,
    max_tokens: int | None = None,
    device: str = "cpu",
    context: ContextSetting = "auto",
) -> Run[Policy]:
    """Creates a run in this process over these worlds. Use it in a `with` statement.

    Args:
        folder: folder of the run; a run that it holds already is resumed.
        worlds: one world, or several with unique names.
        seed: seed of everything that the run draws.
        train: settings of the learner; None: those that fit the policy (`models.defaults`).
        panel: tasks of evaluations; None: the defaults.
        slots: maximum number of simultaneous episodes.
        max_tokens: maximum tokens of an action; None: 32, or 64 where the policy is pretrained.
        device: where policies of an earlier session run when a run is resumed. A policy that you pass runs where it is
            (`load_policy(folder, device="cuda")`).
        context: the context with which they are loaded, see `load_policy`; pass that of your policy.

    >>> import tempfile
    >>> from evolvent import Lookup
    >>> with local_run(tempfile.mkdtemp(), [Lookup()], seed=3) as run:
    ...     run.seed
    3
    """
    backend = LocalBackend(
        {world.name: world for world in (worlds if isinstance(worlds, Sequence) else [worlds])},
        train,
        panel or EvaluationPanel(),
        slots,
        max_tokens,
        placement=Placement(device, context=context),
    )
    return Run(folder, backend, seed=seed, settings=backend.settings(), method="python")
