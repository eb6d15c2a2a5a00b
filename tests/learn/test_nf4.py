"""Weights of 4 bits below an adapter: their numbers, what trains over them, files, merging, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from small_training import WORDS, small_config, small_parts, small_policy
from torch import nn

from evolvent.cli.main import main
from evolvent.errors import ConfigError, Incomplete
from evolvent.learn.checkpoint import Checkpointer
from evolvent.learn.cost import Cost
from evolvent.learn.learner import Learner
from evolvent.learn.objectives import weighted_nll
from evolvent.learn.optim import OptimizerConfig
from evolvent.learn.parallel.memory import Load, build_meta_model, estimate_memory
from evolvent.learn.parallel.ranks import Parallelism
from evolvent.models.adapters import AdapterConfig, adapt, base_digest, find_base_problems, merge_adapter, quantize_base
from evolvent.models.catalog import models_folder
from evolvent.models.nf4 import LEVELS, NF4Linear, count_weights, list_nf4_layers
from evolvent.models.policy import Policy, load_policy
from evolvent.models.tuned import adapter_tensors, strip_adapter
from tests.faults.launched import Launched

LORA = AdapterConfig(kind="lora", base_bits=4)
IDS = torch.tensor([[7, 8, 9, 10, 11, 12], [5, 7, 7, 6, 3, 8]])


def make_linear(shape: tuple[int, int] = (96, 100), *, bias: bool = False, seed: int = 0) -> nn.Linear:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        linear = nn.Linear(shape[1], shape[0], bias=bias)
        linear.weight.data = 0.02 * torch.randn(shape) * torch.rand(shape[0], 1)
    return linear


def compute_logits(policy: Policy) -> torch.Tensor:
    with torch.no_grad():
        logits: torch.Tensor = policy.model.eval()(input_ids=IDS).logits
    return logits


# ---------------------------------------------------------------------- numbers


def test_levels_are_chosen_by_hand() -> None:
    """A block whose largest number is 2: every level times 2 is itself; halfway, the nearer one."""
    weight = torch.zeros(1, 64)
    weight[0, :16] = 2 * torch.tensor(LEVELS)
    weight[0, 16] = 2 * 0.05  # between 0 and 0.0796, whose middle is 0.0398
    weight[0, 17] = 2 * 0.03
    linear = nn.Linear(64, 1, bias=False)
    linear.weight.data = weight
    layer = NF4Linear(linear)
    expected = weight.clone()
    expected[0, 16], expected[0, 17] = 2 * LEVELS[8], 0.0
    assert torch.equal(layer.weight, expected)
    assert layer.codes[:8].tolist() == [0x01, 0x23, 0x45, 0x67, 0x89, 0xAB, 0xCD, 0xEF]
    assert (layer.scales.tolist(), layer.steps.tolist()) == ([255], [2 / 256])


@pytest.mark.parametrize("shape", [(96, 100), (3, 5), (64, 1088)])
def test_dequantized_weights_are_quantized_to_the_same_numbers(shape: tuple[int, int]) -> None:
    layer = NF4Linear(make_linear(shape))
    again = NF4Linear(layer.to_linear())
    for name, buffer in layer.named_buffers():
        assert torch.equal(buffer, again.get_buffer(name)), name


def test_a_layer_has_four_bits_a_weight_and_errs_as_nf4_does() -> None:
    """Blocks of 64 of a normal distribution err by about 0.09 of its deviation."""
    linear = nn.Linear(1024, 64, bias=False)
    linear.weight.data = torch.randn(64, 1024, generator=torch.Generator().manual_seed(1))
    layer = NF4Linear(linear)
    assert sum(buffer.nbytes for buffer in layer.buffers()) * 8 / linear.weight.numel() == pytest.approx(
        4.127, abs=2e-3
    )
    error = (layer.weight - linear.weight.detach()).square().mean().sqrt()
    assert 0.085 < float(error) < 0.1


def test_forward_and_gradient_equal_those_of_the_same_floats() -> None:
    layer = NF4Linear(make_linear(bias=True))
    plain = layer.to_linear()
    results = []
    for module in (layer, plain):
        x = torch.randn(2, 3, 100, generator=torch.Generator().manual_seed(2)).requires_grad_()
        output = module(x)
        output.square().sum().backward()
        results.append((output, x.grad))
    torch.testing.assert_close(results[0], results[1])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert layer(torch.ones(1, 100)).dtype == torch.bfloat16
    steps = layer.steps.clone()
    assert torch.equal(layer.to(torch.bfloat16).steps, steps), "numbers stay as they are"
    assert layer.weight.dtype == torch.bfloat16 and layer.weight.requires_grad is False


def test_levels_equal_those_of_bitsandbytes() -> None:
    functional = pytest.importorskip("bitsandbytes.functional")
    linear = make_linear((576, 1536))
    codes, state = functional.quantize_4bit(
        linear.weight.data, blocksize=64, compress_statistics=True, quant_type="nf4"
    )
    layer, peer = NF4Linear(linear), functional.dequantize_4bit(codes, state)
    assert torch.equal(layer.codes, codes.flatten())
    error, peer_error = ((weights - linear.weight).norm() for weights in (layer.weight, peer))
    assert float(error) <= 1.002 * float(peer_error)
    assert state.code.tolist() == list(LEVELS)


# ---------------------------------------------------------------------- training


def test_the_adapter_learns_and_the_base_stays() -> None:
    policy = adapt(small_policy(), LORA, seed=3)
    before = {name: layer.codes.clone() for name, layer in list_nf4_layers(policy.model).items()}
    learner = Learner(policy, weighted_nll, small_config(epochs=6, lr=1e-2), seed=1)
    report = learner.fit(small_parts(policy, 20))
    assert report.losses[-1] < 0.9 * report.losses[0]
    assert before and all(
        torch.equal(layer.codes, before[name]) for name, layer in list_nf4_layers(policy.model).items()
    )
    floats = adapt(replace_base(policy), AdapterConfig(kind="lora"), seed=3)
    other = Learner(floats, weighted_nll, small_config(epochs=6, lr=1e-2), seed=1)
    assert other.fit(small_parts(floats, 20)).losses == pytest.approx(report.losses, rel=1e-4)
    assert learner.policy.parameters() == other.policy.parameters()


def replace_base(policy: Policy) -> Policy:
    """Returns a policy without adapter whose plain floats are those that the 4-bit base computes with."""
    return merge_adapter(adapt(strip(policy), AdapterConfig(kind="lora"), seed=0))


def strip(policy: Policy) -> Policy:
    return Policy(strip_adapter(policy.model), policy.tokenizer, policy.dialect)


def test_a_stopped_training_equals_the_whole_one(tmp_path: Path) -> None:
    def fit(folder: Path | None, stop: int = 99) -> tuple[Any, dict[str, torch.Tensor]]:
        learner = Learner(adapt(small_policy(), LORA, seed=3), weighted_nll, small_config(epochs=2), seed=1)
        keeper = None if folder is None else Checkpointer(folder, every=50)
        report = learner.fit(
            small_parts(learner.policy, 20), checkpoint=keeper, should_stop=lambda: learner.updates >= stop
        )
        return report, adapter_tensors(learner.policy.model)

    whole, weights = fit(None)
    assert not fit(tmp_path, stop=2)[0].finished
    resumed, same_weights = fit(tmp_path)
    assert resumed == whole and all(torch.equal(weights[name], same_weights[name]) for name in weights)


def test_copies_share_the_weights_of_four_bits() -> None:
    policy = adapt(small_policy(), LORA, seed=3)
    clone = policy.clone()
    for name, layer in list_nf4_layers(policy.model).items():
        assert clone.model.get_submodule(name).codes.data_ptr() == layer.codes.data_ptr()


@pytest.mark.long
def test_commands_imitate_and_practise_over_four_bits(tmp_path: Path) -> None:
    """Imitation and a step of GRPO train the adapter; the run's model is loaded, played and merged."""
    panel = "--worlds lookup --panel.limit 2 --slots 4 --max_tokens 4"
    argv = (
        f"train grpo {panel} --demonstrations 4 --clone_tokens 100 --tasks 2 --rl.practice.iterations 1 "
        f"--rl.practice.group_size 2 --rl.kl 0.1 --adapter.kind lora --adapter.base_bits 4 --output_dir {tmp_path}/run"
    )
    assert main(argv.split()) == 0
    policy = load_policy(tmp_path / "run/model")
    assert list_nf4_layers(policy.model) and any(weight.any() for weight in adapter_tensors(policy.model).values())
    torch.testing.assert_close(compute_logits(merge_adapter(policy)), compute_logits(policy), rtol=1e-4, atol=1e-4)
    assert main(f"eval {tmp_path}/run {panel} --output_dir {tmp_path}/eval".split()) == 0


# ---------------------------------------------------------------------- files and merging


@pytest.mark.parametrize("is_stored", [True, False])
def test_a_saved_adapter_is_loaded_with_the_same_numbers(tmp_path: Path, is_stored: bool) -> None:
    """The base is quantized again: from its own folder, or from floats that were written beside the adapter."""
    base = small_policy()
    if is_stored:
        base.save(tmp_path / "base")
        base = load_policy(tmp_path / "base")
    policy = adapt(base, LORA, seed=3)
    Learner(policy, weighted_nll, small_config(epochs=1, lr=1e-2), seed=1).fit(small_parts(policy, 20))
    policy.save(tmp_path / "adapter")
    note = json.loads((tmp_path / "adapter/evolvent.json").read_text(encoding="utf-8"))["base"]
    assert note["bits"] == 4 and (tmp_path / "adapter/base").exists() is not is_stored
    loaded = load_policy(tmp_path / "adapter")
    assert list_nf4_layers(loaded.model) and torch.equal(compute_logits(loaded), compute_logits(policy))
    loaded.save(tmp_path / "again")
    assert torch.equal(compute_logits(load_policy(tmp_path / "again")), compute_logits(policy))
    note_file = tmp_path / "adapter/evolvent.json"
    note_file.write_text(note_file.read_text(encoding="utf-8").replace('"bits": 4', '"bits": 3'), encoding="utf-8")
    with pytest.raises(Incomplete, match="unknown base"):
        load_policy(tmp_path / "adapter")


def test_merging_gives_floats_that_compute_the_same() -> None:
    policy = adapt(small_policy(), LORA, seed=3)
    for name, weight in policy.model.named_parameters():
        if "lora_B" in name:
            weight.data = torch.randn(weight.shape, generator=torch.Generator().manual_seed(4)) * 0.1
    merged = merge_adapter(policy)
    assert not list_nf4_layers(merged.model) and all(weight.is_floating_point() for weight in merged.model.parameters())
    torch.testing.assert_close(compute_logits(merged), compute_logits(policy), rtol=1e-4, atol=1e-5)
    assert list_nf4_layers(policy.model), "the policy itself stays as it was"


# ---------------------------------------------------------------------- plans and refusals


def test_the_plan_counts_four_bits() -> None:
    policy = small_policy()
    quantized = adapt(policy, LORA, seed=3)
    meta = adapt(Policy(build_meta_model(policy.model.config), policy.tokenizer, policy.dialect), LORA, seed=3)
    held = sum(tensor.nbytes for tensor in quantized.model.parameters())
    held += sum(buffer.nbytes for layer in list_nf4_layers(quantized.model).values() for buffer in layer.buffers())
    estimate = estimate_memory(meta.model, Parallelism(), OptimizerConfig(), load=Load(2, 16))
    plain = adapt(policy, AdapterConfig(kind="lora"), seed=3)
    whole = estimate_memory(plain.model, Parallelism(), OptimizerConfig(), load=Load(2, 16))
    assert estimate.parameters == held < whole.parameters
    assert (estimate.gradients, estimate.optimizer) == (whole.gradients, whole.optimizer)
    assert count_weights(quantized.model) == plain.parameters()
    assert Cost.from_model(quantized.model) == Cost.from_model(plain.model)


def test_the_digest_tells_bases_apart() -> None:
    digests = {base_digest(quantize_base(small_policy(seed=seed)).model) for seed in (1, 2)}
    assert len(digests) == 2 and base_digest(small_policy().model) not in digests


def test_what_cannot_have_four_bits_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="without an adapter"):
        adapt(small_policy(), AdapterConfig(base_bits=4), seed=0)
    problems = find_base_problems(LORA, num_ranks=4, num_parts=2)
    assert [str(problem) for problem in problems] == [
        "adapter.base_bits: weights of 4 bits are whole on every rank: got a layout that divides them into 2 parts "
        "(use --parallel.shard 4 instead of tp and pp, or leave it out)"
    ]
    assert not find_base_problems(LORA, num_ranks=4)
    argv = ["train", "rl", "--method", "grpo", "--adapter.base_bits", "4", "--output_dir", str(tmp_path / "run")]
    assert main(argv) == 2
    assert "set --adapter.kind lora" in " ".join(capsys.readouterr().err.split())
    assert main([*argv, "--adapter.kind", "lora", "--adapter.base_bits", "8"]) == 2


@pytest.mark.long
def test_a_pretrained_model_learns_over_four_bits(tmp_path: Path) -> None:
    """SmolLM2 holds less than half of its bytes, begins near its own loss, learns, and comes back with its numbers."""
    folder = models_folder() / "smollm2"
    if not (folder / "model.safetensors").is_file():
        pytest.skip("needs SmolLM2: evolvent models get smollm2")
    rows = [{"prompt": f"What is {n} plus {n}?", "completion": f"{n} plus {n} is {2 * n}."} for n in range(1, 9)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    losses: dict[str, list[float]] = {}
    for name, bits in (("floats", ""), ("bits", " --adapter.base_bits 4")):
        argv = f"train sft {tmp_path}/rows.jsonl --policy {folder} --dtype float32 --adapter.kind lora{bits}"
        argv += f" --train.max_steps 4 --train.warmup_steps 1 --train.lr 1e-3 --output_dir {tmp_path}/{name}"
        assert main(argv.split()) == 0
        metrics = [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        losses[name] = [row["loss"] for row in metrics if "loss" in row]
    assert losses["bits"][0] == pytest.approx(losses["floats"][0], abs=0.3)
    assert losses["bits"][-1] < 0.8 * losses["bits"][0]
    policy = load_policy(tmp_path / "bits/model", dtype="float32")
    note = json.loads((tmp_path / "bits/model/evolvent.json").read_text(encoding="utf-8"))["base"]
    assert (note["folder"], note["bits"]) == (str(folder.resolve()), 4)
    held = sum(tensor.nbytes for tensor in policy.model.parameters())
    held += sum(buffer.nbytes for layer in list_nf4_layers(policy.model).values() for buffer in layer.buffers())
    assert held < 0.45 * 4 * policy.parameters()
    policy.save(tmp_path / "copy")
    again = load_policy(tmp_path / "copy", dtype="float32")
    assert torch.equal(compute_logits(again), compute_logits(policy))
    torch.testing.assert_close(compute_logits(merge_adapter(policy)), compute_logits(policy), rtol=1e-3, atol=1e-3)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
def test_ranks_imitate_over_four_bits_as_one_process_does(tmp_path: Path) -> None:
    """Two ranks share the adapter; its files load with the same numbers."""
    small_policy().save(tmp_path / "base")
    rows = [{"prompt": one, "completion": f"{other} {one}"} for one in WORDS for other in WORDS[:2]]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    argv = f"train sft {tmp_path}/rows.jsonl --policy {tmp_path}/base --adapter.kind lora --adapter.base_bits 4"
    argv += " --train.max_steps 4 --train.warmup_steps 1 --train.lr 1e-2 --train.batch_tokens 64 --output_dir"
    assert main([*argv.split(), str(tmp_path / "alone")]) == 0
    with Launched(2, [*argv.split(), "wide", "--parallel.shard", "2"], cwd=tmp_path) as ranks:
        assert ranks.wait(seconds=120) == [0, 0], ranks.errors()
    losses = {}
    for name in ("alone", "wide"):
        metrics = [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        losses[name] = [row["loss"] for row in metrics if "loss" in row]
    assert losses["wide"] == pytest.approx(losses["alone"], abs=2e-6) and losses["alone"][-1] < losses["alone"][0]
    alone, wide = (load_policy(tmp_path / name / "model") for name in ("alone", "wide"))
    assert list_nf4_layers(wide.model)
    torch.testing.assert_close(compute_logits(wide), compute_logits(alone), rtol=1e-5, atol=1e-5)
