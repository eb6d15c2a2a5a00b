"""Settings of every training, whatever its objective, optimizer and layout."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from evolvent.config import Config

__all__ = ["TrainConfig"]

Beta = Annotated[float, Field(ge=0, lt=1)]


class TrainConfig(Config):
    """Settings of a training. Its length is `max_steps`, else `tokens`, else `epochs`: the first of them that is
    set.
    """

    lr: float = Field(default=4e-3, gt=0, description="peak learning rate of AdamW")
    betas: tuple[Beta, Beta] = Field(default=(0.9, 0.98), description="decay of AdamW's two moments")
    weight_decay: float = Field(default=0.1, ge=0, description="decoupled decay of matrices; vectors have none")
    warmup_steps: int = Field(default=50, ge=0, description="updates of linear warm-up")
    final_lr_ratio: float = Field(
        default=0.1, ge=0, le=1, description="share of the peak that the linear decay ends at"
    )
    max_grad_norm: float | None = Field(
        default=1.0, gt=0, description="largest global norm of the gradient; none: no clipping"
    )
    batch_tokens: int = Field(default=768, ge=1, description="most tokens of an update, padding included")
    max_tokens_per_forward: int | None = Field(
        default=None, ge=1, description="most tokens of one forward; none: the whole update"
    )
    epochs: int = Field(default=10, ge=1, description="passes through the data")
    tokens: int | None = Field(
        default=None, ge=1, description="stop after this many learned tokens, instead of by epochs"
    )
    max_steps: int | None = Field(
        default=None, ge=1, description="stop after this many updates, instead of by tokens or epochs"
    )
    layout: Literal["auto", "bucketed", "packed", "shared"] = Field(
        default="auto",
        description="padded rows of like length, packed rows, or rows that share what sequences begin with; auto: "
        "shared where a policy practises on a CPU, else padded",
    )
    dtype: Literal["float32", "bfloat16", "bfloat16_weights"] = Field(
        default="float32", description="of the forward; weights stay float32, unless they are named too"
    )
    max_nonfinite_steps: int = Field(
        default=5, ge=1, description="updates in a row that may be not finite before training stops"
    )

    @property
    def max_forward_tokens(self) -> int:
        """Returns the token limit of one forward pass, padding included."""
        return self.max_tokens_per_forward or self.batch_tokens

    def learning_rate(self, update: int, progress: float) -> float:
        """Returns the learning rate of an update (from 0) after `progress` of the training: warm-up times linear
        decay.
        """
        warmup_factor = min(1.0, (update + 1) / self.warmup_steps) if self.warmup_steps else 1.0
        return self.lr * warmup_factor * (1.0 - (1.0 - self.final_lr_ratio) * min(1.0, progress))
