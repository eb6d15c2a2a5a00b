"""Fault 72: a model folder whose configuration, weights or files are not what they claim: looked at before it is built.

Sizes and layers are compared with the weights, and files that are too large are not read.
"""

from __future__ import annotations

import json
import re

import pytest

pytest.importorskip("transformers")


import evolvent as ev
from evolvent.errors import ConfigError, EvolventError, Incomplete, LimitExceeded
from evolvent.models.catalog import count_parameters
from evolvent.models.inspection import check_config
from evolvent.models.policy import load_policy


@pytest.fixture
def folder(tmp_path):
    ev.tiny_policy(["go", "left"], context=32).save(tmp_path / "model")
    return tmp_path / "model"


def change(folder, **fields) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


BAD_SIZES = [
    ("num_hidden_layers", -1, "num_hidden_layers -1, expected a whole number above 0"),
    ("num_hidden_layers", 0, "num_hidden_layers 0"),
    ("num_hidden_layers", 1.5, "num_hidden_layers 1.5"),
    ("num_hidden_layers", 1, "got 1 layers in config.json, expected 3, as in the weights"),
    ("num_hidden_layers", 3_000, "got 3,000 layers in config.json, expected 3, as in the weights"),
    ("num_hidden_layers", 10**9, "num_hidden_layers 1,000,000,000, which needs"),
    ("vocab_size", -5, "vocab_size -5"),
    ("vocab_size", 10**8, "vocab_size 100,000,000, which needs"),
    ("intermediate_size", 10**9, "intermediate_size 1,000,000,000, which needs"),
    ("num_attention_heads", 0, "num_attention_heads 0"),
    ("num_key_value_heads", -2, "num_key_value_heads -2"),
    ("max_position_embeddings", -1, "max_position_embeddings -1"),
    ("head_dim", 10**10, "head_dim 10,000,000,000, which needs"),
    ("num_experts", 10**9, "num_experts 1,000,000,000, which needs"),
    ("hidden_size", "wide", "hidden_size 'wide'"),
]


@pytest.mark.parametrize(("name", "value", "message"), BAD_SIZES)
def test_a_size_that_does_not_fit_the_weights_is_refused_before_anything_is_built(
    folder, monkeypatch, name, value, message
):
    change(folder, **{name: value})
    monkeypatch.setattr("evolvent.models.policy._load_model", lambda *_: pytest.fail("it was built"))
    with pytest.raises(ConfigError, match=re.escape(message)):
        load_policy(folder)


def test_layers_that_predict_further_tokens_belong_to_the_model(folder):
    shapes = {f"model.layers.{number}.mlp.up_proj.weight": (4, 4) for number in range(5)}
    shapes |= {f"vision.blocks.{number}.weight": (4, 4) for number in range(9)}
    check_config(folder, {"num_hidden_layers": 5}, shapes)
    check_config(folder, {"num_hidden_layers": 4, "num_nextn_predict_layers": 1}, shapes)
    check_config(folder, {"text_config": {"num_hidden_layers": 5}}, shapes)
    check_config(folder, {"num_hidden_layers": 5, "vocab_size": 99_999, "quantization_config": {}}, shapes)
    for layers in (4, 6):
        with pytest.raises(ConfigError, match="do not fit its config"):
            check_config(folder, {"num_hidden_layers": layers}, shapes)


def test_a_huge_text_file_is_refused_by_its_size(folder):
    with (folder / "tokenizer_config.json").open("ab") as file:
        file.truncate(2**27)  # a file of holes
    with pytest.raises(LimitExceeded, match=r"tokenizer_config\.json is too large: got 134,217,728 bytes"):
        load_policy(folder)


@pytest.mark.parametrize("shape", [[-1, 4], [2.5], "4", None])
def test_a_header_of_weights_with_an_impossible_shape_is_refused(tmp_path, shape):
    header = json.dumps({"w": {"dtype": "F32", "shape": shape, "data_offsets": [0, 4]}}).encode()
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    with pytest.raises(Incomplete, match="does not have a safetensors header"):
        count_parameters(tmp_path)


def test_a_configuration_that_transformers_refuses_is_a_typed_error(folder):
    for fields in ({"model_type": "nothing"}, {"hidden_act": 5}, {"rope_parameters": "x"}, {"dtype": "float7"}):
        original = (folder / "config.json").read_text()
        change(folder, **fields)
        with pytest.raises(EvolventError):
            load_policy(folder)
        (folder / "config.json").write_text(original)
