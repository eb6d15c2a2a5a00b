"""Weights of 8 bits: what they stand for, that transformers and our own loader read the same, what is refused."""

import json

import pytest
import torch

from evolvent.bench.latency import measure_latencies
from evolvent.errors import ConfigError, Incomplete
from evolvent.models.policy import load_policy, tiny_policy
from evolvent.models.quantized import is_quantized, load_quantized, write_int8_folder

pytest.importorskip("torchao")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("quantized")
    tiny_policy([f"w{n}" for n in range(20)], context=64, seed=3).save(root / "float")
    write_int8_folder(root / "float", root / "int8")
    return root


def test_every_weight_is_near_what_it_was(folders):
    before, after = (dict(load_policy(folders / name).model.named_parameters()) for name in ("float", "int8"))
    assert before.keys() == after.keys() and is_quantized(folders / "int8") and not is_quantized(folders / "float")
    changed = 0
    for name, weight in before.items():
        if weight.dim() < 2 or "embed" in name:
            assert torch.equal(weight, after[name]), name
            continue
        step = weight.abs().amax(1, keepdim=True) / 127
        assert ((weight - after[name]).abs() <= 0.51 * step).all(), name
        assert all(len(row.unique()) <= 256 for row in after[name])
        changed += int(not torch.equal(weight, after[name]))
    assert changed == 7 * len(load_policy(folders / "float").model.model.layers)


def test_both_loaders_compute_alike(folders):
    ids = torch.randint(5, 20, (2, 30), generator=torch.Generator().manual_seed(0))
    raw, own, plain = (
        load_quantized(folders / "int8"),
        load_policy(folders / "int8").model,
        load_policy(folders / "float").model,
    )
    with torch.inference_mode():
        logits = [model(ids).logits for model in (raw, own, plain)]
    torch.testing.assert_close(logits[0], logits[1], rtol=0, atol=1e-4)
    difference = (logits[1] - logits[2]).abs().max()
    assert 1e-4 < difference < 0.5 * logits[2].std(), "other weights, nearly the same model"
    sizes = [sum(file.stat().st_size for file in (folders / name).glob("*.safetensors")) for name in ("float", "int8")]
    assert sizes[1] < 0.4 * sizes[0]


def test_it_is_a_policy_like_any_other(folders, tmp_path):
    policy = load_policy(folders / "int8")
    assert policy.version == 0 and policy.dialect.name == "words" and policy.model.dtype == torch.float32
    policy.save(tmp_path / "again")
    assert not is_quantized(tmp_path / "again")
    again = load_policy(tmp_path / "again")
    assert again.base.digest == policy.base.digest != load_policy(folders / "float").base.digest


def test_what_is_refused(folders, tmp_path):
    with pytest.raises(ConfigError, match="exists"):
        write_int8_folder(folders / "float", folders / "int8")
    with pytest.raises(ConfigError, match="the weights already have 8 bits"):
        write_int8_folder(folders / "int8", tmp_path / "x")
    assert not (tmp_path / "x").exists()
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": {"quant_method": "torchao"}}))
    with pytest.raises(Incomplete):
        load_quantized(tmp_path)


def test_latency_counts_every_token_alike(folders):
    model = load_policy(folders / "float").model
    asked = []
    hook = model.register_forward_pre_hook(
        lambda one, args, more: asked.append(more["input_ids"].shape[1]), with_kwargs=True
    )
    found = measure_latencies({"a": model, "b": model}, prompt=5, tokens=3, repeats=2)
    hook.remove()
    assert asked == [5, 1, 1, 1] * 6 and set(found) == {"a", "b"}
    assert all(0 < one.cpu_ms < 1000 and one.wall_ms > 0 for one in found.values())
    with pytest.raises(ConfigError, match="60 \\+ 5 tokens in a context of 64"):
        measure_latencies({"a": model}, prompt=60, tokens=5)
