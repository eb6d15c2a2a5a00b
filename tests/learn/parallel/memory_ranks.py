"""What the tests of the planner run: one update of a tiny model on this rank, and the bytes that it holds."""

from __future__ import annotations

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed.tensor import DTensor
from transformers import AutoConfig, AutoModelForCausalLM

from evolvent.learn.objectives import weighted_nll
from evolvent.learn.optim import OptimizerConfig, build_optimizer
from evolvent.learn.parallel.lay import distribute_model
from evolvent.learn.parallel.ranks import Parallelism, join_ranks
from evolvent.learn.token_sequences import Batch


def config_of(family="llama", *, tied=False, layers=4, **more):
    return AutoConfig.for_model(
        family,
        vocab_size=96,
        hidden_size=32,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        intermediate_size=56,
        max_position_embeddings=64,
        tie_word_embeddings=tied,
        pad_token_id=0,
        attn_implementation="sdpa",
        **more,
    )


def batch_of(rows, tokens, *, share=1.0, packed=False):
    count = round(rows * tokens * share)
    ids, index = torch.arange(rows * tokens).reshape(rows, tokens) % 90, torch.arange(count)
    docs = (torch.arange(tokens) // 5).expand(rows, tokens) + 9 * torch.arange(rows)[:, None] if packed else None
    positions = (torch.arange(tokens) % 5).expand(rows, tokens) if packed else None
    sequence = index // tokens
    return Batch(
        ids, index, index % 90, torch.ones(count), tuple(range(rows)), rows * tokens, positions, docs, sequence
    )


def local(tensor):
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def held(config, settings, optimizer="adamw", rows=2, tokens=16, micro=1):
    """Bytes on this rank after one update: weights, gradients, states, and what the first layer left for backward."""
    layout = Parallelism(**settings)
    with join_ranks(layout.mesh) as ranks:
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).train()
        laid = distribute_model(model, layout, ranks, dtype=torch.float32)
        named = dict(laid.named_parameters())
        made = build_optimizer(
            OptimizerConfig(name=optimizer, fused=False), named.items(), lr=1e-3, betas=(0.9, 0.98), weight_decay=0.0
        )
        saved = {}
        if layout.pp == 1:
            _watch(next(iter(model.get_decoder().layers)), list(named.values()), saved)
        batches = [batch_of(rows, tokens) for _ in range(micro)]
        laid.backward(batches, lambda outputs, batch: weighted_nll.loss(outputs, batch)[0], ("logprobs",))
        laid.reduce()
        made.step()
        weights = list(dict.fromkeys(named.values()))
        states = [value for weight in weights for value in made.state[weight].values()]
        return {
            "parameters": sum(local(weight).nbytes for weight in weights),
            "gradients": sum(local(weight.grad).nbytes for weight in weights),
            "optimizer": sum(local(state).nbytes for state in states if isinstance(state, torch.Tensor)),
            "layer": sum(saved.values()),
        }


def _watch(layer: nn.Module, weights, saved):
    """Note the storages that autograd saves while a layer runs, weights and what is handed in beside left out."""
    stack = []

    def enter(_, args, kwargs):
        left = {local(weight).untyped_storage().data_ptr() for weight in [*weights, *layer.parameters()]}
        left |= {table.untyped_storage().data_ptr() for table in kwargs["position_embeddings"]}

        def keep(tensor):
            where = local(tensor).untyped_storage()
            if where.data_ptr() not in left:
                saved[where.data_ptr()] = where.nbytes()
                alive.append(tensor)
            return tensor

        alive = []
        stack.append(saved_tensors_hooks(keep, lambda tensor: tensor))
        stack[-1].__enter__()

    layer.register_forward_pre_hook(enter, with_kwargs=True)
    layer.register_forward_hook(lambda *_: stack.pop().__exit__())
