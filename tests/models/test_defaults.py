"""Training settings that follow from a model."""

from dataclasses import replace

import pytest
import torch

from evolvent.cli.setup.model_defaults import fill_model_defaults, read_model_facts
from evolvent.cli.train.rl_settings import TrainRLConfig, UpdateConfig
from evolvent.errors import ConfigError
from evolvent.learn.learner import RL_TRAIN, TrainConfig
from evolvent.models.adapters import AdapterConfig, adapt, adapter_tensors
from evolvent.models.defaults import MIN_PRETRAINED, ModelFacts, fill_settings, rl_settings, train_settings
from evolvent.models.policy import tiny_policy
from evolvent.models.tuned import kind_of
from evolvent.rollout.prompting import prompt_world
from evolvent.scale.local_backend import LocalBackend
from evolvent.worlds.lookup import Lookup

SMALL = ModelFacts(200_000, is_pretrained=False)


def test_small_models_have_the_defaults_of_the_classes():
    assert train_settings(SMALL) == {}
    assert rl_settings(SMALL) == {}


@pytest.mark.parametrize(
    ("num_parameters", "has_adapter", "expected"),
    [
        (1_000_000_000, False, 2e-5),  # the reference
        (4_000_000_000, False, 1e-5),  # four times as large: half the rate
        (250_000_000, True, 4e-4),  # a quarter as large: twice the rate, times ten for the adapter
        (100_000_000_000, False, 5e-6),  # the least
        (1_000_000, False, 2e-4),  # the most
    ],
)
def test_the_rate_falls_with_the_root_of_the_size(num_parameters, has_adapter, expected):
    facts = ModelFacts(num_parameters, is_pretrained=True, has_adapter=has_adapter)
    assert train_settings(facts)["lr"] == pytest.approx(expected)
    assert rl_settings(facts)["lr"] == pytest.approx(expected / 10)


def test_what_is_set_stays():
    facts = ModelFacts(10**9, is_pretrained=True)
    config = fill_settings(TrainConfig(lr=1.0), train_settings(facts))
    assert (config.lr, config.epochs) == (1.0, 3)
    assert fill_settings(config, {"epochs": 7}).epochs == 3  # filled in once, it counts as set


def test_reinforcement_learning_has_the_same_defaults_in_python_and_on_the_command_line():
    command, python = UpdateConfig().make_train_config(), LocalBackend({})._rl_train_config(tiny_policy(["go"]))
    assert command == python == RL_TRAIN
    explicit = TrainConfig(lr=0.1)
    assert LocalBackend({}, train=explicit)._rl_train_config(tiny_policy(["go"])) == explicit


def test_facts_are_read_from_headers(tmp_path):
    policy = tiny_policy(["go", "left"])
    policy.save(tmp_path / "small")
    facts = read_model_facts(str(tmp_path / "small"))
    assert facts == ModelFacts(policy.parameters(), is_pretrained=False)
    assert read_model_facts("xs") == ModelFacts(0, is_pretrained=False)
    adapt(policy, AdapterConfig(kind="lora", targets=("all-linear",)), seed=0).save(tmp_path / "adapted")
    assert read_model_facts(str(tmp_path / "adapted")).has_adapter
    missing = ModelFacts(0, is_pretrained=False)
    assert read_model_facts(str(tmp_path / "nowhere")) == missing, "loading it explains why"


def test_a_command_tells_what_it_filled_in(capsys):
    from evolvent.cli.terminal.console import open_console

    facts = ModelFacts(MIN_PRETRAINED, is_pretrained=True, has_adapter=True)
    config = fill_model_defaults(TrainRLConfig(worlds=["lookup"]), facts, open_console(), policy="m")
    assert config.train.lr == rl_settings(facts)["lr"]
    assert config.max_tokens == 64
    printed = " ".join(capsys.readouterr().out.split())
    assert printed.startswith(
        "defaults for m (10 million pretrained weights, of which an adapter is learned): train.lr"
    )
    chosen = TrainRLConfig(worlds=["lookup"], max_tokens=5, train={"lr": 0.5})
    filled = fill_model_defaults(chosen, facts, None, policy="m")
    assert (filled.max_tokens, filled.train.lr) == (5, 0.5)
    assert fill_model_defaults(chosen, SMALL, None, policy="m") is chosen


@pytest.mark.parametrize("existing", ["continue", "merge"])
def test_a_policy_with_an_adapter_is_trained_on_or_merged(existing):
    config = AdapterConfig(kind="lora", targets=("all-linear",), rank=2)
    adapted = adapt(tiny_policy(["go", "left"]), config, seed=0)
    with torch.no_grad():
        for weight in adapter_tensors(adapted.model).values():
            weight.add_(0.02)
    ids = torch.tensor([[1, 2, 3]])
    before = adapted.model(input_ids=ids).logits
    again = adapt(adapted, config.model_copy(update={"existing": existing, "rank": 3}), seed=1)
    assert kind_of(again.model) == "lora"
    assert (again is adapted) == (existing == "continue")
    torch.testing.assert_close(again.model(input_ids=ids).logits, before, rtol=1e-4, atol=1e-5)
    with pytest.raises(ConfigError, match=r"already has an adapter of kind lora \(set adapter.existing"):
        adapt(adapted, config, seed=1)


def test_another_kind_of_adapter_is_not_continued():
    adapted = adapt(tiny_policy(["go"]), AdapterConfig(kind="lora", targets=("all-linear",)), seed=0)
    with pytest.raises(ConfigError, match="already has an adapter"):
        adapt(adapted, AdapterConfig(kind="ia3", targets=("down_proj",), existing="continue"), seed=0)


def test_runs_in_python_take_the_settings_that_fit_a_pretrained_policy(monkeypatch):
    monkeypatch.setattr("evolvent.models.defaults.MIN_PRETRAINED", 10)
    policy = tiny_policy(["go", "left"])
    pretrained = replace(policy, dialect=type("Other", (), {"name": "chat"})())
    facts = ModelFacts(policy.parameters(), is_pretrained=True)
    backend = LocalBackend({})
    assert backend._train_config(policy) == TrainConfig()  # a model over the words of worlds
    assert backend._train_config(pretrained).lr == train_settings(facts)["lr"]
    assert backend._train_config(pretrained).layout == "shared"  # instructions are read once
    assert backend._rl_train_config(pretrained).lr == rl_settings(facts)["lr"]
    assert backend._rl_train_config(pretrained).weight_decay == RL_TRAIN.weight_decay
    explicit = LocalBackend({}, train=TrainConfig(lr=0.5), rl_train=TrainConfig(lr=0.25))
    assert (explicit._train_config(pretrained).lr, explicit._rl_train_config(pretrained).lr) == (0.5, 0.25)


def test_a_fit_depends_on_the_prompt_that_its_episodes_are_read_behind():
    world = Lookup()
    plain = LocalBackend({"lookup": world}).settings()["fit"]
    hinted = LocalBackend({"lookup": prompt_world(world, hint=True)}).settings()["fit"]
    assert plain != hinted
    assert plain == LocalBackend({"lookup": Lookup()}).settings()["fit"]
