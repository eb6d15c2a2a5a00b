"""GGUF files: dequantized weights, restored tokenizers, and one sentence about what is wrong with a file."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from evolvent.errors import ConfigError, EvolventError, Incomplete
from evolvent.models.gguf import read_gguf_header
from evolvent.models.policy import load_policy
from tests.gguf_support import TEMPLATE, byte_vocabulary, tensors_of, tiny_llama, write_gguf

gguf = pytest.importorskip("gguf", reason="the extra [gguf] is not installed")
GOLDEN = json.loads((Path(__file__).parent / "gguf_ids.json").read_text(encoding="utf-8"))


def logits(model):
    with torch.inference_mode():
        return model(torch.arange(1, 40)[None]).logits


def golden_vocabulary() -> tuple[list[str], list[str]]:
    tokens, _ = byte_vocabulary()
    merged = [merge.replace(" ", "") for merge in GOLDEN["merges"]]
    return [*tokens, *merged, "\u0120xyzzy"], GOLDEN["merges"]


def test_a_file_and_its_folder_are_policies_with_the_same_logits(tmp_path):
    model = write_gguf(tmp_path / "tiny.gguf")
    for path in (tmp_path / "tiny.gguf", tmp_path, str(tmp_path / "tiny.gguf")):
        policy = load_policy(path)
        assert torch.equal(logits(policy.model), logits(model))
        assert policy.dialect.name == "chat" and policy.context == 256 and policy.tokenizer.model_max_length == 256


def test_an_untied_head_is_read(tmp_path):
    model = write_gguf(tmp_path / "tiny.gguf", tie_word_embeddings=False)
    policy = load_policy(tmp_path / "tiny.gguf")
    assert not policy.model.config.tie_word_embeddings
    assert torch.equal(logits(policy.model), logits(model))


def test_quantized_weights_are_those_of_the_format(tmp_path):
    model = write_gguf(tmp_path / "tiny.gguf", quantized=True)
    kind = gguf.GGMLQuantizationType.Q4_1
    expected = gguf.dequantize(gguf.quantize(tensors_of(model)["blk.1.ffn_up.weight"], kind), kind)
    weight = load_policy(tmp_path / "tiny.gguf").model.model.layers[1].mlp.up_proj.weight
    assert np.array_equal(weight.detach().numpy(), expected)


def test_a_saved_policy_is_an_ordinary_folder(tmp_path):
    (tmp_path / "in").mkdir()
    write_gguf(tmp_path / "in" / "tiny.gguf", quantized=True)
    policy = load_policy(tmp_path / "in")
    policy.save(tmp_path / "out")
    config = (tmp_path / "out" / "config.json").read_text(encoding="utf-8")
    assert "Private" not in config and "quantization" not in config and str(tmp_path) not in config
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert torch.equal(logits(plain), logits(policy.model))
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert tokenizer.chat_template == TEMPLATE and tokenizer.model_max_length == 256
    assert tokenizer.encode("a   42 xx") == policy.tokenizer.encode("a   42 xx")
    again = load_policy(tmp_path / "out")
    assert (again.dialect.name, again.dialect.stop_ids) == ("chat", policy.dialect.stop_ids)
    assert plain.generation_config.eos_token_id == 2


def test_model_save_pretrained_works_too(tmp_path):
    write_gguf(tmp_path / "tiny.gguf", quantized=True)
    load_policy(tmp_path / "tiny.gguf").model.save_pretrained(tmp_path / "out")
    assert (tmp_path / "out" / "model.safetensors").is_file()


@pytest.mark.parametrize("pre", GOLDEN["ids"])
def test_tokens_are_those_of_llama_cpp(tmp_path, pre):
    write_gguf(tmp_path / "tiny.gguf", pre=pre, vocabulary=golden_vocabulary())
    tokenizer = load_policy(tmp_path / "tiny.gguf").tokenizer
    for text, ids in zip(GOLDEN["texts"], GOLDEN["ids"][pre], strict=True):
        if ids is not None:
            assert tokenizer.encode(text, add_special_tokens=False) == ids, text


def test_the_splits_of_golden_names_differ():
    rows = [json.dumps(ids) for ids in GOLDEN["ids"].values()]
    assert len(set(rows)) == len(rows)


def test_a_file_without_a_pre_tokenizer_has_the_default(tmp_path):
    write_gguf(tmp_path / "tiny.gguf", pre=None, vocabulary=golden_vocabulary())
    tokenizer = load_policy(tmp_path / "tiny.gguf").tokenizer
    encoded = [tokenizer.encode(text, add_special_tokens=False) for text in GOLDEN["texts"]]
    assert encoded == GOLDEN["ids"]["default"]


def test_an_adapter_on_a_file_is_saved_with_its_base(tmp_path):
    from evolvent.models.adapters import AdapterConfig, adapt

    (tmp_path / "in").mkdir()
    write_gguf(tmp_path / "in" / "tiny.gguf")
    adapt(load_policy(tmp_path / "in"), AdapterConfig(kind="lora"), seed=0).save(tmp_path / "out")
    assert (tmp_path / "out" / "base" / "model.safetensors").is_file()
    assert load_policy(tmp_path / "out").model is not None


# ---------------------------------------------------------------------- scaled positions


def test_llama_3_factors_become_its_scaling(tmp_path):
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    scaling = {
        "rope_type": "llama3",
        "rope_theta": 10_000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    # A head of 64 has wavelengths on both sides of the two limits, 2,048 and 8,192.
    sizes = {"head_dim": 64, "max_position_embeddings": 131_072}
    config = tiny_llama(260, rope_parameters=scaling, **sizes).config
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    plain = 1 / 10_000.0 ** (torch.arange(0, 64, 2) / 64)
    factors = (plain / scaled).numpy().astype(np.float32)
    assert factors.min() == pytest.approx(1) and factors.max() == pytest.approx(8)
    assert ((factors > 1.01) & (factors < 7.99)).any()
    extra = {"rope_freqs.weight": factors}
    model = write_gguf(tmp_path / "tiny.gguf", extra_tensors=extra, rope_parameters=scaling, **sizes)
    policy = load_policy(tmp_path / "tiny.gguf")
    assert policy.model.config.rope_parameters == {**scaling, "factor": pytest.approx(8)}
    assert torch.allclose(logits(policy.model), logits(model), atol=1e-5)
    extra["rope_freqs.weight"] = factors * np.linspace(1, 1.5, 32, dtype=np.float32)
    write_gguf(tmp_path / "tiny.gguf", extra_tensors=extra, **sizes)
    with pytest.raises(ConfigError, match="scales its positions"):
        load_policy(tmp_path / "tiny.gguf")


def test_linear_and_yarn_scaling_are_kept(tmp_path):
    values = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}
    scaling = {"rope_type": "linear", "factor": 4.0, "rope_theta": 10_000.0}
    model = write_gguf(tmp_path / "tiny.gguf", values=values, rope_parameters=scaling)
    assert torch.equal(logits(load_policy(tmp_path / "tiny.gguf").model), logits(model))
    values = {
        "llama.rope.scaling.type": "yarn",
        "llama.rope.scaling.factor": 4.0,
        "llama.rope.scaling.original_context_length": 64,
    }
    scaling = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 10_000.0, "original_max_position_embeddings": 64}
    model = write_gguf(tmp_path / "tiny.gguf", values=values, rope_parameters=scaling)
    assert torch.equal(logits(load_policy(tmp_path / "tiny.gguf").model), logits(model))
    write_gguf(tmp_path / "tiny.gguf", values={"llama.rope.scaling.type": "longrope"})
    with pytest.raises(ConfigError, match="scales its positions"):
        load_policy(tmp_path / "tiny.gguf")


# ---------------------------------------------------------------------- what is wrong with a file

BAD = {
    "architecture": ({"architecture": "rwkv9"}, "architecture that transformers does not read.*got rwkv9"),
    "clip": ({"architecture": "clip"}, "architecture that transformers does not read.*got clip"),
    "tokenizer": ({"tokenizer": None}, "holds no tokenizer"),
    "kind": ({"tokenizer": "rwkv"}, "unknown kind of tokenizer: got rwkv"),
    "pre": (
        {"pre": "deepseek-llm"},
        "unknown pre-tokenizer: got deepseek-llm, expected one that splits as gpt-2, smollm, .*folder of safetensors",
    ),
    "merges": ({"vocabulary": byte_vocabulary()}, "holds no merges"),
    "part": ({"values": {"split.count": 3}}, "one of 3 parts of a model.*llama-gguf-split"),
    "missing": ({"left_out": ("blk.1.ffn_up.weight",)}, "weights are missing.*up_proj"),
    "more": ({"extra_tensors": {"blk.0.attn_q.bias": np.ones(64, np.float32)}}, "does not read: got .* in the model"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_is_refused_in_one_sentence(tmp_path, name):
    options, pattern = BAD[name]
    write_gguf(tmp_path / "tiny.gguf", **options)
    with pytest.raises(EvolventError, match=pattern) as caught:
        load_policy(tmp_path / "tiny.gguf")
    assert "\n" not in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["tiny.gguf"]


def test_a_file_cut_anywhere_is_refused_before_weights_are_read(tmp_path, monkeypatch):
    path = tmp_path / "tiny.gguf"
    write_gguf(path, quantized=True)
    whole = path.read_bytes()
    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", None)
    for size in (*range(5, 3000, 97), len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(Incomplete, match="is cut off"):
            load_policy(path)
    for text, pattern in ((b"", "not a GGUF file"), (b"GGML1234", "not a GGUF file"), (b"GGUF", "is cut off")):
        path.write_bytes(text)
        with pytest.raises(EvolventError, match=pattern):
            load_policy(path)
    path.write_bytes(b"GGUF" + (9).to_bytes(4, "little") + whole[8:])
    with pytest.raises(ConfigError, match="unknown version of GGUF: got 9"):
        load_policy(path)


def test_lengths_beyond_the_file_are_not_allocated(tmp_path):
    path = tmp_path / "tiny.gguf"
    write_gguf(path)
    whole = bytearray(path.read_bytes())
    for offset in (8, 16, 24):  # the numbers of tensors and of values, the length of the first key
        damaged = whole.copy()
        damaged[offset : offset + 8] = (2**62).to_bytes(8, "little")
        path.write_bytes(damaged)
        with pytest.raises(Incomplete):
            read_gguf_header(path)


def test_several_files_in_a_folder_are_named(tmp_path):
    write_gguf(tmp_path / "a.gguf")
    write_gguf(tmp_path / "b.gguf")
    with pytest.raises(ConfigError, match=r"holds 2 GGUF files: got a.gguf, b.gguf. Name one: .*a.gguf"):
        load_policy(tmp_path)
    assert load_policy(tmp_path / "b.gguf").context == 256


def test_the_header_is_read_without_weights(tmp_path):
    model = write_gguf(tmp_path / "tiny.gguf")
    header = read_gguf_header(tmp_path / "tiny.gguf")
    assert (header.architecture, header.context) == ("llama", 256)
    assert header.parameters() == sum(weight.numel() for weight in model.parameters())
    assert header.metadata["tokenizer.ggml.tokens"] == 260
