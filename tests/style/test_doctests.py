"""Every estimator, loss and public verb has an example in its docstring, and all examples of the package run."""

from __future__ import annotations

import doctest
import importlib
import inspect
import re
from collections.abc import Iterator
from types import FunctionType, ModuleType

import pytest
from house import modules

import evolvent

ESTIMATORS = (
    "evolvent.rl.estimators",
    "evolvent.rl.advantages",
    "evolvent.rl.soft_values",
    "evolvent.learn.returns",
    "evolvent.offline.q_targets",
    "evolvent.marl.credit",
    "evolvent.reward.offline",
    "evolvent.stats",
)
LOSSES = (
    "evolvent.rl.policy_losses",
    "evolvent.rl.critic",
    "evolvent.rl.objective",
    "evolvent.learn.losses",
    "evolvent.learn.objectives",
    "evolvent.offline.losses",
)
# Helpers that neither estimate nor compute a loss.
NO_EXAMPLE = {"is_equal_within_rounding", "require_output", "mark_learned_steps"}
VERBS = [name for name in evolvent.__all__ if isinstance(getattr(evolvent, name), FunctionType)]
MODULES = sorted(module.name for module in modules() if re.search(r"^ +>>> ", module.text, re.MULTILINE))


def public_functions(module: ModuleType) -> Iterator[tuple[str, object]]:
    """Yields the public functions of a module, and its classes that are called as estimators."""
    for name in module.__all__:
        value = getattr(module, name)
        is_estimator = (
            inspect.isclass(value) and "__call__" in vars(value) and not getattr(value, "_is_protocol", False)
        )
        if isinstance(value, FunctionType) or is_estimator:
            yield name, value


@pytest.mark.parametrize("name", (*ESTIMATORS, *LOSSES))
def test_estimator_or_loss_has_example(name):
    functions = dict(public_functions(importlib.import_module(name)))
    assert functions, "the module has no public function"
    missing = [key for key, value in functions.items() if ">>>" not in (inspect.getdoc(value) or "")]
    assert set(missing) <= NO_EXAMPLE


@pytest.mark.parametrize("name", VERBS)
def test_public_verb_has_example(name):
    assert ">>>" in (getattr(evolvent, name).__doc__ or "")


@pytest.mark.parametrize("name", MODULES)
def test_examples_run(name):
    result = doctest.testmod(importlib.import_module(name), optionflags=doctest.NORMALIZE_WHITESPACE)
    assert result.failed == 0 and result.attempted > 0
