"""Adapters: what they begin as, what they share with the base, what they refuse, and files as peft has them."""

import json
import shutil
import sys

import peft
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    PreTrainedConfig,
    Qwen2Config,
    Qwen3Config,
)

from evolvent.errors import ConfigError, HashMismatch, Incomplete, MissingExtra, ShapeMismatch, UnsafeFile
from evolvent.models.adapters import (
    AdapterConfig,
    adapt,
    adapter_names,
    adapter_tensors,
    base_digest,
    kind_of,
    merge_adapter,
    save_adapter,
    trainable,
    virtual_tokens,
)
from evolvent.models.dialects import dialect_for
from evolvent.models.heads import ValueHead
from evolvent.models.policy import Policy, load_policy
from evolvent.models.tiny import word_tokenizer
from evolvent.models.tuned import attach_adapter, strip_adapter

WORDS = [f"word{number}" for number in range(25)]
SHAPE = {
    "vocab_size": 32,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 48,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
FAMILIES = {
    "llama": LlamaConfig(**SHAPE, tie_word_embeddings=True),
    "qwen2": Qwen2Config(**SHAPE, tie_word_embeddings=False),
    "qwen3": Qwen3Config(**SHAPE, head_dim=8, tie_word_embeddings=True),
    "mistral": MistralConfig(**SHAPE, sliding_window=None, tie_word_embeddings=False),
}
MERGEABLE, VIRTUAL = ("lora", "dora", "ia3"), ("prefix", "prompt")
KINDS = (*MERGEABLE, *VIRTUAL)
IDS = torch.tensor([[7, 8, 9, 10, 11, 12], [13, 7, 7, 20, 30, 8]])


def policy_of(family="llama", *, seed=0):
    config = FAMILIES[family] if isinstance(family, str) else family
    tokenizer = word_tokenizer(WORDS, context=48)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config).eval()
        for weight in model.parameters():
            weight.data.add_(torch.randn_like(weight) * 0.1)
    return Policy(model, tokenizer, dialect_for(tokenizer, "words"))


def config_of(kind, **changes):
    return AdapterConfig(**{"kind": kind, "rank": 3, "alpha": 6, "tokens": 4, **changes})


def tuned_policy(kind, family="llama", **changes):
    """A policy whose adapter does something: its weights are moved from where they begin."""
    policy = adapt(policy_of(family), config_of(kind, **changes), seed=1)
    move(policy.model)
    return policy


def move(model, *, by=0.2):
    generator = torch.Generator().manual_seed(5)
    names = set(trainable(model))
    for name, weight in model.named_parameters():
        if name in names:
            weight.data.add_(torch.randn(weight.shape, generator=generator) * by)


def logits(model, ids=IDS):
    with torch.inference_mode():
        return model(input_ids=ids, use_cache=False).logits[:, -ids.shape[1] :]


def difference(one, other):
    return float((one - other).abs().max())


# ---------------------------------------------------------------------- how they begin


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", MERGEABLE)
def test_changes_of_layers_begin_as_none(kind, family):
    policy = policy_of(family)
    tuned = adapt(policy, config_of(kind), seed=3)
    assert difference(logits(policy.model), logits(tuned.model)) < 2e-6
    assert kind_of(tuned.model) == kind and kind_of(policy.model) is None
    move(tuned.model)
    assert difference(logits(policy.model), logits(tuned.model)) > 1e-2


@pytest.mark.parametrize("family", FAMILIES)
def test_virtual_tokens_begin_as_words(family):
    """Before it learns, a model with virtual tokens into weights says what it says after these words."""
    policy = policy_of(family)
    table = policy.model.get_input_embeddings().weight
    prefix, prompt = (adapt(policy, config_of(kind), seed=9) for kind in VIRTUAL)
    begun = prompt.model.prompt_encoder["default"].embedding.weight
    words = torch.cdist(begun.double(), table.double()).argmin(1)
    assert torch.equal(table[words], begun)
    assert not set(words.tolist()) & set(policy.tokenizer.all_special_ids) and int(words.max()) < len(policy.tokenizer)
    expected = logits(policy.model, torch.cat([words.expand(2, -1), IDS], 1))[:, 4:]
    assert difference(expected, logits(prompt.model)) < 2e-6
    assert difference(expected, logits(prefix.model)) < 2e-6
    assert virtual_tokens(prefix.model) == (4, 0) and virtual_tokens(prompt.model) == (0, 4)
    assert virtual_tokens(policy.model) == (0, 0)


@pytest.mark.parametrize("kind", KINDS)
def test_the_given_policy_stays_and_memory_is_shared(kind):
    policy = policy_of()
    before = {name: (weight, weight.clone()) for name, weight in policy.model.named_parameters()}
    state = torch.random.get_rng_state()
    tuned = adapt(policy, config_of(kind), seed=1)
    assert torch.equal(state, torch.random.get_rng_state())
    move(tuned.model)
    logits(tuned.model)
    for name, weight in policy.model.named_parameters():
        assert weight is before[name][0] and weight.requires_grad and torch.equal(weight, before[name][1])
    places = {weight.data_ptr() for weight in policy.model.parameters()}
    learned = set(trainable(tuned.model))
    assert {w.data_ptr() in places for n, w in tuned.model.named_parameters() if n not in learned} == {True}
    assert not any(w.data_ptr() in places for n, w in tuned.model.named_parameters() if n in learned)
    extra = sum(w.numel() for n, w in tuned.model.named_parameters() if n in learned)
    assert tuned.parameters() == policy.parameters() + extra and 0 < extra < policy.parameters()
    assert not tuned.model.training and not any(module.training for module in tuned.model.modules())


@pytest.mark.parametrize("kind", KINDS)
def test_the_seed_alone_decides(kind):
    one, same, other = (adapter_tensors(adapt(policy_of(), config_of(kind), seed=s).model) for s in (4, 4, 5))
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert kind == "ia3" or any(not torch.equal(one[name], other[name]) for name in one)


def test_targets():
    def layers(**changes):
        names = adapter_names(adapt(policy_of("qwen2"), config_of("lora", **changes), seed=0).model).values()
        return {name.split(".")[-3] for name in names}

    every = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
    assert layers() == {"q_proj", "v_proj"}
    assert layers(targets=("all-linear",)) == every
    assert layers(targets=("down_proj", "lm_head")) == {"down_proj", "lm_head"}
    assert layers(targets=("model.layers.1.self_attn.k_proj",)) == {"k_proj"}


def test_an_architecture_that_peft_has_no_table_for(monkeypatch):
    for table in ("LORA_TARGET", "IA3_TARGET"):
        monkeypatch.delitem(getattr(peft.utils.constants, f"TRANSFORMERS_MODELS_TO_{table}_MODULES_MAPPING"), "llama")
    assert len(adapter_names(adapt(policy_of(), config_of("lora"), seed=0).model)) == 2 * 2 * 7
    with pytest.raises(ConfigError, match=r"no default targets of ia3 for a llama model.*k_proj"):
        adapt(policy_of(), config_of("ia3"), seed=0)


def test_layers_that_store_their_weights_turned():
    config = GPT2Config(vocab_size=32, n_positions=48, n_embd=24, n_layer=2, n_head=2, bos_token_id=1, eos_token_id=2)
    for kind in ("lora", "ia3"):
        policy = adapt(policy_of(config), config_of(kind), seed=0)
        move(policy.model)
        assert difference(logits(policy.model), logits(merge_adapter(policy).model)) < 1e-5


# ---------------------------------------------------------------------- mistakes


def problems(policy, config):
    with pytest.raises(ConfigError) as caught:
        adapt(policy, config, seed=0)
    return [(problem.where, problem.what, problem.hint) for problem in caught.value.problems]


def test_all_mistakes_at_once_before_anything_is_built(monkeypatch):
    monkeypatch.setattr(peft, "get_peft_model", None)
    found = problems(policy_of(), config_of("lora", targets=("q_prj", "lm_head", "k_proj"), rank=13))
    assert found == [
        ("adapter.targets", "unknown target 'q_prj'", "did you mean 'q_proj'?"),
        (
            "adapter.targets",
            "'lm_head' shares its weight with the embedding, so the adapter would change both",
            "leave it out",
        ),
        ("adapter.rank", "got 13, expected at most 12, the width of model.layers.0.self_attn.k_proj", ""),
    ]
    assert "unknown target 'embed_tokens'" in problems(policy_of(), config_of("ia3", targets=("embed_tokens",)))[0][1]
    assert problems(policy_of(), config_of("prefix", tokens=48))[0][0] == "adapter.tokens"


def test_one_adapter_a_policy():
    assert problems(tuned_policy("ia3"), config_of("lora"))[0][1] == "the policy already has an adapter of kind ia3"


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")
def test_an_adapter_of_a_kind_that_is_not_understood():
    model = peft.get_peft_model(policy_of().model, peft.VeraConfig(task_type="CAUSAL_LM", r=2))
    with pytest.raises(ConfigError, match="unknown peft_type 'VERA'"):
        kind_of(model)


def test_no_adapter_is_the_policy_itself():
    policy = policy_of()
    assert adapt(policy, AdapterConfig(), seed=0) is policy and merge_adapter(policy) is policy
    assert strip_adapter(policy.model) is policy.model
    with pytest.raises(ConfigError, match="no adapter to save"):
        save_adapter(policy.model, None)


def test_a_model_that_an_adapter_does_not_fit():
    class Unlike(PreTrainedConfig):
        model_type = "unlike"

    policy = policy_of()
    policy.model.config = Unlike(max_position_embeddings=48)
    with pytest.raises(ConfigError, match=r"takes no such adapter.*prefix.*unlike"):
        adapt(policy, config_of("prefix"), seed=0)


def test_without_peft(monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(MissingExtra, match=r"evolvent\[peft\]"):
        adapt(policy_of(), config_of("lora"), seed=0)
    assert policy_of().context == 48  # what needs no adapter needs no peft


# ---------------------------------------------------------------------- a policy with an adapter


def test_virtual_tokens_are_taken_from_the_context():
    assert [tuned_policy(kind).context for kind in KINDS] == [48, 48, 48, 44, 44]


@pytest.mark.parametrize("kind", KINDS)
def test_a_clone_learns_by_itself(kind):
    policy = tuned_policy(kind)
    before = logits(policy.model)
    clone = policy.clone()
    assert torch.equal(before, logits(clone.model))
    clone.model.bfloat16()
    move(clone.model.float())
    assert torch.equal(before, logits(policy.model)) and difference(before, logits(clone.model)) > 1e-3
    assert trainable(clone.model) == trainable(policy.model)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", MERGEABLE)
def test_merged_weights_do_the_same(kind, family):
    policy = tuned_policy(kind, family, targets=None if kind == "ia3" else ("all-linear",))
    before, own = logits(policy.model), adapter_tensors(policy.model)
    plain = merge_adapter(policy)
    assert difference(before, logits(plain.model)) < 1e-5
    assert type(plain.model) is type(strip_adapter(policy.model)) and kind_of(plain.model) is None
    places = {weight.data_ptr() for weight in policy.model.parameters()}
    for weight in plain.model.parameters():
        assert weight.requires_grad and weight.data_ptr() not in places
        weight.data.zero_()
    assert torch.equal(before, logits(policy.model))
    assert all(torch.equal(tensor, own[name]) for name, tensor in adapter_tensors(policy.model).items())
    tied = plain.model.get_output_embeddings().weight is plain.model.get_input_embeddings().weight
    assert tied == FAMILIES[family].tie_word_embeddings


def test_a_merged_policy_is_an_ordinary_folder(tmp_path):
    policy = tuned_policy("dora")
    merge_adapter(policy).save(tmp_path / "plain")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "plain")
    assert difference(logits(policy.model), logits(loaded)) < 1e-5


@pytest.mark.parametrize("kind", VIRTUAL)
def test_virtual_tokens_cannot_be_merged(kind):
    with pytest.raises(ConfigError, match=f"{kind} tuning cannot be merged.*4 virtual tokens.*RecomputeEngine"):
        merge_adapter(tuned_policy(kind))


def test_the_digest_is_of_the_base_alone():
    policy = policy_of()
    digest = base_digest(policy.model)
    assert {base_digest(adapt(policy, config_of(kind), seed=0).model) for kind in KINDS} == {digest}
    assert base_digest(tuned_policy("lora").model) == digest
    assert base_digest(policy.model.double()) == digest
    next(policy.model.parameters()).data[0, 0] += 0.5
    assert base_digest(policy.model) != digest


# ---------------------------------------------------------------------- files


@pytest.fixture
def base(tmp_path):
    policy_of().save(tmp_path / "base")
    return tmp_path / "base"


@pytest.mark.parametrize("kind", KINDS)
def test_saved_and_loaded(tmp_path, base, kind):
    """On a base in a folder: only the adapter is written, and what is loaded is the same and learns on."""
    policy = adapt(load_policy(base), config_of(kind), seed=1).next_version()
    move(policy.model)
    policy.save(tmp_path / "a")
    assert {path.name for path in (tmp_path / "a").iterdir()} >= {"adapter_config.json", "adapter_model.safetensors"}
    assert not [name for name in ("base", "config.json", "model.safetensors") if (tmp_path / "a" / name).exists()]
    again = load_policy(tmp_path / "a", context=20)
    assert torch.equal(logits(policy.model), logits(again.model))
    assert (again.version, again.dialect.name, again.context, kind_of(again.model)) == (1, "words", 20, kind)
    assert trainable(again.model) == trainable(policy.model)
    again.save(tmp_path / "b")
    for name in ("adapter_config.json", "adapter_model.safetensors", "evolvent.json"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


@pytest.mark.parametrize("kind", ["lora", "prefix"])
def test_a_base_of_no_folder_is_saved_beside_the_adapter(tmp_path, kind):
    policy = tuned_policy(kind, "qwen3")
    policy.save(tmp_path / "here")
    shutil.move(tmp_path / "here", tmp_path / "there")
    assert torch.equal(logits(policy.model), logits(load_policy(tmp_path / "there").model))
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "there" / "base")
    assert torch.equal(logits(plain), logits(policy_of("qwen3").model))


def test_a_base_that_has_learned_since_it_was_loaded(tmp_path, base):
    policy = load_policy(base)
    policy.model.get_input_embeddings().weight.data.mul_(2)
    tuned = adapt(policy, config_of("lora"), seed=1)
    tuned.save(tmp_path / "a")
    assert (tmp_path / "a" / "base" / "config.json").exists()
    assert torch.equal(logits(tuned.model), logits(load_policy(tmp_path / "a").model))


def test_a_base_that_has_changed_in_its_folder(tmp_path, base):
    adapt(load_policy(base), config_of("lora"), seed=1).save(tmp_path / "a")
    policy_of(seed=2).save(base)
    with pytest.raises(HashMismatch, match="has changed"):
        load_policy(tmp_path / "a")
    policy_of().save(base)
    load_policy(tmp_path / "a")


def test_a_plain_policy_replaces_an_adapter(tmp_path):
    tuned_policy("lora").save(tmp_path / "p")
    policy = policy_of()
    policy.save(tmp_path / "p")
    assert torch.equal(logits(policy.model), logits(load_policy(tmp_path / "p").model))


def test_a_value_head_comes_along(tmp_path):
    tuned = tuned_policy("lora")
    head = ValueHead(24)
    torch.nn.init.normal_(head.outer.weight)
    Policy(tuned.model, tuned.tokenizer, tuned.dialect, 3, head).save(tmp_path / "a")
    again = load_policy(tmp_path / "a")
    assert again.version == 3 and torch.equal(again.value_head.outer.weight, head.outer.weight)


@pytest.mark.parametrize("kind", KINDS)
def test_peft_reads_what_we_write(tmp_path, base, kind):
    policy = adapt(load_policy(base), config_of(kind, dropout=0.1), seed=1)
    move(policy.model)
    policy.save(tmp_path / "a")
    plain = AutoModelForCausalLM.from_pretrained(base)
    with pytest.warns(FutureWarning, match="is_gradient_checkpointing"):  # peft's own, about transformers
        read = peft.PeftModel.from_pretrained(plain, tmp_path / "a").eval()
    assert torch.equal(logits(policy.model), logits(read))
    assert read.peft_config["default"].base_model_name_or_path == str(base)


def theirs(kind):
    task = {"task_type": "CAUSAL_LM"}
    return {
        "lora": peft.LoraConfig(**task, r=2, target_modules=["up_proj", "q_proj"], rank_pattern={"q_proj": 4}),
        "dora": peft.LoraConfig(**task, r=2, use_dora=True, use_rslora=True, init_lora_weights="gaussian"),
        "ia3": peft.IA3Config(**task),
        "prefix": peft.PrefixTuningConfig(**task, num_virtual_tokens=3),
        "projection": peft.PrefixTuningConfig(**task, num_virtual_tokens=3, prefix_projection=True),
        "prompt": peft.PromptTuningConfig(**task, num_virtual_tokens=3, prompt_tuning_init="SAMPLE_VOCAB"),
    }[kind]


def peft_folder(base, folder, kind="lora"):
    with pytest.warns(FutureWarning, match="is_gradient_checkpointing"):
        model = peft.get_peft_model(AutoModelForCausalLM.from_pretrained(base), theirs(kind)).eval()
    move(model)
    model.save_pretrained(folder)
    return model


@pytest.mark.parametrize("kind", [*KINDS, "projection"])
def test_we_read_what_peft_writes(tmp_path, base, kind):
    model = peft_folder(base, tmp_path / "a", kind)
    policy = load_policy(tmp_path / "a")
    assert difference(logits(model), logits(policy.model)) < 1e-6
    assert kind_of(policy.model) == ("prefix" if kind == "projection" else kind)
    assert set(trainable(policy.model)) == set(adapter_names(policy.model))
    assert (policy.version, policy.dialect.name) == (0, "words")  # no note: the base's tokenizer and dialect
    policy.save(tmp_path / "b")
    assert torch.equal(logits(policy.model), logits(load_policy(tmp_path / "b").model))


def test_tensors_gathered_elsewhere(tmp_path):
    """Names are those of peft's files; a part of the model can write the whole."""
    policy = tuned_policy("dora")
    tensors = adapter_tensors(policy.model)
    assert min(tensors) == "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
    other = adapt(policy_of(), config_of("dora"), seed=7)
    save_adapter(other.model, tmp_path / "a", tensors=tensors)
    assert torch.equal(logits(policy.model), logits(attach_adapter(policy_of().model, tmp_path / "a")))


@pytest.mark.parametrize("kind", KINDS)
def test_every_trainable_weight_has_one_name_in_the_file(kind):
    model = tuned_policy(kind).model
    names = adapter_names(model)
    assert set(names) == set(trainable(model))
    saved = peft.get_peft_model_state_dict(model, save_embedding_layers=False)
    ours = adapter_tensors(model)
    assert set(names.values()) == set(saved) == set(ours)
    assert all(torch.equal(saved[name], ours[name]) for name in saved)


# ---------------------------------------------------------------------- files that are not safe or do not fit


def test_where_the_base_is(tmp_path, base):
    peft_folder(base, tmp_path / "a")
    base.rename(tmp_path / "moved")
    with pytest.raises(ConfigError, match=r"base model of the adapter .* not found.*load_policy\(folder, base="):
        load_policy(tmp_path / "a")
    load_policy(tmp_path / "a", base=tmp_path / "moved")
    change(tmp_path / "a", base_model_name_or_path="someone/somewhere")
    with pytest.raises(ConfigError, match="someone/somewhere"):
        load_policy(tmp_path / "a")
    change(tmp_path / "a", base_model_name_or_path=".")
    with pytest.raises(ConfigError, match="base of the adapter in"):
        load_policy(tmp_path / "a")
    with pytest.raises(ConfigError, match="base can be set only for an adapter folder"):
        load_policy(tmp_path / "moved", base=tmp_path / "moved")


def change(folder, **changes):
    path = folder / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"peft_type": "LORAX"}, "did you mean 'LORA'"),
        ({"peft_type": "VERA"}, "unknown peft_type"),
        ({"megatron_config": {"a": 1}, "megatron_core": "antigravity"}, "megatron_core = 'antigravity' is not supp"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights = 'pissa'"),
        ({"layer_replication": [[0, 2], [0, 2]]}, "layer_replication"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"something_new": 1}, "something_new"),
    ],
)
def test_settings_that_are_not_understood(tmp_path, base, changes, named):
    peft_folder(base, tmp_path / "a")
    change(tmp_path / "a", **changes)
    with pytest.raises(ConfigError, match=named):
        load_policy(tmp_path / "a")
    assert "antigravity" not in sys.modules


def test_weights_that_are_not_safe_or_do_not_fit(tmp_path, base):
    folder, weights = tmp_path / "a", tmp_path / "a" / "adapter_model.safetensors"
    peft_folder(base, folder)
    whole = load_file(weights)
    first = min(whole)
    save_file({name: tensor for name, tensor in whole.items() if name != first}, weights)
    with pytest.raises(Incomplete, match=first):
        load_policy(folder)
    save_file({**whole, first: torch.zeros(3, 24)}, weights)
    with pytest.raises(ShapeMismatch, match=r"belongs to another model: wrong shape of.*\(3, 24\).*\(2, 24\)"):
        load_policy(folder)
    save_file({**whole, "more": torch.zeros(1)}, weights)
    with pytest.raises(ShapeMismatch, match=r"more.*a missing tensor"):
        load_policy(folder)
    weights.write_bytes(b"\x10")
    with pytest.raises(Incomplete, match="cannot be read"):
        load_policy(folder)
    weights.rename(folder / "adapter_model.bin")
    with pytest.raises(UnsafeFile, match="pickled"):
        load_policy(folder)
    (folder / "adapter_model.bin").unlink()
    with pytest.raises(Incomplete, match="no adapter weights"):
        load_policy(folder)
    (folder / "adapter_config.json").write_text("[")
    with pytest.raises(Incomplete, match="adapter_config"):
        load_policy(folder)


def test_an_adapter_of_another_architecture(tmp_path, base):
    peft_folder(base, tmp_path / "a")
    change(tmp_path / "a", target_modules=["c_attn"])
    with pytest.raises(ConfigError, match=r"does not fit the model.*c_attn"):
        load_policy(tmp_path / "a")
