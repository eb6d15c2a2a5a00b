"""Optimizers: torch's own, those that save memory (LOMO, AdaLomo), Lion, Adan, SophiaG, and the long tail by name."""

from evolvent.learn.optim.adan import Adan, Lion
from evolvent.learn.optim.fused import AdaLomo, FusedOptimizer, Lomo
from evolvent.learn.optim.make import OffloadedOptimizer, OptimizerConfig, build_optimizer, check_fused
from evolvent.learn.optim.sophia import SophiaG

__all__ = [
    "AdaLomo",
    "Adan",
    "FusedOptimizer",
    "Lion",
    "Lomo",
    "OffloadedOptimizer",
    "OptimizerConfig",
    "SophiaG",
    "build_optimizer",
    "check_fused",
]
