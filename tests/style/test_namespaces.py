"""The lazy namespaces of the package: every listed name loads, and a mistake names the nearest name."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

import evolvent as ev

NAMESPACES = ("agents", "engine", "methods", "search", "store", "worlds")
PROGRAM = """
import sys
import evolvent as ev
namespace = getattr(ev, sys.argv[1])
for member in namespace.__all__:
    getattr(namespace, member)
print("torch" in sys.modules)
"""


@pytest.mark.parametrize("name", NAMESPACES)
def test_a_namespace_loads_each_of_its_names_and_modules(name):
    namespace = getattr(ev, name)
    assert namespace is importlib.import_module(f"evolvent.{name}") and name in ev.__all__
    assert len(namespace.__all__) >= 10
    for member in namespace.__all__:
        assert getattr(namespace, member) is not None
    modules = {member for member in dir(namespace) if member not in namespace.__all__}
    module = min(modules)
    assert getattr(namespace, module) is importlib.import_module(f"evolvent.{name}.{module}")


@pytest.mark.parametrize("name", NAMESPACES)
def test_no_listed_name_is_that_of_a_module(name):
    """Else a name would mean the one or the other, by the order of imports."""
    namespace = getattr(ev, name)
    for member in namespace.__all__:
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module(f"evolvent.{name}.{member}")


def test_a_misspelled_name_is_answered_with_the_nearest_one():
    with pytest.raises(AttributeError, match="no attribute 'Craftin'; did you mean 'Crafting'"):
        _ = ev.worlds.Craftin
    assert not hasattr(ev.worlds, "__wrapped__")


def test_a_method_and_its_settings_are_reached_from_the_top():
    assert ev.methods.grpo.grpo.__name__ == "grpo"
    assert ev.methods.GRPOConfig is ev.methods.grpo.GRPOConfig


@pytest.mark.parametrize("name", ["worlds", "store"])
def test_a_namespace_without_models_loads_without_torch(name):
    done = subprocess.run([sys.executable, "-c", PROGRAM, name], capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.returncode) == ("False\n", 0), done.stderr
