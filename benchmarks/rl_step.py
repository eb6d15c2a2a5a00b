"""A whole step of reinforcement, playing and updating: CPU beside TRL's GRPOTrainer, and where our time goes.

    python -m benchmarks.rl_step --json [--quick] [--no-peers]

Both sides train the same small Llama from the same weights with GRPO: the same prompts, the same reward, as many tasks,
samples and tokens a step, one update of all of them, no divergence, no other epochs, float32, one thread. TRL generates
by itself (`transformers`' generate). An episode is one action of 32 tokens: no text ends earlier, on either side. Ours
is the whole library's step: engine, environments, the store that keeps every episode, health, credit, update.

Time is CPU time of a step, the first left out; sides are interleaved and ratios are of medians, so over 1 ours is
faster. `model_share` is the share of our step inside the model (forwards of playing, looking and learning, backward and
optimizer), `credit_share` that of turning rewards into advantages; both are of a run of their own, with clocks around
those calls. Peers need an environment with TRL: `python -m venv`, then `pip install -c constraints.txt -e '.[bench]'`.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import platform
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from evolvent.engine.fused import FusedDecoder
from evolvent.learn import look, see
from evolvent.learn.learner import Learner, TrainConfig
from evolvent.learn.practice import PracticeConfig, Setup
from evolvent.methods.grpo import GRPOConfig, preset
from evolvent.models.policy import Policy, tiny_policy
from evolvent.run import Run
from evolvent.scale.local import LocalVerbs
from evolvent.trajectory import Task, sample_rng
from evolvent.worlds.base import Play, TextWorld
