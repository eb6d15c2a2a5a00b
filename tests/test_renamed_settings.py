"""Settings that were renamed load under their old names, and change no identity and no stored state."""

from __future__ import annotations

import hashlib
import json

import pytest

from evolvent.config import resolve
from evolvent.identity import version_1_text, version_1_values
from evolvent.marl.settings import TeamUpdateConfig
from evolvent.methods.agentevol import AgentEvolConfig
from evolvent.methods.decision_transformer import DecisionTransformerConfig
from evolvent.methods.mat import MATConfig
from evolvent.methods.ppo import PPOConfig
from evolvent.offline.settings import SequenceTrainingConfig
from evolvent.rl.trainer import RLConfig

RENAMED = [
    (AgentEvolConfig, "samples", "samples_per_task", 7),
    (DecisionTransformerConfig, "train.updates", "train.max_steps", 70),
    (MATConfig, "update.clip", "update.clip_range", 0.25),
    (MATConfig, "update.entropy", "update.entropy_coef", 0.5),
    (MATConfig, "update.lam", "update.gae_lambda", 0.75),
    (MATConfig, "update.epochs", "update.ppo_epochs", 3),
]


@pytest.mark.parametrize(("config", "former", "present", "value"), RENAMED)
def test_old_files_and_overrides_load_with_one_warning(config, former, present, value, tmp_path, caplog):
    file = tmp_path / "old.toml"
    file.write_text(f"{former} = {value}\n", encoding="utf-8")
    expected = resolve(config, overrides=[f"--{present}", str(value)])
    assert not caplog.records and expected != config()
    assert resolve(config, file=file) == expected
    assert [record.getMessage() for record in caplog.records] == [f"renamed settings: {former} is now {present}"]
    assert resolve(config, overrides=[f"--{former}", str(value)]) == expected
    assert len(caplog.records) == 2


@pytest.mark.parametrize(
    ("config", "former", "present"),
    [
        (AgentEvolConfig, "samples", "samples_per_task"),
        (SequenceTrainingConfig, "updates", "max_steps"),
        (TeamUpdateConfig, "clip", "clip_range"),
        (TeamUpdateConfig, "entropy", "entropy_coef"),
        (TeamUpdateConfig, "epochs", "ppo_epochs"),
    ],
)
def test_constructors_take_old_names_with_a_warning(config, former, present):
    with pytest.warns(FutureWarning, match=f"{config.__name__}: '{former}' is now '{present}'"):
        assert config(**{former: 3}) == config(**{present: 3})


# Fingerprint, then the SHA-256 of `version_1_text` and of `version_1_values` as JSON, both cut to 24 digits. They were
# computed at the commit before the rename (8146e16); the last one was there the digest of `as_dict`, which training
# states of teams and sequences stored.
IDENTITIES = {
    AgentEvolConfig: ("cad82d654f5ca69830208334", "82c957ceddd5bb730a6910e4", "6a395fe27fe453636b87dca6"),
    MATConfig: ("a05d63fb46208f549db4e030", "c8ff6cc0aaf778f83b1c5027", "2a6273509e39324c15c5e556"),
    DecisionTransformerConfig: ("1f763770a03de402b80df356", "a0951c984244d543e6524704", "e38c5aac46fbc5a42c4d43e3"),
}


@pytest.mark.parametrize("config", IDENTITIES)
def test_identities_are_those_before_the_rename(config):
    values = json.dumps(version_1_values(config()), sort_keys=True)
    digests = [hashlib.sha256(text.encode()).hexdigest()[:24] for text in (version_1_text(config()), values)]
    assert (config().fingerprint(), *digests) == IDENTITIES[config]


def test_old_values_load_with_one_warning_and_keep_the_identity(tmp_path, caplog):
    config = PPOConfig(whiten=False, practice=RLConfig(critic="separate"))
    file = tmp_path / "old.toml"
    file.write_text('[practice]\ncritic = "own"\n', encoding="utf-8")
    assert resolve(PPOConfig, file=file, overrides=["--whiten", "false"]) == config
    assert [record.getMessage() for record in caplog.records] == [
        "renamed settings: practice.critic 'own' is now 'separate'"
    ]
    assert resolve(PPOConfig, overrides=["--practice.critic", "own", "--whiten", "false"]) == config
    with pytest.warns(FutureWarning, match="RLConfig: critic 'own' is now 'separate'"):
        assert RLConfig(critic="own") == config.practice
    with pytest.warns(FutureWarning, match="RLConfig: critic 'own' is now 'separate'"):
        assert RLConfig().model_copy(update={"critic": "own"}) == config.practice
    # Digests of the commit before the value was renamed (7f316c47).
    digests = [
        hashlib.sha256(text.encode()).hexdigest()[:24]
        for text in (version_1_text(config), json.dumps(version_1_values(config)))
    ]
    assert config.fingerprint() == "5787982e4b2cf94ba7c0b2fb"
    assert digests == ["c1c1e0f0a87f571b542b45e4", "078e76df6b31046469020f40"]
