"""The recipes of `evolvent train`: what each asks for, and how data become its parts and its objective."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field

from evolvent.cli.registry import policy as policy_named
from evolvent.cli.settings import OverWorlds
from evolvent.cli.training_data import Seen, episodes, holds_episodes, rows
from evolvent.errors import ConfigError, Problem
from evolvent.learn.annotate import annotate
from evolvent.learn.learner import TrainConfig
from evolvent.learn.objectives import Objective, distill, dpo, outcome, reward_pairs, value, weighted_nll
from evolvent.learn.optim.make import OptimizerConfig
from evolvent.learn.parallel.mesh import Parallelism
from evolvent.learn.preferences import outcome_readout, pairs, readout, with_returns
from evolvent.learn.rows import Reading, read_rows, read_trajectories
from evolvent.learn.sources import vocabulary_digest
from evolvent.learn.token_sequences import Parts
from evolvent.learn.windows import Intake
from evolvent.models.adapters import AdapterConfig
from evolvent.models.policy import Policy
from evolvent.scale.training import Keeping
from evolvent.trajectory import Task, Trajectory
from evolvent.worlds.base import World
from evolvent.worlds.grammar import Parsed

__all__ = ["RECIPES", "Given", "Prepared", "Recipe"]

Form = Literal["episodes", "rows", "either"]


class Recipe(OverWorlds):
    """What every recipe can be told.

    Attributes:
        form: what its data may be.
    """

    form: ClassVar[Form] = "either"

    data: Path = Field(
        description="a run, episodes exported as jsonl, JSON lines, a .txt file, or a folder of a Hugging Face data set"
    )
    policy: str = Field(default="xs", description="what to begin with: a size, a model folder, or a run")
    to: Path | None = Field(default=None, description="folder of the run; none: the next runs/train-N")
    context: int | None = Field(default=None, ge=2, description="longest sequence in tokens; none: the policy's")
    too_long: Literal["refuse", "truncate", "split"] = Field(
        default="refuse", description="what becomes of longer ones"
    )
    seed: int = Field(default=0, ge=0, description="all randomness derives from it")
    threads: int = Field(default=1, ge=1, description="threads of torch in every rank")
    device: Literal["cpu", "cuda"] = Field(default="cpu", description="where the model is trained")
    train: TrainConfig = Field(default_factory=TrainConfig, description="the learner")
    optimizer: OptimizerConfig = Field(default_factory=OptimizerConfig, description="the optimizer")
    adapter: AdapterConfig = Field(default_factory=AdapterConfig, description="what is learned instead of all weights")
    parallel: Parallelism = Field(default_factory=Parallelism, description="how the model is laid over processes")
    keep: Keeping = Field(default_factory=Keeping, description="checkpoints and snapshots")

    def reading(self) -> Reading:
        """How rows become sequences."""
        return Reading(kind="messages", context=self.context, too_long=self.too_long)

    def lacking(self, seen: Sequence[Seen]) -> Problem | None:
        """Why there is nothing to learn in these episodes, which did not fail; None where there is something."""
        return None if seen else Problem("data", f"{self.data} holds no episode that ended well", "collect some")

    def prepare(self, given: Given) -> Prepared:
        """The objective, and what makes the parts."""
        raise NotImplementedError


@dataclass(frozen=True)
class Given:
    """What a recipe works with: the policy (not adapted yet), the worlds by name, and the device to compute on."""

    policy: Policy
    worlds: Mapping[str, World]
    device: torch.device

    def instructions(self, task: Task) -> str:
        """What the agent is told first in a world."""
        return self.worlds[task.world].instructions

    def text(self, task: Task, step: Any) -> str:
        """What an agent writes for a step that no model wrote."""
        return self.worlds[task.world].grammar.render(Parsed(str(step.action), step.thought))

    @property
    def end(self) -> int:
        """A token that ends what is read out."""
        tokenizer = self.policy.tokenizer
        return int(tokenizer.eos_token_id if tokenizer.eos_token_id is not None else len(tokenizer) - 1)


@dataclass(frozen=True)
class Prepared:
    """What is learned, and how. `made` reads the data once, counting what it refuses; `also` is what else it reads."""

    objective: Objective
    made: Callable[[Intake], Iterable[Parts]]
    also: str = ""


class Sft(Recipe):
    """Episodes and conversations are imitated."""

    threshold: float | None = Field(default=0.99, description="learn episodes above this reward; none: all of them")

    def lacking(self, seen: Sequence[Seen]) -> Problem | None:
        if not seen or any(self._chosen(one.score) for one in seen):
            return super().lacking(seen)
        what = f"{self.data} holds no episode to learn above the reward {self.threshold}"
        return Problem("data", what, "lower --threshold, or collect more")

    def imitated(self, given: Given, intake: Intake) -> Iterator[Parts]:
        """Episodes above the threshold, or conversations. Imported episodes have no score and are taken as they are."""
        if not holds_episodes(self.data):
            return read_rows(rows(self.data, intake), given.policy, self.reading(), intake=intake)
        return _flattened(self, given, None, intake, chosen=lambda t: self._chosen(t.score.unit))

    def prepare(self, given: Given) -> Prepared:
        return Prepared(weighted_nll, partial(self.imitated, given), str(self.threshold))

    def _chosen(self, score: float | None) -> bool:
        return self.threshold is None or score is None or score > self.threshold


class Pretrain(Recipe):
    """Raw text is learned, every token of it."""

    form: ClassVar[Form] = "rows"

    overlap: int = Field(default=0, ge=0, description="tokens of the window before that a window begins with")
    join: bool = Field(default=True, description="join documents and cut them into blocks of the context")

    def reading(self) -> Reading:
        split = self.too_long if self.too_long != "refuse" or self.join else "split"
        return Reading(kind="text", context=self.context, too_long=split, overlap=self.overlap, join=self.join)

    def prepare(self, given: Given) -> Prepared:
        def made(intake: Intake) -> Iterator[Parts]:
            return read_rows(rows(self.data, intake), given.policy, self.reading(), intake=intake)

        return Prepared(weighted_nll, made)


class OfPairs(Recipe):
    """Pairs of a better and a worse reply, or of episodes of one task."""

    most: int = Field(default=4, ge=1, description="pairs of episodes of one task or group")
    margin: float = Field(default=0.0, ge=0, description="scores that differ by no more than this are a tie")

    def reading(self) -> Reading:
        return Reading(kind="pairs", context=self.context, too_long=self.too_long)

    def lacking(self, seen: Sequence[Seen]) -> Problem | None:
        groups = defaultdict(list)
        for one in seen:
            if one.score is not None:
                groups[one.group].append(one.score)
        if not seen or any(max(scores) - min(scores) > self.margin for scores in groups.values()):
            return super().lacking(seen)
        what = f"{len(seen)} episodes of {self.data} make no pair: none of one task is better than another"
        return Problem("data", what, "collect several of each task: --samples 4")

    def both(self, given: Given, intake: Intake) -> Iterator[Parts]:
        """Chosen, rejected, chosen, rejected, ..."""
        if not holds_episodes(self.data):
            yield from read_rows(rows(self.data, intake), given.policy, self.reading(), intake=intake)
            return
        found = pairs(
            episodes(self.data),
            given.policy.dialect,
            instructions=given.instructions,
            context=self.context or given.policy.context,
            most=self.most,
            margin=self.margin,
            seed=self.seed,
            render=given.text,
        )
        for problem in found.refused:
            intake.refuse(problem.where, ConfigError([problem]))
        intake.rows += len(found.parts) // 2
        yield from found.parts


class Dpo(OfPairs):
    """Preferences, held to the policy that training begins with."""

    beta: float = Field(default=0.1, gt=0, description="how strongly the policy is held to the reference")
    kind: Literal["sigmoid", "ipo"] = Field(default="sigmoid", description="the loss of a pair")
    smoothing: float = Field(default=0.0, ge=0, lt=0.5, description="how often a label is taken to be wrong (sigmoid)")
    sft: float = Field(default=0.0, ge=0, description="this times the chosen side's likelihood is learned too")

    def prepare(self, given: Given) -> Prepared:
        digest = vocabulary_digest(given.policy.tokenizer)

        def made(intake: Intake) -> Iterator[Parts]:
            given.policy.model.to(given.device)
            return annotate(given.policy, self.both(given, intake), vocabulary=digest)

        objective = dpo(beta=self.beta, kind=self.kind, smoothing=self.smoothing, sft=self.sft)
        return Prepared(objective, made, f"reference {self.policy} {self.most} {self.margin}")


class Reward(OfPairs):
    """A value head on the state after an episode or reply, from pairs or from scores."""

    kind: Literal["pairs", "scores"] = Field(default="pairs", description="which side is better; or an episode's score")

    def lacking(self, seen: Sequence[Seen]) -> Problem | None:
        return super().lacking(seen) if self.kind == "pairs" else _unscored(self.data, seen)

    def prepare(self, given: Given) -> Prepared:
        if self.kind == "scores":
            then = partial(outcome_readout, token=given.end)
            return Prepared(outcome, partial(_flattened, self, given, then), "scores")

        def made(intake: Intake) -> Iterator[Parts]:
            return (readout(parts, token=given.end) for parts in self.both(given, intake))

        return Prepared(reward_pairs(), made, f"pairs {self.most} {self.margin}")


class Value(Recipe):
    """A value head on every written token, from what episodes still earned."""

    form: ClassVar[Form] = "episodes"

    discount: float = Field(default=1.0, gt=0, le=1, description="of later rewards, for each environment step")
    huber: float | None = Field(default=None, gt=0, description="errors beyond it count linearly; none: none do")

    def lacking(self, seen: Sequence[Seen]) -> Problem | None:
        return _unscored(self.data, seen)

    def prepare(self, given: Given) -> Prepared:
        then = partial(with_returns, discount=self.discount)
        return Prepared(value(huber=self.huber), partial(_flattened, self, given, then), f"returns {self.discount}")


class Distill(Sft):
    """A teacher's distribution over the next token is learned."""

    teacher: str = Field(default="", description="a model folder or a run, with the same tokenizer")
    top: int = Field(default=32, ge=1, description="how many of the teacher's likeliest words are kept a token")
    temperature: float = Field(default=1.0, gt=0, description="of both distributions")
    share: float = Field(default=1.0, gt=0, le=1, description="of the divergence; the rest is likelihood")

    def prepare(self, given: Given) -> Prepared:
        digest, k = vocabulary_digest(given.policy.tokenizer), min(self.top, len(given.policy.tokenizer))

        def made(intake: Intake) -> Iterator[Parts]:
            teacher = policy_named(self.teacher, [], seed=self.seed)
            if vocabulary_digest(teacher.tokenizer) != digest:
                sizes = f"{len(teacher.tokenizer):,} and {len(given.policy.tokenizer):,} tokens"
                what = f"{self.teacher} has another tokenizer than {self.policy}: {sizes}"
                raise ConfigError([Problem("teacher", what, "a distribution is over the same words: choose another")])
            teacher.model.to(given.device)
            return annotate(teacher, self.imitated(given, intake), vocabulary=digest, teacher_k=k)

        objective = distill(temperature=self.temperature, share=self.share)
        return Prepared(objective, made, f"{self.threshold} teacher {self.teacher} {k}")


RECIPES: dict[str, tuple[type[Recipe], str]] = {
    "sft": (Sft, "Imitate recorded episodes, or conversations."),
    "pretrain": (Pretrain, "Go on pre-training on raw text."),
    "dpo": (Dpo, "Learn preferences from pairs (DPO, IPO)."),
    "reward": (Reward, "Train a reward model, a head on the policy's states."),
    "value": (Value, "Train a value head on the returns of episodes."),
    "distill": (Distill, "Learn a teacher's distribution on recorded episodes or conversations."),
}


def _unscored(data: Path, seen: Sequence[Seen]) -> Problem | None:
    if any(one.score is not None for one in seen):
        return None
    return Problem("data", f"{data} holds no episode with a score", "name a run that played them")


def _flattened(
    config: Recipe,
    given: Given,
    then: Callable[[Trajectory, Parts], Parts] | None,
    intake: Intake,
    *,
    chosen: Callable[[Trajectory], bool] | None = None,
) -> Iterator[Parts]:
    return read_trajectories(
        filter(chosen, episodes(config.data)) if chosen else episodes(config.data),
        given.policy,
        config.reading(),
        instructions=given.instructions,
        render=given.text,
        then=then,
        intake=intake,
    )
