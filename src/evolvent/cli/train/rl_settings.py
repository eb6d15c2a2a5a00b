"""The settings of `evolvent train rl`, beside those of its methods."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field, model_validator

from evolvent.cli.setup.backends import HERE, BackendConfig
from evolvent.cli.setup.prompting import ActingConfig
from evolvent.cli.setup.run_setup import EvaluationConfig
from evolvent.cli.setup.settings import ModelConfig, WorldsConfig
from evolvent.config import Config
from evolvent.engine.replies import RECORDED_WORLD
from evolvent.engine.servers import ServerDialect
from evolvent.learn.settings import Offload, OptimizerConfig, Parallelism, TrainConfig
from evolvent.models.adapters import AdapterConfig
from evolvent.models.defaults import ADAM_EPS

__all__ = ["EARLIER_DEFAULTS", "TrainRLConfig", "UpdateConfig"]

EARLIER_DEFAULTS: Mapping[str, object] = {"train": {"adam_eps": ADAM_EPS}}
"""Settings that runs of version 0.1 do not record, as they were."""


class UpdateConfig(Config):
    """Settings of the updates that improve the policy."""

    lr: float = Field(default=5e-4, gt=0, description="learning rate")
    final_lr_ratio: float = Field(default=0.1, ge=0, le=1, description="share of it that a linear decay ends at")
    warmup_steps: int = Field(default=0, ge=0, description="updates of linear warm-up")
    weight_decay: float = Field(default=0.0, ge=0, description="decoupled decay of matrices")
    max_grad_norm: float | None = Field(
        default=0.5, gt=0, description="largest global norm of the gradient; none: no clipping"
    )
    adam_eps: float = Field(default=1e-5, gt=0, description="AdamW's epsilon: gradients below it make small steps")
    max_tokens_per_forward: int = Field(default=4096, ge=1, description="most tokens of one forward")
    dtype: Literal["float32", "bfloat16"] = Field(default="float32", description="of the forward")
    offload: Offload | None = Field(
        default=None,
        repr=False,  # in no digest: a run goes on with or without it
        description="what a device leaves in main memory: states of the optimizer, the reference, or both",
    )

    def make_train_config(self) -> TrainConfig:
        """Converts the settings to those of a learner."""
        return TrainConfig(
            lr=self.lr,
            final_lr_ratio=self.final_lr_ratio,
            warmup_steps=self.warmup_steps,
            weight_decay=self.weight_decay,
            max_grad_norm=self.max_grad_norm,
            batch_tokens=self.max_tokens_per_forward,
            dtype=self.dtype,
            offload=self.offload,
        )

    def make_optimizer_config(self) -> OptimizerConfig:
        """Converts the settings to those of an optimizer."""
        return OptimizerConfig(eps=None if self.adam_eps == ADAM_EPS else self.adam_eps)


class TrainRLConfig(ModelConfig, BackendConfig, WorldsConfig):
    """Settings of `evolvent train rl`, beside those of the method."""

    other_sources: ClassVar[tuple[str, ...]] = (RECORDED_WORLD,)

    method: str = Field(default="poad", description="the method")
    policy: str = Field(
        default="xs", description="what to begin with: a size, a model (folder, GGUF file, name), or a run"
    )
    output_dir: Path | None = Field(default=None, description="folder of the run; none: the next runs/rl-N")
    seed: int = Field(default=0, ge=0, description="all randomness derives from it")
    demonstrations: int = Field(default=100, ge=0, description="tasks of each world whose solution is imitated first")
    random: int = Field(
        default=0, ge=0, description="episodes of each world of random listed actions, imitated too: language, no aim"
    )
    clone_tokens: int = Field(default=100_000, ge=1, description="learned tokens of that imitation")
    tasks: int = Field(default=400, ge=1, description="further tasks of each world to train on, at most")
    slots: int = Field(default=192, ge=1, description="episodes open at once")
    max_tokens: int = Field(default=32, ge=1, description="longest action in tokens")
    threads: int = Field(default=1, ge=1, description="threads of torch")
    endpoint: str = Field(
        default="",
        description="URL of an endpoint that plays (over ranks several, with commas); none: this process does",
    )
    model: str = Field(default="", description="what that endpoint calls the policy")
    dialect: ServerDialect = Field(default="openai", description="what that endpoint speaks")
    hand_over: Path | None = Field(default=None, description="folder that the endpoint takes new weights from")
    hand_over_as: Literal["auto", "adapter", "whole"] = Field(
        default="auto",
        description="what the endpoint takes of a LoRA policy: its adapter alone, or whole weights; auto: the adapter "
        "where it loads one over its base",
    )
    agent: ActingConfig = Field(default_factory=ActingConfig, description="the prompt and the actions")
    train: UpdateConfig = Field(default_factory=UpdateConfig, description="the updates")
    adapter: AdapterConfig = Field(default_factory=AdapterConfig, description="what is learned instead of all weights")
    rollout_dtype: Literal["bfloat16", "int8"] | None = Field(
        default=None, description="numbers of the weights that play; none: those that are trained"
    )
    parallel: Parallelism = Field(
        default_factory=Parallelism, description="the layout over torchrun's ranks; none: each has a share of the data"
    )
    panel: EvaluationConfig = Field(default_factory=EvaluationConfig, description="the measurement")

    @model_validator(mode="after")
    def _check_endpoint(self) -> TrainRLConfig:
        if self.endpoint and not (self.model and self.hand_over):
            raise ValueError("--endpoint needs --model NAME and --hand_over FOLDER")
        if self.endpoint and self.backend != HERE:
            raise ValueError("--endpoint and --on cannot be combined; pass only one of them")
        if self.rollout_dtype and (self.endpoint or self.backend != HERE):
            raise ValueError("--rollout_dtype is of weights that play here; leave it out with --endpoint and --backend")
        if self.endpoint and self.agent.history == "template":
            raise ValueError("an endpoint keeps past replies as it likes: leave out --agent.history or --endpoint")
        return self
