"""Configurations: what wins over what, every mistake at once, secrets hidden, and the way to TOML and back."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field, ValidationError, model_validator

from evolvent.config import Config, SettingInfo, as_dict, list_settings, redact, resolve, to_toml
from evolvent.errors import ConfigError
from evolvent.identity import canonical


class Train(Config):
    lr: float = Field(default=4e-3, gt=0, description="learning rate")
    betas: tuple[float, float] = Field(default=(0.9, 0.98), description="moments")
    batch: int = Field(default=8, ge=1, le=64, description="rows")
    micro: int | None = Field(default=None, ge=1, description="rows at once")
    layout: Literal["auto", "packed"] = Field(default="auto", description="rows or packs")

    @model_validator(mode="after")
    def _divides(self) -> Train:
        if self.micro and self.batch % self.micro:
            raise ValueError(f"batch {self.batch} is no multiple of micro {self.micro}")
        return self


class Job(Config):
    train: Train = Field(default=Train(lr=1.0), description="how")
    worlds: tuple[str, ...] = Field(default=("crafting", "lookup"), description="where")
    folder: Path | None = Field(default=None, description="to")
    fast: bool = Field(default=False, description="no checks")
    name: str = Field(default="job", description="a word")
    api_key: str = Field(default="", description="a secret")


def problems(*overrides: str, **options: object) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        resolve(Job, overrides=overrides, **options)
    return [str(problem) for problem in caught.value.problems]


def test_the_later_wins(tmp_path):
    file = tmp_path / "job.toml"
    file.write_text('name = "file"\n[train]\nbatch = 16\nlr = 2.0\n', encoding="utf-8")
    preset = {"name": "preset", "fast": True, "train": {"batch": 4, "layout": "packed"}}
    found = resolve(Job, file=file, preset=preset, overrides=["--train.lr", "3"])
    assert found == Job(name="file", fast=True, train=Train(lr=3.0, batch=16, layout="packed"))
    assert resolve(Job).train.lr == 1.0, "the default instance of a nested configuration counts"


@pytest.mark.parametrize(
    ("words", "path", "value"),
    [
        (["--train.lr", "1e-3"], "lr", 1e-3),
        (["--train.lr=.5"], "lr", 0.5),
        (["--train.batch", "4_0"], "batch", 40),
        (["--train.betas", ".8,.9"], "betas", (0.8, 0.9)),
        (["--train.betas=[0.5, 1]"], "betas", (0.5, 1.0)),
        (["--train.micro", "none"], "micro", None),
        (["--train.layout", "packed"], "layout", "packed"),
    ],
)
def test_nested_overrides(words, path, value):
    assert getattr(resolve(Job, overrides=words).train, path) == value


@pytest.mark.parametrize(
    ("words", "field", "value"),
    [
        (["--worlds", "lookup"], "worlds", ("lookup",)),
        (["--worlds", "lookup,crafting:1"], "worlds", ("lookup", "crafting:1")),
        (["--fast"], "fast", True),
        (["--fast", "--name", "x"], "fast", True),
        (["--fast=false"], "fast", False),
        (["--folder", "a b/ü"], "folder", Path("a b/ü")),
        (["--name", "3"], "name", "3"),
        (["--name", "true"], "name", "true"),
        (["--name", "1979-05-27"], "name", "1979-05-27"),
        (["--name", "a = 1\nb = 2"], "name", "a = 1\nb = 2"),
        (["--api-key", "k"], "api_key", "k"),
        (["--name", "a", "--name", "b"], "name", "b"),
    ],
)
def test_overrides(words, field, value):
    assert getattr(resolve(Job, overrides=words), field) == value


def test_every_mistake_at_once(tmp_path):
    file = tmp_path / "job.toml"
    file.write_text('nmae = "x"\n[train]\nbatch = "8"\n[other]\nthing = 1\n', encoding="utf-8")
    found = problems("--train.lrr", "1", "--train.layout", "pakced", "--betta=2", "stray", "--worlds", file=file)
    assert found == [
        f"{file}: unknown key 'nmae' (did you mean 'name'?)",
        f"{file}: unknown key 'other.thing' (known: api_key, fast, folder, name, train.batch, train.betas, "
        "train.layout, train.lr, train.micro, worlds)",
        "--train.lrr: unknown key 'train.lrr' (did you mean 'train.lr'?)",
        "--betta: unknown key 'betta' (did you mean 'train.betas'?)",
        "input: unexpected 'stray' (write settings as --key value)",
        "worlds: has no value (expected list of text)",
        f"train.batch: got '8', expected int >= 1 and <= 64 (from {file})",
        "train.layout: got 'pakced', expected 'auto' or 'packed' (did you mean 'packed'?)",
    ]


def test_a_contradiction_is_told_beside_the_rest():
    found = problems("--train.batch", "9", "--train.micro", "2", "--nam", "x")
    assert found == [
        "--nam: unknown key 'nam' (did you mean 'name'?)",
        "train: batch 9 is no multiple of micro 2",
    ]


@pytest.mark.parametrize("value", ["nan", "inf", "0", "-1", "true", '"1.0"', "x", "", "1970-01-01"])
def test_no_such_number(value):
    (found,) = problems("--train.lr", value)
    assert found == f"train.lr: got {value!r}, expected float > 0"


def test_a_syntax_error_has_its_line(tmp_path):
    file = tmp_path / "bad.toml"
    file.write_text('name = "x"\nfast = maybe\n', encoding="utf-8")
    found = problems("--nam", "x", file=file)
    assert len(found) == 2 and "line 2" in found[0] and str(file) in found[0]
    file.write_bytes(b'name = "\xff"\n')
    assert "not UTF-8 text: invalid byte" in problems(file=file)[0]
    assert "cannot be read: No such file" in problems(file=tmp_path / "missing.toml")[0]
    assert "cannot be read: Is a directory" in problems(file=tmp_path)[0]


def test_frozen_and_closed():
    with pytest.raises(ValidationError):
        Job(unknown=1)
    with pytest.raises(ValidationError):
        Job().name = "x"
    with pytest.raises(ValidationError):
        Train(lr=math.nan)


def test_knobs():
    assert list_settings(Job)[:4] == [
        SettingInfo("train.lr", "float > 0", "1.0", "learning rate"),
        SettingInfo("train.betas", "list of 2 (float, float)", "[0.9, 0.98]", "moments"),
        SettingInfo("train.batch", "int >= 1 and <= 64", "8", "rows"),
        SettingInfo("train.micro", "int >= 1 or none", '"none"', "rows at once"),
    ]


def test_required_fields():
    class Needs(Config):
        path: Path = Field(description="a file")
        count: int = Field(description="how many")

    assert [knob.default for knob in list_settings(Needs)] == ["required", "required"]
    with pytest.raises(ConfigError) as caught:
        resolve(Needs, overrides=["--count", "x"])
    assert [str(problem) for problem in caught.value.problems] == ["count: got 'x', expected int", "path: is required"]


def test_redact():
    given_values = {
        "api_key": "a",
        "apiKey": "b",
        "HF_TOKEN": "c",
        "password": 3,
        "max_tokens": 7,
        "token_lambda": 0.9,
        "keys": 2,
        "keep": "all",
        "monkey": "ape",
        "token": "",
        "secret": None,
        "nested": [{"client-secret": "d"}],
        "url": "https://me:pw@host/x?token=abc&y=1",
        "plain": "https://host/x",
    }
    hidden = "<redacted>"
    assert redact(given_values) == {
        "api_key": hidden,
        "apiKey": hidden,
        "HF_TOKEN": hidden,
        "password": hidden,
        "max_tokens": 7,
        "token_lambda": 0.9,
        "keys": 2,
        "keep": "all",
        "monkey": "ape",
        "token": "",
        "secret": None,
        "nested": [{"client-secret": hidden}],
        "url": f"https://{hidden}@host/x?token={hidden}&y=1",
        "plain": "https://host/x",
    }


def test_what_is_stored_holds_no_secret():
    config = Job(api_key="sk-very-secret")
    assert "very-secret" not in to_toml(config) + str(as_dict(config))


TEXT = st.text(st.characters(codec="utf-8"), max_size=20).filter(lambda text: text.lower() != "none")


@given(
    st.builds(
        Job,
        train=st.builds(
            Train,
            lr=st.floats(1e-300, 1e300),
            betas=st.tuples(st.floats(-1e9, 1e9), st.floats(-1e9, 1e9)),
            batch=st.integers(1, 64),
            micro=st.sampled_from([None, 1]),
            layout=st.sampled_from(["auto", "packed"]),
        ),
        worlds=st.lists(TEXT).map(tuple),
        folder=st.sampled_from([None, Path("a b"), Path("/x/ü")]),
        fast=st.booleans(),
        name=TEXT,
    )
)
def test_toml_and_back(tmp_path_factory, config):
    file = tmp_path_factory.mktemp("toml") / "job.toml"
    file.write_text(to_toml(config), encoding="utf-8", newline="")
    assert resolve(Job, file=file) == config


@given(st.lists(st.one_of(st.text(max_size=8), st.sampled_from(["--train.lr", "--fast", "--name=x", "--", "-1"]))))
def test_any_words_resolve_or_are_explained(words):
    try:
        assert isinstance(resolve(Job, overrides=words), Job)
    except ConfigError as error:
        assert error.problems and all(str(problem).strip() for problem in error.problems)


class _Learning(Config):
    max_grad_norm: float = Field(default=1.0, description="largest norm of the gradient")
    lr: float = Field(default=0.1, description="learning rate")


class _Job(Config):
    learning: _Learning = Field(default=_Learning(), description="how to learn")
    output_dir: str = Field(default="runs", description="where to write")


@pytest.fixture
def former(monkeypatch):
    monkeypatch.setattr(
        "evolvent.former_names.FORMER_FIELDS",
        {"_Learning": {"max_grad_norm": "clip"}, "_Job": {"learning": "train", "output_dir": "to"}},
    )


def test_former_names_load_from_every_source_with_one_warning(former, tmp_path, caplog):
    file = tmp_path / "old.toml"
    file.write_text('to = "there"\n[train]\nclip = 2.0\nlr = 0.5\n', encoding="utf-8")
    job = resolve(_Job, file=file)
    assert job == _Job(learning=_Learning(max_grad_norm=2.0, lr=0.5), output_dir="there")
    assert [record.getMessage() for record in caplog.records] == [
        "renamed settings: train.clip is now learning.max_grad_norm, train.lr is now learning.lr"
    ]
    assert resolve(_Job, overrides=["--train.clip", "3", "--learning.lr=1"]).learning.max_grad_norm == 3.0
    assert resolve(_Job, overrides=["--learning.clip", "3"]).learning.max_grad_norm == 3.0
    assert resolve(_Job, preset={"train": {"clip": 4.0}}).learning.max_grad_norm == 4.0


def test_former_names_are_taken_by_constructors_with_a_warning(former):
    with pytest.warns(FutureWarning, match="_Learning: 'clip' is now 'max_grad_norm'"):
        assert _Learning(clip=3.0).max_grad_norm == 3.0
    with pytest.raises(ConfigError, match="'clip' is the former name of 'max_grad_norm'"):
        _Learning(clip=3.0, max_grad_norm=2.0)


def test_a_copy_takes_known_and_former_names_alone(former):
    assert _Learning().model_copy(update={"lr": 0.5}) == _Learning(lr=0.5)
    with pytest.warns(FutureWarning, match="_Learning: 'clip' is now 'max_grad_norm'"):
        assert _Learning().model_copy(update={"clip": 3.0}) == _Learning(max_grad_norm=3.0)
    with pytest.raises(ConfigError, match=r"unknown setting 'learning_rate'"):
        _Learning().model_copy(update={"learning_rate": 0.5})


def test_a_wrong_value_under_a_former_name_is_told_under_the_new_one(former):
    with pytest.raises(ConfigError, match=r"learning\.max_grad_norm: got 'x', expected float"):
        resolve(_Job, overrides=["--train.clip", "x"])
    with pytest.raises(ConfigError, match=r"--train\.clp: unknown key 'learning\.clp'"):
        resolve(_Job, overrides=["--train.clp", "1"])


def test_a_fingerprint_survives_a_rename(former):
    class Before(Config):
        clip: float = Field(default=1.0, description="largest norm of the gradient")
        lr: float = Field(default=0.1, description="learning rate")

    renamed = json.loads(json.dumps(canonical(_Learning()))) | {"type": ""}
    assert renamed == json.loads(json.dumps(canonical(Before()))) | {"type": ""}
    assert _Learning().fingerprint() != _Learning(lr=0.2).fingerprint()
    assert len(_Learning().fingerprint()) == 24


class Agent(Config):
    main_setting = "kind"

    kind: str = Field(default="expert", description="who plays")
    hint: bool = Field(default=True, description="of the form")


class Playing(Config):
    implied_settings: ClassVar[Mapping[str, tuple[str, str]]] = {
        "policy": ("agent.kind", "policy"),
        "endpoint": ("agent.kind", "endpoint"),
    }

    agent: Agent = Field(default_factory=Agent, description="who plays")
    policy: str = Field(default="xs", description="a model")
    endpoint: str = Field(default="", description="a server")


@pytest.mark.parametrize(
    "overrides, kind",
    [
        ("", "expert"),
        ("--policy s", "policy"),
        ("--policy xs", "policy"),
        ("--endpoint here --agent.hint false", "endpoint"),
        ("--policy s --endpoint=", "policy"),
        ("--policy s --agent random", "random"),
        ("--policy s --endpoint here --agent endpoint", "endpoint"),
    ],
)
def test_a_named_setting_implies_another_that_is_not_named(overrides, kind, tmp_path):
    assert resolve(Playing, overrides=overrides.split()).agent.kind == kind
    file = tmp_path / "config.toml"
    file.write_text(to_toml(resolve(Playing, overrides=overrides.split())), encoding="utf-8")
    assert resolve(Playing, file=file).agent.kind == kind  # what was implied once is recorded


def test_settings_that_imply_different_values_are_both_named():
    with pytest.raises(ConfigError, match=r"agent.kind: --policy and --endpoint are both given .choose one with"):
        resolve(Playing, overrides=["--policy", "s", "--endpoint", "here"])
