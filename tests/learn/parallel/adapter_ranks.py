"""What the ranks of `test_adapters_sharded.py` run: a small model with an adapter, trained by a plain loop."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from transformers import Qwen3Config, Qwen3ForCausalLM

from evolvent.learn.learner import Learner
from evolvent.learn.objectives import weighted_nll
from evolvent.learn.parallel.ranks import Mesh, Parallelism, join_ranks
from evolvent.models.adapters import AdapterConfig, adapt, adapter_tensors, trainable
from evolvent.models.dialects import dialect_for
from evolvent.models.policy import Policy
from evolvent.models.tiny import word_tokenizer

ROWS, LENGTH, STEPS = 4, 12, 10
LOW = torch.bfloat16


def policy_of(kind, dtype=torch.float32):
    """The same on every rank."""
    tokenizer = word_tokenizer([f"word{number}" for number in range(40)], context=48)
    config = Qwen3Config(
        vocab_size=48,
        hidden_size=24,
        intermediate_size=40,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=48,
        tie_word_embeddings=True,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(config).eval()
    for weight in model.parameters():
        weight.data.add_(torch.randn_like(weight) * 0.1)
    policy = Policy(model.to(dtype), tokenizer, dialect_for(tokenizer, "words"))
    targets = ("q_proj", "v_proj", "o_proj", "down_proj") if kind in ("lora", "dora") else None
    return adapt(policy, AdapterConfig(kind=kind, rank=3, alpha=6, targets=targets, tokens=3), seed=1)


def train(model, *, rank=0, ranks=1, steps=STEPS):
    """The losses of AdamW steps on random text, its rows dealt to the ranks; and the optimizer."""
    model.train()
    optimizer = torch.optim.AdamW([weight for weight in model.parameters() if weight.requires_grad], lr=1e-2)
    generator, losses = torch.Generator().manual_seed(3), []
    for _ in range(steps):
        ids = torch.randint(7, 48, (ROWS, LENGTH + 1), generator=generator)
        mine = ids[rank::ranks]
        logits = model(input_ids=mine[:, :-1], use_cache=False).logits[:, -LENGTH:].float()
        amount = F.cross_entropy(logits.flatten(0, 1), mine[:, 1:].flatten(), reduction="sum") / (ROWS * LENGTH)
        optimizer.zero_grad()
        (amount * ranks).backward()
        optimizer.step()
        total = amount.detach().clone()
        if ranks > 1:
            dist.all_reduce(total)
        losses.append(float(total))
    return losses, optimizer


def layers(model):
    return model.get_base_model().get_decoder().layers


def sharded(kind, replicate=1, base_dtype="float32", low=False, recompute=False):
    """Train sharded: losses, the whole adapter, and what should be empty: frozen weights with a gradient or a state,
    weights that are not sharded, and trained weights without a gradient."""
    ranks = dist.get_world_size()
    model = policy_of(kind, getattr(torch, base_dtype)).model
    learned = trainable(model)
    if recompute:
        model.get_base_model().gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    mesh = init_device_mesh("cpu", (replicate, ranks // replicate), mesh_dim_names=("replicate", "shard"))
    mesh = mesh if replicate > 1 else mesh["shard"]
    policy = MixedPrecisionPolicy(param_dtype=LOW, reduce_dtype=torch.float32) if low else MixedPrecisionPolicy()
    for layer in layers(model):
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy, reshard_after_forward=False)
    losses, optimizer = train(model, rank=dist.get_rank(), ranks=ranks)
    named = dict(model.named_parameters())
    wrong = [name for name, w in named.items() if name not in learned and (w.grad is not None or w in optimizer.state)]
    wrong += [name for name, weight in named.items() if not isinstance(weight, DTensor)]
    wrong += [name for name in learned if named[name].grad is None]
    return losses, {name: tensor.numpy() for name, tensor in adapter_tensors(model).items()}, wrong


def small_training(kind, shard, base_bits=None):
    """The losses of a Learner over `shard` ranks, 1 being a single process, and this rank's view of the adapter."""
    from small_training import small_config, small_parts, small_policy

    mesh = Mesh(shard=shard)
    policy = adapt(small_policy(), AdapterConfig(kind=kind, rank=2, alpha=4, tokens=3, base_bits=base_bits), seed=1)
    config = small_config(epochs=4, batch_tokens=150, lr=1e-2)
    with join_ranks(mesh) as ranks:
        learner = Learner(policy, weighted_nll, config, seed=0, parallelism=Parallelism(shard=shard), ranks=ranks)
        report = learner.fit(small_parts(policy, 16))
    return report.losses, {name: tensor.numpy() for name, tensor in adapter_tensors(policy.model).items()}
