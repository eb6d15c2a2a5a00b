"""Importing the package is quick and light, and the core works where torch is not installed."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from house import ROOT, modules

import evolvent

HEAVY = ("torch", "transformers", "safetensors", "pyarrow", "numpy", "pydantic", "rich", "jinja2")
BLOCKER = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "transformers", "safetensors", "tokenizers"):
            raise ImportError(f"{name} is blocked")
sys.meta_path.insert(0, Blocked())
"""
# Rooms whose modules may import torch; everything else is the core. Below `models` and in worlds and store: never.
WITH_TORCH = ("models", "engine", "learn", "rl", "offline", "marl", "scale", "methods", "agents", "reward", "belief")
WITH_TORCH_IN_CLI = tuple(
    f"evolvent.cli.{name}"
    for name in (
        "setup.run_setup",
        "evolve",
        "eval",
        "train.command",
        "train.recipes",
        "train.planning",
        "train.job",
        "train.preflight",
        "train.data",
        "train.return_text",
        "train.rl",
        "train.rl_backends",
        "train.rl_settings",
        "train.ranks",
        "train.search",
        "train.prepared_data",
        "train.data_sources",
        "export",
        "search",
        "search_setup",
        "train.sequence",
        "train.mat",
        "train.control",
    )
)


def python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def cpu_seconds(code: str) -> float:
    """CPU seconds of a fresh interpreter that runs the code: the least of five."""
    tail = "; import resource; u = resource.getrusage(resource.RUSAGE_SELF); print(u.ru_utime + u.ru_stime)"
    return min(float(python(code + tail)) for _ in range(5))


def test_import_loads_nothing_heavy():
    loaded = json.loads(python("import evolvent, sys, json; print(json.dumps(sorted(sys.modules)))"))
    assert not [name for name in loaded if name.split(".")[0] in HEAVY]


def test_import_takes_less_than_a_fifth_of_a_second():
    assert cpu_seconds("import evolvent") - cpu_seconds("pass") < 0.2


def test_the_core_needs_no_torch():
    core = [
        module.name
        for module in modules()
        if module.name.split(".")[1:2]
        and module.name.split(".")[1] not in WITH_TORCH
        and module.name not in WITH_TORCH_IN_CLI
    ]
    assert "evolvent.store.store" in core and "evolvent.worlds.crafting" in core and "evolvent.cli.collect" in core
    python(BLOCKER + f"from importlib import import_module\nfor name in {core!r}: import_module(name)")


def test_the_blocker_blocks():
    with pytest.raises(AssertionError, match="torch is blocked"):
        python(BLOCKER + "import torch")


def test_public_names_are_frozen():
    frozen = (ROOT / "tests" / "style" / "public_names.txt").read_text(encoding="utf-8").split()
    assert sorted(evolvent.__all__) == frozen
    assert len(frozen) <= 48, "a name that few need belongs to a namespace"


def test_public_names_exist():
    missing = [name for name in evolvent.__all__ if not hasattr(evolvent, name)]
    assert not missing
    with pytest.raises(AttributeError, match="no attribute 'Wrld'"):
        _ = evolvent.Wrld


@pytest.mark.parametrize("name", sorted(evolvent._FORMER_NAMES))
def test_a_former_public_name_warns_and_is_the_present_one(name):
    present = evolvent._FORMER_NAMES[name]
    with pytest.warns(DeprecationWarning, match=f"evolvent.{name} is now evolvent.{present}"):
        assert getattr(evolvent, name) is getattr(evolvent, present)
    assert name not in evolvent.__all__ and present in evolvent.__all__


@pytest.mark.parametrize("name", sorted(evolvent._MOVED_NAMES))
def test_a_moved_public_name_warns_and_is_that_of_its_namespace(name):
    namespace = evolvent._MOVED_NAMES[name]
    with pytest.warns(DeprecationWarning, match=f"evolvent.{name} is now evolvent.{namespace}.{name}"):
        assert getattr(evolvent, name) is getattr(getattr(evolvent, namespace), name)
    assert name not in evolvent.__all__ and name in getattr(evolvent, namespace).__all__
