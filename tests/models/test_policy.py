"""Policies load from and save to ordinary Hugging Face folders, and refuse what is unsafe or does not fit."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

from evolvent.errors import ConfigError, Incomplete, ShapeMismatch, UnsafeFile, VocabularyMismatch
from evolvent.models.heads import ValueHead
from evolvent.models.policy import load_policy, tiny_policy
from evolvent.models.tiny import word_tokenizer

WORDS = ["go", "north", "south", ",", "1"]


@pytest.fixture
def folder(tmp_path):
    tiny_policy(WORDS, seed=1).save(tmp_path / "policy")
    return tmp_path / "policy"


def logits(model):
    with torch.inference_mode():
        return model(torch.arange(8)[None]).logits


def test_saved_policy_is_a_folder_that_transformers_loads_bit_equal(folder):
    policy = tiny_policy(WORDS, seed=1)
    plain = AutoModelForCausalLM.from_pretrained(folder)
    assert torch.equal(logits(policy.model), logits(plain))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.encode("go north , 1", add_special_tokens=False) == policy.dialect.action("go north , 1")[:-1]
    again = load_policy(folder)
    assert torch.equal(logits(policy.model), logits(again.model))
    assert (again.dialect.name, again.version, again.context) == ("words", 0, 256)


def test_every_rank_saves_what_it_is_told_to_save(tmp_path):
    """transformers 5.23 writes neither weights nor configuration on a rank other than the first."""
    policy = tiny_policy(["go", "left"], seed=1)
    torch.distributed.init_process_group("fake", rank=1, world_size=2, store=FakeStore())
    try:
        policy.save(tmp_path / "policy")
    finally:
        torch.distributed.destroy_process_group()
    saved_weights = load_policy(tmp_path / "policy").model.state_dict()
    assert all(torch.equal(weight, saved_weights[name]) for name, weight in policy.model.state_dict().items())


def test_version_and_value_head_come_back(tmp_path):
    policy = tiny_policy(WORDS).next_version().next_version()
    head = ValueHead(policy.model.config.hidden_size)
    torch.nn.init.normal_(head.outer.weight)
    type(policy)(policy.model, policy.tokenizer, policy.dialect, policy.version, head).save(tmp_path / "p")
    again = load_policy(tmp_path / "p")
    hidden = torch.randn(2, 3, policy.model.config.hidden_size)
    assert again.version == 2
    assert torch.equal(again.value_head(hidden), head(hidden))
    assert again.value_head(hidden).shape == (2, 3)


def test_any_hugging_face_causal_lm_loads(tmp_path):
    tokenizer = word_tokenizer(WORDS)
    config = Qwen3Config(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=64,
    )
    Qwen3ForCausalLM(config).save_pretrained(tmp_path / "q")
    tokenizer.save_pretrained(tmp_path / "q")
    policy = load_policy(tmp_path / "q")
    assert (policy.dialect.name, policy.context) == ("chat", 64)


def test_context_is_the_models_or_a_shorter_limit(folder):
    assert [load_policy(folder, context=limit).context for limit in ("auto", None, 256, 100)] == [256, 256, 256, 100]


def test_clone_is_independent():
    policy = tiny_policy(WORDS)
    other = policy.clone()
    with torch.no_grad():
        other.model.model.norm.weight.zero_()
    assert policy.model.model.norm.weight.sum() > 0


def test_pickled_weights_are_refused_with_advice(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(UnsafeFile, match=r"pickled weights only.*pytorch_model\.bin.*save_pretrained"):
        load_policy(folder)


def test_custom_model_code_is_refused(folder):
    config = json.loads((folder / "config.json").read_text())
    config["auto_map"] = {"AutoModelForCausalLM": "modeling_x.X"}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(UnsafeFile, match="contains its own model code"):
        load_policy(folder)


def test_missing_tokenizer_is_named(folder):
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink()
    with pytest.raises(Incomplete, match="has no tokenizer"):
        load_policy(folder)


def test_vocabulary_that_does_not_fit_is_named(folder):
    word_tokenizer([f"w{index}" for index in range(100)]).save_pretrained(folder)
    with pytest.raises(VocabularyMismatch, match="107 tokens for 12 embeddings"):
        load_policy(folder)


@pytest.mark.parametrize(
    ("name", "value"),
    [("hidden_size", 2**20), ("vocab_size", 10**9), ("intermediate_size", 10**8), ("num_hidden_layers", 10**9)],
)
def test_a_configuration_of_another_size_is_refused_before_a_model_is_built(folder, name, value, monkeypatch):
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps(config | {name: value}), encoding="utf-8")
    monkeypatch.setattr("evolvent.models.policy._load_model", lambda *arguments: pytest.fail("it was built"))
    with pytest.raises(ConfigError, match=r"do not fit its config\.json: got .*, which needs .* weights"):
        load_policy(folder)


def test_missing_weights_and_wrong_shapes_are_named(folder):
    weights = load_file(folder / "model.safetensors")
    save_file({k: v for k, v in weights.items() if "layers.1" not in k}, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(Incomplete, match=r"weights are missing.*layers\.1"):
        load_policy(folder)
    weights["model.norm.weight"] = torch.ones(3)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(ShapeMismatch, match="do not fit"):
        load_policy(folder)


def test_absent_folder_and_truncated_weights(tmp_path, folder):
    with pytest.raises(ConfigError, match="model folder not found"):
        load_policy(tmp_path / "nowhere")
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(data[: len(data) // 2])
    with pytest.raises(Incomplete, match="cannot be loaded"):
        load_policy(folder)


def test_saving_over_a_policy_leaves_nothing_of_it(tmp_path):
    policy = tiny_policy(WORDS)
    head = ValueHead(policy.model.config.hidden_size)
    type(policy)(policy.model, policy.tokenizer, policy.dialect, 0, head).save(tmp_path / "p")
    policy.save(tmp_path / "p")
    assert load_policy(tmp_path / "p").value_head is None


@pytest.mark.parametrize("note", ['{"version": "x"}', '{"dialect": ["chat"]}', '{"dialect": 5}', "[" * 100_000])
def test_a_note_that_is_none_is_refused_by_name(folder, note):
    (folder / "evolvent.json").write_text(note)
    with pytest.raises(Incomplete, match=r"evolvent\.json"):
        load_policy(folder)


def test_a_config_that_is_no_object_is_refused(folder):
    (folder / "config.json").write_text("5")
    with pytest.raises(Incomplete, match="is not a JSON object"):
        load_policy(folder)
