"""A loaded policy has the weights of its folder, whatever its family's initialization writes afterward."""

import os
import threading

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from evolvent.models import loaded_weights
from evolvent.models.loaded_weights import keep_loaded_weights
from evolvent.models.policy import load_policy
from evolvent.models.tiny import word_tokenizer

SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2}
FAMILIES = {
    "youtu": {
        "intermediate_size": 16,
        "kv_lora_rank": 4,
        "q_lora_rank": 4,
        "qk_rope_head_dim": 4,
        "qk_nope_head_dim": 4,
        "v_head_dim": 4,
    },
    "zaya": {"moe_intermediate_size": 16, "router_hidden_size": 8, "num_experts": 2, "head_dim": 8},
}


def save_model(folder, family):
    """Saves and returns a model whose end token is its padding token, with no weight or buffer at its first value."""
    tokenizer = word_tokenizer(["go", "left"])
    torch.manual_seed(0)
    tokens = {"vocab_size": 16, "pad_token_id": tokenizer.eos_token_id, "eos_token_id": tokenizer.eos_token_id}
    config = AutoConfig.for_model(family, tie_word_embeddings=True, **tokens, **SIZES, **FAMILIES[family])
    model = AutoModelForCausalLM.from_config(config).float().eval()
    with torch.no_grad():
        for tensor in model.state_dict().values():
            tensor.add_(torch.randn_like(tensor) * 0.1)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return model


def log_probs(model):
    with torch.inference_mode():
        return model(torch.arange(8)[None]).logits.log_softmax(-1)


def changed_tensors(model, other):
    state = other.state_dict()
    return sorted(name for name, tensor in model.state_dict().items() if not torch.equal(tensor, state[name]))


@pytest.mark.parametrize("family", FAMILIES)
def test_loaded_policy_has_the_weights_of_its_folder(family, tmp_path):
    model = save_model(tmp_path, family)
    loaded = load_policy(tmp_path).model
    assert changed_tensors(model, loaded) == []
    assert torch.equal(log_probs(model), log_probs(loaded))


@pytest.mark.parametrize(
    ("family", "names"),
    [
        ("youtu", ["lm_head.weight", "model.embed_tokens.weight"]),
        ("zaya", [f"model.layers.{layer}.mlp.gate.balancing_biases" for layer in (0, 1)]),
    ],
)
def test_transformers_alone_resets_weights_that_it_has_read(family, names, tmp_path):
    """Says when transformers needs no guard anymore."""
    model = save_model(tmp_path, family)
    assert changed_tensors(model, AutoModelForCausalLM.from_pretrained(tmp_path)) == names


def test_initialization_is_as_before_after_a_load_that_fails(tmp_path):
    initialize = PreTrainedModel.initialize_weights
    with pytest.raises(ValueError, match="Unrecognized model"), keep_loaded_weights():
        (tmp_path / "config.json").write_text("{}")
        AutoModelForCausalLM.from_pretrained(tmp_path)
    assert PreTrainedModel.initialize_weights is initialize


def test_a_weight_that_the_file_lacks_is_initialized_as_without_the_guard(tmp_path):
    """The untied head is drawn from the same random stream, while the padding row of the embeddings is kept."""
    model = save_model(tmp_path, "youtu")
    config = AutoConfig.from_pretrained(tmp_path, tie_word_embeddings=False)
    torch.manual_seed(1)
    unguarded = AutoModelForCausalLM.from_pretrained(tmp_path, config=config)
    torch.manual_seed(1)
    with keep_loaded_weights():
        guarded = AutoModelForCausalLM.from_pretrained(tmp_path, config=config)
    assert changed_tensors(model, guarded) == ["lm_head.weight"]
    assert changed_tensors(unguarded, guarded) == ["model.embed_tokens.weight"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs a fork")
def test_a_child_that_was_forked_during_a_load_can_load():
    entered, leave = threading.Event(), threading.Event()

    def load() -> None:
        with keep_loaded_weights():
            entered.set()
            leave.wait(30)

    thread = threading.Thread(target=load)
    thread.start()
    assert entered.wait(30)
    child = os.fork()
    if child == 0:
        os._exit(0 if loaded_weights._TURNS.lock.acquire(timeout=5) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    leave.set()
    thread.join()
