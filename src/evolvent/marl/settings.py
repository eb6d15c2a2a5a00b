"""Settings of teams' updates and of PPO over numbers. No torch here: commands read them before it is loaded."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from evolvent.config import Config
from evolvent.errors import ConfigError, Problem

__all__ = ["ControlPPOConfig", "TeamUpdateConfig"]


class TeamUpdateConfig(Config):
    """Settings of a team's updates. The defaults are MAT's for HalfCheetah 6x1 (arXiv 2205.14953, appendix)."""

    lr: float = Field(default=5e-5, gt=0, description="Learning rate of Adam.")
    ppo_epochs: int = Field(default=10, ge=1, description="Number of passes over a rollout.")
    minibatches: int = Field(default=40, ge=1, description="Number of updates of a pass.")
    clip_range: float = Field(default=0.05, gt=0, description="Clip range of the probability ratio and of values.")
    entropy_coef: float = Field(default=0.001, ge=0, description="Coefficient of the entropy bonus.")
    value_weight: float = Field(default=1.0, gt=0, description="Coefficient of the value loss.")
    huber: float = Field(default=10.0, gt=0, description="Threshold of the Huber loss of values.")
    grad_norm: float = Field(default=0.5, gt=0, description="Largest global norm of the gradient.")
    gamma: float = Field(default=0.99, ge=0, le=1, description="Discount between decisions.")
    gae_lambda: float = Field(default=0.95, ge=0, le=1, description="Lambda between decisions.")
    lam_part: float = Field(default=1.0, ge=0, le=1, description="Lambda between agents, used where `credit` is part.")
    credit: Literal["action", "part"] = Field(
        default="action", description="Unit of credit: a decision of the team, or each agent's part of it."
    )
    value_norm: bool = Field(default=True, description="Trains values on normalized returns.")
    clip_values: bool = Field(default=True, description="Clips values around those of the rollout.")
    mask_policy: bool = Field(default=True, description="Leaves agents that died out of the policy's loss.")
    mask_values: bool = Field(default=True, description="Leaves agents that died out of the value loss.")


class ControlPPOConfig(Config):
    """Settings of PPO over numbers."""

    iterations: int = Field(default=100, ge=1, description="Number of iterations: rollout and update.")
    rows: int = Field(default=16, ge=1, description="Number of episodes that are played side by side.")
    steps: int = Field(default=128, ge=1, description="Number of steps of each of these episodes in an iteration.")
    width: int = Field(default=64, ge=2, description="Width of the hidden layers of a new policy.")
    lr: float = Field(default=5e-4, gt=0, description="Learning rate of Adam, which decays linearly.")
    final_lr_ratio: float = Field(default=0.0, ge=0, le=1, description="Share of the learning rate at the end.")
    measure_every: int = Field(default=0, ge=0, description="Iterations between evaluations; 0: only at the end.")
    save_every: int = Field(default=10, ge=1, description="Iterations between checkpoints.")
    ppo_epochs: int = Field(default=10, ge=1, description="Number of passes over the steps of an iteration.")
    minibatches: int = Field(default=8, ge=1, description="Number of updates of a pass.")
    gamma: float = Field(default=0.99, ge=0, le=1, description="Discount between steps.")
    gae_lambda: float = Field(default=0.95, ge=0, le=1, description="Lambda of generalized advantage estimation.")
    clip_range: float = Field(default=0.2, gt=0, description="Clip range of the probability ratio and of values.")
    entropy_coef: float = Field(default=0.0, ge=0, description="Coefficient of the entropy bonus.")
    value_coef: float = Field(default=1.0, gt=0, description="Coefficient of the value loss.")
    max_grad_norm: float = Field(default=0.5, gt=0, description="Largest global norm of the gradient.")

    @model_validator(mode="after")
    def _check_minibatches(self) -> ControlPPOConfig:
        if self.rows * self.steps < self.minibatches:
            message = f"got {self.minibatches}, expected at most the {self.rows * self.steps} steps of an iteration"
            raise ConfigError([Problem("minibatches", message)])
        return self

    def make_update_config(self) -> TeamUpdateConfig:
        """Returns the settings of the updates, which those of teams share."""
        return TeamUpdateConfig(
            lr=self.lr,
            ppo_epochs=self.ppo_epochs,
            minibatches=self.minibatches,
            gamma=self.gamma,
            gae_lambda=self.gae_lambda,
            clip_range=self.clip_range,
            entropy_coef=self.entropy_coef,
            value_weight=self.value_coef,
            grad_norm=self.max_grad_norm,
        )
