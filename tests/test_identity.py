from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from enum import Enum

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field

from evolvent import former_names
from evolvent.config import Config
from evolvent.errors import ConfigError
from evolvent.identity import (
    canonical,
    check_identity,
    code_fingerprint,
    fingerprint,
    version_1_text,
    version_1_values,
)
from evolvent.learn.settings import TrainConfig
from evolvent.models.adapters import AdapterConfig


class Inner(Config):
    rate: float = Field(default=0.5, description="a rate")
    path: str | None = Field(default=None, description="a path")


@dataclass(frozen=True)
class Outer:
    inner: Config = field(default_factory=Inner)
    names: tuple[str, ...] = ("a",)
    table: dict[str, object] = field(default_factory=dict)
    hidden: object = field(default=None, repr=False)


class Color(Enum):
    RED = 1


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: st.lists(inner) | st.tuples(inner) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner),
    )
)
def test_version_1_text_is_the_repr_of_plain_values(value):
    assert version_1_text(value) == repr(value)
    assert version_1_text(Outer(table={"x": value})) == repr(Outer(table={"x": value}))


def test_version_1_text_of_configurations_is_their_repr_where_nothing_was_renamed():
    value = (Outer(Inner(rate=1.0), hidden=object()), Color.RED, [Inner()])
    assert version_1_text(value) == repr(value)


def test_a_renamed_field_and_class_keep_their_identity(monkeypatch):
    before_text, before_digest = version_1_text(Outer()), fingerprint(Outer())
    assert "Inner(rate=0.5, path=None)" in before_text

    class Renamed(Config):
        learning_rate: float = Field(default=0.5, description="a rate")
        path: str | None = Field(default=None, description="a path")

    value = Outer(inner=Renamed())
    assert fingerprint(value) != before_digest
    monkeypatch.setattr(former_names, "FORMER_CLASSES", {"Renamed": "Inner"})
    monkeypatch.setattr(former_names, "FORMER_FIELDS", {"Renamed": {"learning_rate": "rate"}})
    local = "test_a_renamed_field_and_class_keep_their_identity.<locals>."
    assert version_1_text(value).replace(local, "") == before_text
    assert canonical(value)["fields"]["inner"]["fields"] == {"rate": 0.5, "path": None}


def test_fingerprints_tell_values_apart_and_ignore_what_is_hidden():
    assert fingerprint(Outer()) == fingerprint(Outer(hidden=3))
    different = [Outer(), Outer(names=("b",)), Outer(Inner(rate=0.25)), Inner(), (Inner(),), "Inner()", 1, 1.5, True]
    assert len({fingerprint(value) for value in different}) == len(different)
    assert fingerprint({"a": 1, "b": 2}) == fingerprint({"b": 2, "a": 1})


def test_what_has_no_identity_is_refused():
    with pytest.raises(ConfigError, match="has no unique identity"):
        check_identity("objective", Outer(table={"f": lambda: None}))
    with pytest.raises(ConfigError, match="this value has no unique identity"):
        fingerprint(object())


def test_a_setting_that_came_later_is_in_no_identity_until_it_is_set():
    """Runs and kept studies of versions without the setting are found again."""
    plain, quantized = AdapterConfig(kind="lora"), AdapterConfig(kind="lora", base_bits=4)
    assert "base_bits" not in json.dumps(canonical(plain)) and "base_bits" not in version_1_text(plain)
    assert "base_bits" not in version_1_values(plain)
    assert version_1_values(quantized)["base_bits"] == 4
    assert fingerprint(plain) != fingerprint(quantized) and version_1_text(plain) != version_1_text(quantized)


def test_a_setting_that_changes_no_result_is_in_no_identity():
    plain, offloaded = TrainConfig(), TrainConfig(offload="optimizer")
    assert version_1_values(plain) == version_1_values(offloaded) and "offload" not in version_1_values(plain)
    assert fingerprint(plain) == fingerprint(offloaded) and version_1_text(plain) == version_1_text(offloaded)


UNORDERED = """
import enum
from dataclasses import dataclass, field
from evolvent.identity import code_fingerprint

class Color(enum.Enum):
    RED, BLUE, GREEN = "red", "blue", "green"

WARM = {Color.RED, Color.GREEN}

def is_warm(completion):
    return Color(completion) in WARM and completion in KNOWN

@dataclass
class Known:
    words: set[str] = field(default_factory=lambda: {"a", "bb", "ccc", "dddd"})

    def __call__(self, completion):
        return completion in self.words

KNOWN = {"self": is_warm}
WARM_OR_ITSELF = {is_warm, 3}
functions = [is_warm, Known(), lambda completion: completion in {"a", "bb", "ccc", "dddd"}, lambda: WARM_OR_ITSELF]
print([code_fingerprint(function) for function in functions])
"""


def test_code_fingerprint_of_sets_is_the_same_in_every_process():
    """A resumed run is another process, with another order of sets; the digest decides whether it starts again."""
    outputs = [
        subprocess.run(
            [sys.executable, "-c", UNORDERED],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert outputs[0] == outputs[1] and outputs[0].count("'") == 8


DECORATED = """
import functools

@functools.cache
def helper(completion):
    return {helper}

def scaled(function):
    @functools.wraps(function)
    def scale(*arguments):
        return {factor} * function(*arguments)
    return scale

def plain(completion):
    return helper(completion)

@scaled
def decorated(completion):
    return {own}
"""


@pytest.mark.parametrize(("name", "part"), [("plain", "helper"), ("decorated", "factor"), ("decorated", "own")])
def test_code_fingerprint_covers_caches_and_decorators(tmp_path, monkeypatch, name, part):
    monkeypatch.syspath_prepend(tmp_path)
    digests = []
    for number in range(3):
        values = {"helper": 1, "factor": 1, "own": 1, part: max(number, 1)}
        (tmp_path / f"decorated_{name}_{part}_{number}.py").write_text(DECORATED.format(**values))
        module = importlib.import_module(f"decorated_{name}_{part}_{number}")
        digests.append(code_fingerprint(getattr(module, name)))
    assert digests[0] == digests[1] != digests[2]
