"""Optimizers: torch's own, those that save memory (LOMO, AdaLomo), Lion, Adan, SophiaG, and the long tail by name."""

from evolvent.learn.optim.adalomo import AdaLomo
from evolvent.learn.optim.adan import Adan, Lion
from evolvent.learn.optim.fused import Fused
from evolvent.learn.optim.lomo import Lomo
from evolvent.learn.optim.make import OptimizerConfig, check_fused, make
from evolvent.learn.optim.sophia import SophiaG

__all__ = ["AdaLomo", "Adan", "Fused", "Lion", "Lomo", "OptimizerConfig", "SophiaG", "check_fused", "make"]
