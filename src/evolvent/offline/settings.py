"""Settings of training over sequences. No torch here: commands read them before it is loaded."""

from __future__ import annotations

from pydantic import Field

from evolvent.config import Config

__all__ = ["SequenceTrainingConfig"]


class SequenceTrainingConfig(Config):
    """Settings of training a sequence policy; the defaults are Decision Transformer's."""

    max_steps: int = Field(default=100_000, ge=1, description="updates of the weights")
    batch: int = Field(default=64, ge=1, description="windows of an update")
    lr: float = Field(default=1e-4, gt=0, description="learning rate")
    weight_decay: float = Field(default=1e-4, ge=0, description="of AdamW")
    warmup: int = Field(default=10_000, ge=0, description="updates in which the learning rate rises from 0")
    grad_norm: float = Field(default=0.25, gt=0, description="longer gradients are cut to it")
    beta2: float = Field(default=0.999, gt=0, lt=1, description="AdamW's second decay; its first is .9")
