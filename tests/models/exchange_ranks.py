"""Small models for `test_exchange.py`, and what its ranks do: fill a model that is laid over them, and save it."""

from __future__ import annotations

import copy
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config

from evolvent.learn.checkpoint import CheckpointContent, Checkpointer
from evolvent.learn.parallel.ranks import Mesh, join_ranks
from evolvent.models import pieces
from evolvent.models.exchange import import_hf

CONFIGS = {"llama": LlamaConfig, "qwen2": Qwen2Config, "qwen3": Qwen3Config, "mistral": MistralConfig}
IDS = torch.tensor([[1, 5, 9, 2, 60], [3, 3, 40, 8, 63]])


def small_config(family, *, tied=True):
    return CONFIGS[family](
        vocab_size=64,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=64,
        tie_word_embeddings=tied,
    )


def meta_model(family, *, tied=True):
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(small_config(family, tied=tied)).eval()


def on_meta(model):
    """A model without storage that has another's configs."""
    with torch.device("meta"):
        found = AutoModelForCausalLM.from_config(copy.deepcopy(model.config))
    found.generation_config = model.generation_config
    return found


def logits(model):
    with torch.no_grad():
        return model(input_ids=IDS).logits


def save_weights(tensors, folder):
    save_file(tensors, Path(folder) / "model.safetensors", metadata={"format": "pt"})


def parallel(model, mesh):
    """Megatron's cuts of every layer; the embeddings stay whole."""
    down = {"self_attn.o_proj": RowwiseParallel(), "mlp.down_proj": RowwiseParallel()}
    up = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj"]
    for layer in model.model.layers:
        parallelize_module(layer, mesh, {**dict.fromkeys(up, ColwiseParallel()), **down})


def sharded(model, mesh):
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)


MESHES = {
    "fsdp": Mesh(shard=4),
    "hsdp": Mesh(replicate=2, shard=2),
    "tp": Mesh(tp=2, replicate=2),
    "fsdp tp": Mesh(shard=2, tp=2),
}


def laid(family, tied, ranks):
    model = meta_model(family, tied=tied)
    if ranks.mesh.tp > 1:
        parallel(model, ranks.devices["tp"])
    if ranks.mesh.shard > 1:
        sharded(model, ranks.devices["replicate", "shard"] if ranks.mesh.replicate > 1 else ranks.devices["shard"])
    return model.to_empty(device="cpu")


def imported(folder, family, tied):
    """{layout: (logits, names of wrong weights, whether embeddings and head are one, share of elements read)}."""
    found = {}
    reads = pieces.Index.plan_reads
    whole = AutoModelForCausalLM.from_pretrained(folder)
    theirs = dict(whole.named_parameters(remove_duplicate=False))
    total = sum(weight.numel() for weight in whole.parameters())
    for layout, mesh in MESHES.items():
        with join_ranks(mesh) as ranks:
            model = laid(family, tied, ranks)
            count = []

            def counted(index, name, region, count=count):
                count.append(region.numel)
                return reads(index, name, region)

            pieces.Index.plan_reads = counted
            try:
                import_hf(Path(folder), model)
            finally:
                pieces.Index.plan_reads = reads
            held = dict(model.named_parameters(remove_duplicate=False))
            wrong = [
                name
                for name, weight in held.items()
                if not torch.equal(weight.full_tensor() if isinstance(weight, DTensor) else weight, theirs[name])
            ]
            one = model.lm_head.weight is model.model.embed_tokens.weight
            said = logits(model) if mesh.tp == 1 else None  # with tp, a forward needs more than cut weights
            found[layout] = (said, wrong, one, sum(count) / total)
    return found


def saved(folder, to, family, tied):
    """Save a model that FSDP2 and tensor parallelism have cut, and one of two stages of two shards."""
    with join_ranks(Mesh(shard=2, tp=2)) as ranks:
        model = laid(family, tied, ranks)
        import_hf(Path(folder), model)
        Checkpointer(Path(to) / "sharded", ranks=ranks).save(
            1, CheckpointContent({"model": dict(model.named_parameters())})
        )
    with join_ranks(Mesh(pp=2, shard=2)) as ranks:
        model = meta_model(family, tied=tied)
        if ranks.rank_along("pp") == 0:
            model.model.layers[1], model.model.norm, model.lm_head = torch.nn.Identity(), None, None
        else:
            model.model.layers[0], model.model.embed_tokens = torch.nn.Identity(), None
        fully_shard(model, mesh=ranks.devices["shard"])
        model.to_empty(device="cpu")
        import_hf(Path(folder), model)
        Checkpointer(Path(to) / "stages", ranks=ranks).save(
            1, CheckpointContent({"model": dict(model.named_parameters())})
        )
