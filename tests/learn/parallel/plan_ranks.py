"""What the ranks of the tensor-parallel tests do: the same small training, whole or in parts."""

from __future__ import annotations

import copy
import warnings
from contextlib import contextmanager

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from transformers import AutoConfig, AutoModelForCausalLM

from evolvent.errors import BatchMismatch, ConfigError
from evolvent.learn.parallel import tensor_parallel
from evolvent.learn.parallel.ranks import SINGLE_PROCESS, Mesh, join_ranks, vocab_logprobs, vocab_sample
from evolvent.models.heads import ValueHead

STEPS, ROWS, LENGTH, WORDS, WIDTH = 10, 4, 16, 64, 32


def tiny(family="llama", *, tied=False, **changes):
    """A decoder with every bias its family has and a padding row, none of its weights what they begin as."""
    shape = {
        "vocab_size": WORDS,
        "hidden_size": WIDTH,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "head_dim": 8,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "tie_word_embeddings": tied,
        "pad_token_id": 3,
        "max_position_embeddings": 64,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "sliding_window": None,
    }
    biased = {"llama": {"attention_bias": True, "mlp_bias": True}, "qwen3": {"attention_bias": True}}
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **shape | biased.get(family, {}) | changes))
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * (0.1 if weight.dim() > 1 else 0.3))
    return model


def lora(model, targets, *, warm=False, **changes):
    """LoRA on linears; `warm`: with a B that is not 0, so that one backward says something of A."""
    from peft import LoraConfig, get_peft_model

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # peft asks transformers by an old name
        model = get_peft_model(model, LoraConfig(r=4, lora_alpha=8, target_modules=targets, **changes))
    for name, weight in model.named_parameters():
        if warm and "lora_B" in name:
            nn.init.normal_(weight)
    return model


def data():
    """Ids `[ROWS, LENGTH]`, and learning weights that are 0 at a ragged part of the targets."""
    generator = torch.Generator().manual_seed(7)
    ids = torch.randint(WORDS, (ROWS, LENGTH), generator=generator)
    weights = torch.rand(ROWS, LENGTH, generator=generator) + 0.5
    weights[torch.rand(ROWS, LENGTH, generator=generator) < 0.4] = 0
    weights[0, 5:] = 0
    return ids, weights


@contextmanager
def head_at(head, index):
    """As the learner does: the head sees the hidden states at the targets only."""

    def select(_, args):
        return (args[0].flatten(0, -2).index_select(0, index)[None], *args[1:])

    hook = head.register_forward_pre_hook(select, prepend=True)
    yield
    hook.remove()


def loss_of(model, ids, weights, *, count, ranks):
    learned = weights[:, 1:] != 0
    row, column = learned.nonzero().T
    with head_at(model.get_output_embeddings(), row * ids.shape[1] + column):
        logits = model(input_ids=ids, use_cache=False).logits[0]
    return -(vocab_logprobs(logits, ids[:, 1:][learned], ranks) * weights[:, 1:][learned]).sum() / count


def train(model, ranks, *, micro=1):
    """Losses and gradient norms of updates by AdamW; the rows of the batch are dealt to the data ranks."""
    learned = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(learned, lr=1e-2, weight_decay=0.1)
    ids, weights = data()
    count, dp = int((weights[:, 1:] != 0).sum()), ranks.mesh.dp
    mine = list(range(ranks.rank_along("dp"), ROWS, dp))
    losses, norms = [], []
    for _ in range(STEPS):
        optimizer.zero_grad()
        total = torch.zeros(())
        for start in range(micro):
            rows = mine[start::micro]
            loss = loss_of(model, ids[rows], weights[rows], count=count, ranks=ranks)
            (loss * dp).backward()
            total += loss.detach()
        norm = nn.utils.clip_grad_norm_(learned, 1.0)
        optimizer.step()
        losses.append(float(ranks.sum(total, "dp")))
        norms.append(float(norm.full_tensor() if isinstance(norm, DTensor) else norm))
    return losses, norms


def curve(family, settings, mesh, *, targets=None, sequence=True, micro=1, deaf=False):
    """`train` of a model on a mesh. `deaf`: gradients of whole weights are not summed over the ranks."""
    shared = tensor_parallel.SHARED
    with join_ranks(mesh) as ranks:
        model = tiny(family, **settings)
        model = lora(model, targets) if targets else model
        tensor_parallel.SHARED = tensor_parallel.COPIED if deaf else shared
        tensor_parallel.apply_tp(model, ranks, sequence=sequence)
        tensor_parallel.SHARED = shared
        if mesh.dp > 1:
            over = ranks.devices["replicate", "shard"] if mesh.replicate > 1 else ranks.devices["shard"]
            for layer in base_of(model).model.layers:
                fully_shard(layer, mesh=over)
            fully_shard(model, mesh=over)
        return train(model, ranks, micro=micro)


def curves(cells):
    """`curve` of several cells: positional and keyword arguments each."""
    return [curve(*args, **kwargs) for args, kwargs in cells]


def base_of(model):
    return model.get_base_model() if hasattr(model, "get_base_model") else model


# ------------------------------------------------------------------ one backward, looked at closely


def arguments(way):
    """What a model is fed, and the tensor whose gradient is of interest."""
    ids, _ = data()
    if way != "packed":
        return {"input_ids": ids}, None
    states = (torch.randn(ROWS, LENGTH, WIDTH, generator=torch.Generator().manual_seed(1)) * 0.3).requires_grad_()
    docs, places = torch.arange(LENGTH) // 6, torch.arange(LENGTH) % 6
    mask = (docs[:, None] == docs) & torch.ones(LENGTH, LENGTH).tril().bool()
    fed = {"inputs_embeds": states, "position_ids": places.expand(ROWS, -1)}
    return fed | {"attention_mask": mask.expand(ROWS, 1, -1, -1)}, states


def prepared(way, family, settings, targets):
    model = tiny(family, **settings)
    if way == "value":
        model.value_head = ValueHead(WIDTH)
        nn.init.normal_(model.value_head.outer.weight)
    model = lora(model, targets, warm=True) if targets else model
    if way == "recompute":
        base_of(model).gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        model.train()
    return model


def once(model, way, ranks):
    """Loss and gradients, whole, of one backward over all positions; also that of what the head was given."""
    ids, weights = data()
    fed, states = arguments(way)
    seen = []
    head = base_of(model).get_output_embeddings()
    hook = head.register_forward_pre_hook(lambda _, args: seen.append(args[0]), prepend=True)
    logits = model(**fed, use_cache=False).logits
    hook.remove()
    seen[0].retain_grad()
    assert type(logits) is torch.Tensor
    assert type(seen[0]) is torch.Tensor
    assert logits.shape == (ROWS, LENGTH, WORDS // ranks.mesh.tp)
    found = vocab_logprobs(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten(), ranks)
    loss = -(found * weights[:, 1:].flatten()).sum()
    if way == "value":
        loss = loss + base_of(model).value_head(seen[0]).square().sum()
    loss.backward()
    grads = {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}
    grads |= {"head's input": seen[0].grad} | ({} if states is None else {"inputs_embeds": states.grad})
    return float(loss.detach()), grads


def compared(way, family, settings, targets, sequence):
    """The largest relative differences of loss and of gradients between a whole model and its parts on 2 ranks."""
    with join_ranks(Mesh(tp=2)) as ranks:
        whole, model = prepared(way, family, settings, targets), prepared(way, family, settings, targets)
        tensor_parallel.apply_tp(model, ranks, sequence=sequence)
        if way == "compile":
            for layer in base_of(model).model.layers:
                layer.compile(backend="eager", fullgraph=True)
        model = copy.deepcopy(model) if way == "copy" else model
        assert all(isinstance(weight, DTensor) for weight in model.parameters())
        loss, grads = once(model, way, ranks)
        expected, right = once(whole, way, SINGLE_PROCESS)
        lies = {name: weight.placements for name, weight in model.named_parameters()}
        assert all(grads[name].placements == lies[name] for name in lies if name in grads)  # no sums left to do
        assert list(grads) == list(right)
        full = {name: grad.full_tensor() if isinstance(grad, DTensor) else grad for name, grad in grads.items()}
        worst = max(
            float((full[name] - grad).abs().max() / grad.abs().max().clamp_min(1e-3)) for name, grad in right.items()
        )
        return abs(loss - expected) / abs(expected), worst


class Skip(nn.Module):
    """In the place of a layer that another stage has."""

    def forward(self, hidden_states, *_, **__):
        return hidden_states


def staged(sequence):
    """A middle stage of a pipeline: differences of hidden states, of their gradients and of a norm's."""
    with join_ranks(Mesh(tp=2)) as ranks:
        found = []
        for here in (SINGLE_PROCESS, ranks):
            model = tiny("qwen3", num_hidden_layers=4)
            for number in (0, 3):
                model.model.layers[number] = Skip()
            model.model.embed_tokens, model.model.norm, model.lm_head = None, nn.Identity(), None
            tensor_parallel.apply_tp(model, here, sequence=sequence)
            states = torch.randn(2, 8, WIDTH, generator=torch.Generator().manual_seed(5)).requires_grad_()
            left = model.model(inputs_embeds=states, use_cache=False).last_hidden_state
            (left * torch.arange(WIDTH)).sum().backward()
            grad = model.model.layers[1].input_layernorm.weight.grad
            found.append((left, states.grad, grad.full_tensor() if isinstance(grad, DTensor) else grad))
        return [float((one - other).abs().max() / one.abs().max()) for one, other in zip(*found, strict=True)]


def held(tied):
    """The bytes of this rank's parts, and of the whole; laid on the meta device too, where nothing is computed."""
    with join_ranks(Mesh(tp=2)) as ranks:
        model = tiny("qwen3", tied=tied)
        with torch.device("meta"):
            empty = AutoModelForCausalLM.from_config(model.config)
        empty.tie_weights()
        sizes = {name: weight.shape for name, weight in model.named_parameters()}
        whole = sum(weight.nbytes for weight in model.parameters())
        tensor_parallel.apply_tp(model, ranks, sequence=True)
        tensor_parallel.apply_tp(empty, ranks, sequence=True)
        assert {name: weight.shape for name, weight in model.named_parameters()} == sizes
        parts = {weight.to_local().untyped_storage() for weight in model.parameters()}
        shapes = [[weight.to_local().shape for weight in laid.parameters()] for laid in (model, empty)]
        assert shapes[0] == shapes[1]
        return sum(part.nbytes() for part in parts), whole, model.lm_head.weight is model.model.embed_tokens.weight


# ------------------------------------------------------------------ the vocabulary


def slices(logits, ids, gradient):
    """Log-probabilities from this rank's slice, and its slice of the gradient."""
    with join_ranks(Mesh(tp=2)) as ranks:
        own = logits.chunk(2, dim=-1)[ranks.rank_along("tp")].clone().requires_grad_()
        found = vocab_logprobs(own, ids, ranks)
        found.backward(gradient)
        return found.detach(), own.grad


def draws(logits, seed):
    with join_ranks(Mesh(tp=2)) as ranks:
        generator = torch.Generator().manual_seed(seed)
        return vocab_sample(logits.chunk(2, dim=-1)[ranks.rank_along("tp")], ranks, generator)


# ------------------------------------------------------------------ what is refused


def refusals():
    """What a rank is told for every model that cannot be laid; and nothing of that model has changed."""
    from peft import IA3Config, PrefixTuningConfig, get_peft_model

    def unplanned(model):
        model.model.layers[1].self_attn.gate = nn.Linear(WIDTH, WIDTH)
        return model

    def misread(model):
        model.config.base_model_tp_plan = model.config.base_model_tp_plan | {"layers.*.mlp.up_proj": "colwize"}
        return model

    def headless(model):
        type(model)._tp_plan, kept = {"lm_head": "rowise"}, type(model)._tp_plan
        told(model)
        type(model)._tp_plan = kept
        return tiny("llama", vocab_size=63)

    found = []

    def told(model):
        before = [(name, type(weight), weight.shape) for name, weight in model.named_parameters()]
        try:
            tensor_parallel.apply_tp(model, ranks, sequence=True)
        except ConfigError as error:
            found.append(str(error))
        assert before == [(name, type(weight), weight.shape) for name, weight in model.named_parameters()]

    with join_ranks(Mesh(tp=2)) as ranks:
        told(unplanned(tiny()))
        told(misread(tiny()))
        told(headless(tiny()))
        told(lora(tiny(), ["q_proj"], use_dora=True))
        told(get_peft_model(tiny(), IA3Config(target_modules=["k_proj"], feedforward_modules=[])))
        told(get_peft_model(tiny(), PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2)))
        model = tiny()
        tensor_parallel.apply_tp(model, ranks, sequence=True)
        try:
            model(input_ids=data()[0][:, :7], use_cache=False)
        except BatchMismatch as error:
            found.append(str(error))
    return found
