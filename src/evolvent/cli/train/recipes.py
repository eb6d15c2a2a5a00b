"""The recipes of `evolvent train`: their settings, and how data become token sequences and an objective."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from evolvent.cli.setup.registry import check_named_inputs
from evolvent.cli.setup.registry import resolve_policy as policy_named
from evolvent.cli.setup.settings import ModelConfig, WorldsConfig
from evolvent.cli.train.data import EpisodeSummary, holds_episodes, read_data_rows, read_episodes
from evolvent.engine.replies import RECORDED_WORLD
from evolvent.errors import ConfigError, Problem
from evolvent.learn.preferences import add_returns, append_outcome_readout, append_readout, build_pairs
from evolvent.learn.rows import ReadingConfig, read_rows, read_trajectories
from evolvent.learn.settings import CheckpointConfig, OptimizerConfig, Parallelism, TrainConfig
from evolvent.learn.sources import vocabulary_digest
from evolvent.learn.token_sequences import TokenSequence
from evolvent.learn.windows import Intake
from evolvent.models.adapters import AdapterConfig
from evolvent.models.placement import Placement
from evolvent.models.policy import Policy
from evolvent.store.exchange import IMPORTED_VERSIONS
from evolvent.trajectory import Task, Trajectory
from evolvent.worlds.base import Parsed, World

if TYPE_CHECKING:
    import torch

    from evolvent.learn.objectives import Objective
    from evolvent.trajectory import Step

__all__ = ["RECIPES", "PreparedTraining", "RecipeConfig", "RecipeInputs"]

DataForm = Literal["episodes", "rows", "either"]


class RecipeConfig(ModelConfig, WorldsConfig):
    """Settings that all recipes share.

    Attributes:
        form: the accepted form of the data.
    """

    form: ClassVar[DataForm] = "either"

    data: Path = Field(
        description="a run, episodes exported as jsonl, a file of rows (JSON, Parquet, CSV: see docs/data.md), a .txt "
        "file, or a folder of a Hugging Face data set"
    )
    policy: str = Field(
        default="xs", description="what to begin with: a size, a model (folder, GGUF file, name), or a run"
    )
    output_dir: Path | None = Field(default=None, description="folder of the run; none: the next runs/train-N")
    context: int | None = Field(default=None, ge=2, description="longest sequence in tokens; none: the policy's")
    overlong: Literal["refuse", "truncate", "split"] = Field(
        default="refuse", description="what becomes of longer ones"
    )
    seed: int = Field(default=0, ge=0, description="all randomness derives from it")
    threads: int = Field(default=1, ge=1, description="threads of torch in every rank")
    train: TrainConfig = Field(default_factory=TrainConfig, description="the learner")
    optimizer: OptimizerConfig = Field(default_factory=OptimizerConfig, description="the optimizer")
    adapter: AdapterConfig = Field(default_factory=AdapterConfig, description="what is learned instead of all weights")
    parallel: Parallelism = Field(default_factory=Parallelism, description="how the model is laid over processes")
    keep: CheckpointConfig = Field(default_factory=CheckpointConfig, description="checkpoints and snapshots")

    def check_inputs(self) -> None:
        """Checks that the data and the policy exist; raises what `check_named_inputs` raises."""
        check_named_inputs(self.policy, self.data)

    def make_reading_config(self) -> ReadingConfig:
        """Returns the settings by which rows become sequences."""
        return ReadingConfig(kind="messages", context=self.context, overlong=self.overlong)

    def check_episodes(self, summaries: Sequence[EpisodeSummary]) -> Problem | None:
        """Checks the successful episodes; returns the reason why nothing can be learned from them, else None."""
        return (
            None
            if summaries
            else Problem("data", f"{self.data} does not hold a successful episode", "collect episodes first")
        )

    def prepare(self, inputs: RecipeInputs) -> PreparedTraining:
        """Prepares the objective and the function that makes the sequences."""
        raise NotImplementedError


@dataclass(frozen=True)
class RecipeInputs:
    """The inputs of a recipe: the policy (not adapted yet), the worlds by name, and the device to compute on."""

    policy: Policy
    worlds: Mapping[str, World]
    device: torch.device

    def instructions(self, task: Task) -> str:
        """Returns the instructions that the agent reads first in a world."""
        return "" if task.world == RECORDED_WORLD else self.worlds[task.world].instructions

    def is_conversation(self, task: Task) -> bool:
        """Returns whether an episode is an imported conversation of a world that is not known here."""
        return task.version in IMPORTED_VERSIONS and task.world not in self.worlds

    def render_step(self, task: Task, step: Step) -> str:
        """Returns the text of an agent for a step that no model wrote."""
        if task.world == RECORDED_WORLD:
            return str(step.action)
        return self.worlds[task.world].grammar.render(Parsed(str(step.action), step.thought))

    @property
    def end_token(self) -> int:
        """Returns the token that ends a read-out."""
        tokenizer = self.policy.tokenizer
        return int(tokenizer.eos_token_id if tokenizer.eos_token_id is not None else len(tokenizer) - 1)


@dataclass(frozen=True)
class PreparedTraining:
    """The objective of a training and its data.

    Attributes:
        objective: the objective.
        make_sequences: reads the data once and counts the refused rows.
        extra_settings: further settings that the data depend on.
    """

    objective: Objective
    make_sequences: Callable[[Intake], Iterable[TokenSequence]]
    extra_settings: str = ""


class SftConfig(RecipeConfig):
    """Settings of supervised fine-tuning: the policy imitates episodes and conversations."""

    threshold: float | None = Field(default=0.99, description="learn episodes above this reward; none: all of them")

    def check_episodes(self, summaries: Sequence[EpisodeSummary]) -> Problem | None:
        if not summaries or any(self._is_above_threshold(summary.score) for summary in summaries):
            return super().check_episodes(summaries)
        message = f"{self.data} does not hold an episode with a reward above {self.threshold}"
        return Problem("data", message, "lower --threshold, or collect more")

    def read_demonstrations(self, inputs: RecipeInputs, intake: Intake) -> Iterator[TokenSequence]:
        """Yields the sequences of episodes above the threshold, or of conversations.

        Imported episodes have no score and are accepted as they are.
        """
        if not holds_episodes(self.data):
            return read_rows(
                read_data_rows(self.data, intake), inputs.policy, self.make_reading_config(), intake=intake
            )
        return _read_sequences(
            self, inputs, None, intake, is_selected=lambda trajectory: self._is_above_threshold(trajectory.score.unit)
        )

    def prepare(self, inputs: RecipeInputs) -> PreparedTraining:
        from evolvent.learn.objectives import weighted_nll

        return PreparedTraining(weighted_nll, partial(self.read_demonstrations, inputs), str(self.threshold))

    def _is_above_threshold(self, score: float | None) -> bool:
        return self.threshold is None or score is None or score > self.threshold


class PretrainConfig(RecipeConfig):
    """Settings of pre-training: every token of raw text is learned."""

    form: ClassVar[DataForm] = "rows"

    overlap: int = Field(default=0, ge=0, description="tokens of the window before that a window begins with")
    join: bool = Field(default=True, description="join documents and cut them into blocks of the context")

    def make_reading_config(self) -> ReadingConfig:
        overlong = self.overlong if self.overlong != "refuse" or self.join else "split"
        return ReadingConfig(kind="text", context=self.context, overlong=overlong, overlap=self.overlap, join=self.join)

    def prepare(self, inputs: RecipeInputs) -> PreparedTraining:
        from evolvent.learn.objectives import weighted_nll

        def make_sequences(intake: Intake) -> Iterator[TokenSequence]:
            return read_rows(
                read_data_rows(self.data, intake), inputs.policy, self.make_reading_config(), intake=intake
            )

        return PreparedTraining(weighted_nll, make_sequences)


class PairsConfig(RecipeConfig):
    """Settings of recipes that learn from pairs of a better and a worse reply, or of episodes of one task."""

    most: int = Field(default=4, ge=1, description="pairs of episodes of one task or group")
    margin: float = Field(default=0.0, ge=0, description="scores that differ by no more than this are a tie")

    def make_reading_config(self) -> ReadingConfig:
        return ReadingConfig(kind="pairs", context=self.context, overlong=self.overlong)

    def check_episodes(self, summaries: Sequence[EpisodeSummary]) -> Problem | None:
        groups = defaultdict(list)
        for summary in summaries:
            if summary.score is not None:
                groups[summary.group].append(summary.score)
        if not summaries or any(max(scores) - min(scores) > self.margin for scores in groups.values()):
            return super().check_episodes(summaries)
        message = (
            f"{len(summaries)} episodes of {self.data} do not form a pair: all episodes of each task are equally good"
        )
        return Problem("data", message, "collect several samples per task with --samples 4")

    def read_pairs(self, inputs: RecipeInputs, intake: Intake) -> Iterator[TokenSequence]:
        """Yields chosen, rejected, chosen, rejected, ..."""
        if not holds_episodes(self.data):
            yield from read_rows(
                read_data_rows(self.data, intake), inputs.policy, self.make_reading_config(), intake=intake
            )
            return
        pair_set = build_pairs(
            read_episodes(self.data),
            inputs.policy.dialect,
            instructions=inputs.instructions,
            context=self.context or inputs.policy.context,
            max_per_group=self.most,
            margin=self.margin,
            seed=self.seed,
            render=inputs.render_step,
            is_conversation=inputs.is_conversation,
        )
        for problem in pair_set.refused:
            intake.refuse(problem.where, ConfigError([problem]))
        intake.rows += len(pair_set.sequences) // 2
        yield from pair_set.sequences


class DpoConfig(PairsConfig):
    """Settings of preference learning, with the initial policy as the reference."""

    beta: float = Field(default=0.1, gt=0, description="how strongly the policy is held to the reference")
    kind: Literal["sigmoid", "ipo"] = Field(default="sigmoid", description="the loss of a pair")
    smoothing: float = Field(default=0.0, ge=0, lt=0.5, description="how often a label is taken to be wrong (sigmoid)")
    sft: float = Field(default=0.0, ge=0, description="this times the chosen side's likelihood is learned too")

    def prepare(self, inputs: RecipeInputs) -> PreparedTraining:
        from evolvent.learn.annotate import annotate
        from evolvent.learn.objectives import dpo_objective

        digest = vocabulary_digest(inputs.policy.tokenizer)

        def make_sequences(intake: Intake) -> Iterator[TokenSequence]:
            inputs.policy.model.to(inputs.device)
            return annotate(inputs.policy, self.read_pairs(inputs, intake), vocabulary=digest)

        objective = dpo_objective(beta=self.beta, kind=self.kind, smoothing=self.smoothing, sft=self.sft)
        return PreparedTraining(objective, make_sequences, f"reference {self.policy} {self.most} {self.margin}")


class RewardConfig(PairsConfig):
    """Settings of a value head on the state after an episode or reply, from pairs or from scores."""

    kind: Literal["pairs", "scores"] = Field(default="pairs", description="which side is better; or an episode's score")

    def check_episodes(self, summaries: Sequence[EpisodeSummary]) -> Problem | None:
        return super().check_episodes(summaries) if self.kind == "pairs" else _check_scores(self.data, summaries)

    def prepare(self, inputs: RecipeInputs) -> PreparedTraining:
        from evolvent.learn.objectives import outcome, reward_pairs_objective

        if self.kind == "scores":
            add_readout = partial(append_outcome_readout, token=inputs.end_token)
            return PreparedTraining(outcome, partial(_read_sequences, self, inputs, add_readout), "scores")

        def make_sequences(intake: Intake) -> Iterator[TokenSequence]:
            return (append_readout(sequence, token=inputs.end_token) for sequence in self.read_pairs(inputs, intake))

        return PreparedTraining(reward_pairs_objective(), make_sequences, f"pairs {self.most} {self.margin}")


class ValueConfig(RecipeConfig):
    """Settings of a value head on every written token, from the remaining returns of episodes."""

    form: ClassVar[DataForm] = "episodes"

    discount: float = Field(default=1.0, gt=0, le=1, description="of later rewards, for each environment step")
    huber: float | None = Field(default=None, gt=0, description="errors beyond it count linearly; none: none do")

    def check_episodes(self, summaries: Sequence[EpisodeSummary]) -> Problem | None:
        return _check_scores(self.data, summaries)

    def prepare(self, inputs: RecipeInputs) -> PreparedTraining:
        from evolvent.learn.objectives import value_objective

        append_returns = partial(add_returns, discount=self.discount)
        return PreparedTraining(
            value_objective(huber=self.huber),
            partial(_read_sequences, self, inputs, append_returns),
            f"returns {self.discount}",
        )


class DistillConfig(SftConfig):
    """Settings of distillation: the policy learns a teacher's distribution over the next token."""

    teacher: str = Field(default="", description="a model folder or a run, with the same tokenizer")
    top: int = Field(default=32, ge=1, description="how many of the teacher's likeliest words are kept a token")
    temperature: float = Field(default=1.0, gt=0, description="of both distributions")
    share: float = Field(default=1.0, gt=0, le=1, description="of the divergence; the rest is likelihood")

    def prepare(self, inputs: RecipeInputs) -> PreparedTraining:
        from evolvent.learn.annotate import annotate
        from evolvent.learn.objectives import distill_objective

        digest, num_teacher_tokens = (
            vocabulary_digest(inputs.policy.tokenizer),
            min(self.top, len(inputs.policy.tokenizer)),
        )

        def make_sequences(intake: Intake) -> Iterator[TokenSequence]:
            teacher = policy_named(self.teacher, [], seed=self.seed, placement=Placement(dtype=self.dtype))
            if vocabulary_digest(teacher.tokenizer) != digest:
                sizes = f"{len(teacher.tokenizer):,} and {len(inputs.policy.tokenizer):,} tokens"
                message = f"tokenizer of {self.teacher} differs from {self.policy}: {sizes}"
                raise ConfigError([Problem("teacher", message, "choose a teacher with the same vocabulary")])
            teacher.model.to(inputs.device)
            return annotate(
                teacher, self.read_demonstrations(inputs, intake), vocabulary=digest, teacher_k=num_teacher_tokens
            )

        objective = distill_objective(temperature=self.temperature, share=self.share)
        return PreparedTraining(
            objective, make_sequences, f"{self.threshold} teacher {self.teacher} {num_teacher_tokens}"
        )


RECIPES: dict[str, tuple[type[RecipeConfig], str]] = {
    "sft": (SftConfig, "Supervised fine-tuning (SFT) on episodes or conversations."),
    "pretrain": (PretrainConfig, "Continue pre-training on raw text."),
    "dpo": (DpoConfig, "Preference optimization from pairs (DPO, IPO)."),
    "reward": (RewardConfig, "Train a reward model: a scalar head on the policy."),
    "value": (ValueConfig, "Train a value head on the returns of episodes."),
    "distill": (DistillConfig, "Distill a teacher's token distributions on recorded data."),
}


def _check_scores(data: Path, summaries: Sequence[EpisodeSummary]) -> Problem | None:
    if any(summary.score is not None for summary in summaries):
        return None
    return Problem("data", f"{data} does not hold a scored episode", "pass a run with scored episodes")


def _read_sequences(
    config: RecipeConfig,
    inputs: RecipeInputs,
    transform: Callable[[Trajectory, TokenSequence], TokenSequence] | None,
    intake: Intake,
    *,
    is_selected: Callable[[Trajectory], bool] | None = None,
) -> Iterator[TokenSequence]:
    return read_trajectories(
        filter(is_selected, read_episodes(config.data)) if is_selected else read_episodes(config.data),
        inputs.policy,
        config.make_reading_config(),
        instructions=inputs.instructions,
        render=inputs.render_step,
        transform=transform,
        is_conversation=inputs.is_conversation,
        intake=intake,
    )
