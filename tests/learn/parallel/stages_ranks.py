"""What the tests of pipelines run: trainings of ten updates, in one process and over ranks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from peft import LoraConfig, get_peft_model
from torch.distributed.tensor import DTensor
from transformers import AutoConfig, AutoModelForCausalLM

from evolvent.learn.forward import compute_outputs
from evolvent.learn.parallel.lay import apply_fsdp, apply_recompute, list_layers
from evolvent.learn.parallel.ranks import Mesh, join_ranks
from evolvent.learn.parallel.stages import Pipeline, split_into_stages
from evolvent.learn.parallel.tensor_parallel import apply_tp
from evolvent.learn.token_sequences import Batch
from evolvent.models.heads import ValueHead
from evolvent.models.tuned import seeded_silence

VOCAB = 62


@dataclass(frozen=True)
class Training:
    """Ten updates of a tiny model. `shapes`: `[B, T]` of updates in turn, `empty`: micro-batches without targets."""

    mesh: Mesh
    schedule: str = "1f1b"
    family: str = "llama"
    tied: bool = False
    layers: int = 4
    micro: int = 4
    shapes: tuple = ((2, 12),)
    empty: tuple = ()
    packed: bool = False
    values: bool = False
    recompute: bool = False
    adapter: bool = False
    frozen: tuple = ()
    dtype: torch.dtype = torch.float32
    updates: int = 10


def config_of(family="llama", *, layers=4, tied=False, **more):
    return AutoConfig.for_model(
        family,
        vocab_size=VOCAB,
        hidden_size=32,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        intermediate_size=48,
        max_position_embeddings=64,
        tie_word_embeddings=tied,
        pad_token_id=0,
        **more,
    )


def model_of(training):
    torch.manual_seed(3)
    config = config_of(training.family, layers=training.layers, tied=training.tied)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").float().train()
    model.value_head = ValueHead(config.hidden_size) if training.values else None
    for name, weight in model.named_parameters():
        weight.requires_grad_(not name.startswith(training.frozen or "nothing"))
    if training.adapter:
        settings = LoraConfig(task_type="CAUSAL_LM", r=4, target_modules=["q_proj", "v_proj", "down_proj"])
        with seeded_silence(5):
            return get_peft_model(model, settings).train()
    return model


def batch_of(*seed, shape, empty=False, packed=False):
    """Random ids; targets with random weights at about half of the places of rows of random length."""
    rng, (rows, length) = np.random.default_rng(seed), shape
    ids = rng.integers(1, VOCAB, shape)
    real = np.arange(length) < rng.integers(3, length + 1, (rows, 1))
    index = np.flatnonzero(real & (rng.random(shape) < 0.5) & (not empty))
    starts = np.broadcast_to(rng.integers(2, length, (rows, 1)), shape)  # of each row's second document
    place, second = np.broadcast_to(np.arange(length), shape), np.arange(length) >= starts
    positions, docs = np.where(second, place - starts, place), 2 * np.arange(rows)[:, None] + second
    tensors = [ids, index, rng.integers(1, VOCAB, len(index)), rng.uniform(0.5, 2, len(index)).astype(np.float32)]
    layout = [positions, np.where(real, docs, -1)] if packed else []
    made = [torch.from_numpy(np.ascontiguousarray(value)) for value in (*tensors, *layout)]
    return Batch(*made[:4], (), int(real.sum()), *made[4:])


def batches_of(training, update, share):
    shape = training.shapes[update % len(training.shapes)]
    return [
        batch_of(update % 3, share, number, shape=shape, empty=number in training.empty, packed=training.packed)
        for number in range(training.micro)
    ]


def loss_of(found, batch, *, scale):
    if found.values is not None:
        return ((found.values - batch.weights) ** 2).sum() * scale
    return -(found.logprobs * batch.weights).sum() * scale


def optimizer_of(named):
    """A rate at which rounding stays rounding: with 1e-2 the mere order of micro-batches moves losses by 7e-6."""
    weights = [weight for _, weight in named if weight.requires_grad]
    return torch.optim.AdamW(weights or [torch.zeros(())], lr=3e-3, weight_decay=0.1, foreach=False)


def alone(training):
    """The plain loop over the batches of all data ranks: losses and norms."""
    model, curve = model_of(training), []
    weights, needs = list(model.parameters()), ("values",) if training.values else ("logprobs",)
    optimizer = optimizer_of(model.named_parameters())
    for update in range(training.updates):
        batches = [batch for share in range(training.mesh.dp) for batch in batches_of(training, update, share)]
        count, total = sum(batch.count for batch in batches), 0.0
        for batch in batches:
            amount = loss_of(compute_outputs(model, batch, needs=needs, dtype=training.dtype), batch, scale=1 / count)
            amount.backward()
            total += float(amount.detach())
        norm = torch.nn.utils.clip_grad_norm_([weight for weight in weights if weight.grad is not None], 1.0)
        optimizer.step()
        optimizer.zero_grad()
        curve.append((total, float(norm)))
    return curve


def laid(training, ranks):
    model = model_of(training)
    compute = partial(compute_outputs, ranks=ranks, dtype=training.dtype)
    chunks = split_into_stages(model, ranks, training.schedule, compute=compute, dtype=training.dtype)
    for chunk in chunks:
        apply_tp(chunk.model, ranks, sequence=True)
        if training.recompute:
            apply_recompute(chunk.model)
        if ranks.mesh.dp > 1:
            apply_fsdp(chunk, list_layers(chunk.model), ranks, dtype=training.dtype)
    return Pipeline(chunks, ranks, training.schedule)


def full(value):
    return value.full_tensor() if isinstance(value, DTensor) else value


def norm_of(pipeline, ranks):
    """Of the whole model's gradient: every weight once, wherever it is."""
    counted = [weight for name, weight in pipeline.named_parameters() if pipeline.is_counted(name)]
    squares = [full(weight.grad).square().sum() for weight in counted if weight.grad is not None]
    return ranks.sum(sum(squares, torch.zeros(())), "pp").sqrt()


def trained(training):
    """The same training over ranks: losses and norms, and the final weights of this rank's stages."""
    needs = ("values",) if training.values else ("logprobs",)
    with join_ranks(training.mesh) as ranks:
        pipeline, curve = laid(training, ranks), []
        optimizer = optimizer_of(pipeline.named_parameters())
        for update in range(training.updates):
            batches = batches_of(training, update, ranks.rank_along("dp"))
            count = ranks.sum(torch.tensor(sum(batch.count for batch in batches)), "dp").item()
            total = pipeline.backward(batches, partial(loss_of, scale=ranks.mesh.dp / count), needs)
            pipeline.reduce()
            norm = norm_of(pipeline, ranks)
            for _, weight in pipeline.named_parameters():
                if weight.grad is not None:
                    weight.grad.mul_(torch.clamp(1.0 / (norm + 1e-6), max=1.0))
            optimizer.step()
            optimizer.zero_grad()
            curve.append((float(ranks.sum(total, "pp", "dp")) / ranks.mesh.dp, float(norm)))
        weights = {name: full(weight.detach()).numpy() for name, weight in pipeline.named_parameters()}
        return curve, weights


def emptied(training):
    """The loss of an update whose micro-batches teach nothing, and the largest entry of its gradient."""
    with join_ranks(training.mesh) as ranks:
        pipeline = laid(training, ranks)
        batches = [batch_of(number, shape=(2, 8), empty=True) for number in range(training.micro)]
        loss = pipeline.backward(batches, partial(loss_of, scale=1.0), ("logprobs",))
        pipeline.reduce()
        grads = [weight.grad for _, weight in pipeline.named_parameters()]
        return float(loss), max(float(grad.abs().max()) for grad in grads)
