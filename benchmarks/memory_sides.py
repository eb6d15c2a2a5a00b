"""What `benchmarks.memory` measures, each cell in a process of its own: models, sides, and the peak of a few updates.

On a CPU the peak is the kernel's (VmHWM of /proc/self/status, set back through /proc/self/clear_refs) over the resident
size before the optimizer exists. Every process has one malloc arena and gives blocks of 64 KB or more back at once. A
tiny model is trained first, so that libraries, their code and their buffers are there before the size is read. On CUDA
both are the allocator's own counts.
"""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from evolvent.errors import EvolventError
from evolvent.learn.forward import compute_outputs
from evolvent.learn.learner import Learner, TrainConfig
from evolvent.learn.objectives import weighted_nll
from evolvent.learn.optim import FusedOptimizer, OptimizerConfig, build_optimizer
from evolvent.learn.parallel.ranks import Parallelism
from evolvent.learn.token_sequences import Batch
from evolvent.models.adapters import AdapterConfig, adapt
from evolvent.models.dialects import dialect_for
from evolvent.models.policy import Policy
from evolvent.models.tiny import word_tokenizer

MALLOC = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
WORDS = 32000
LORA = AdapterConfig(kind="lora", rank=8, alpha=16, targets=("q_proj", "v_proj"))
# family, size in millions -> hidden, intermediate, layers, heads, kv heads; Llama is untied, Qwen3 tied
SHAPES = {
    ("llama", 20): (256, 688, 6, 4, 4),
    ("llama", 40): (384, 1024, 8, 6, 6),
    ("llama", 80): (576, 1536, 11, 9, 9),
    ("llama", 160): (768, 2048, 16, 12, 12),
    ("llama", 300): (1024, 2816, 18, 16, 16),
    ("qwen3", 20): (384, 1024, 5, 6, 3),
    ("qwen3", 40): (512, 1536, 8, 8, 4),
    ("qwen3", 80): (640, 1920, 13, 10, 5),
    ("qwen3", 160): (896, 2688, 14, 14, 7),
    ("llama", 7000): (4096, 11008, 32, 32, 32),
}


@dataclass(frozen=True)
class Cell:
    """One measurement: which side trains which model by which rule, on what."""

    side: str
    optimizer: str
    family: str = "llama"
    size: int = 300
    rows: int = 1
    tokens: int = 64
    targets_share: float = 1.0
    recompute: bool = False
    device: str = "cpu"
    weights: str = "float32"
    dtype: str = "float32"
    words: int = WORDS
    updates: int = 2
    seed: int = 0


def config_of(cell: Cell) -> Any:
    """The transformers config of a shape."""
    from transformers import LlamaConfig, Qwen3Config

    hidden, inner, layers, heads, kv = SHAPES[cell.family, cell.size]
    common = {
        "vocab_size": cell.words,
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "head_dim": hidden // heads,
        "attn_implementation": "sdpa",
    }
    return LlamaConfig(**common) if cell.family == "llama" else Qwen3Config(**common, tie_word_embeddings=True)


def batch_of(cell: Cell) -> Batch:
    """Random tokens; the learned ones are the first of the batch."""
    random = torch.Generator().manual_seed(cell.seed)
    size = (cell.rows, cell.tokens)
    count = max(1, round(cell.rows * cell.tokens * cell.targets_share))
    ids = torch.randint(cell.words, size, generator=random)
    targets = torch.randint(cell.words, (count,), generator=random)
    index = torch.arange(count)
    rows = tuple(range(cell.rows))
    return Batch(ids, index, targets, torch.ones(count), rows, ids.numel(), sequence=index // cell.tokens)


# ---------------------------------------------------------------------- sides: from a model to one update

Update = Callable[[Batch], None]


@dataclass(frozen=True)
class Made:
    """A side ready to train: one update, and the optimizer whose state can be counted (None: keeps it elsewhere)."""

    update: Update
    optimizer: torch.optim.Optimizer | None = None


def _loss(model: Any, batch: Batch, dtype: str) -> Tensor:
    amount, count = weighted_nll.loss(compute_outputs(model, batch, dtype=getattr(torch, dtype)), batch)
    return amount / count


def ours(model: Any, cell: Cell) -> Made:
    """The Learner, as `evolvent train` runs it; where weights are not float32, as it has them, its optimizer alone."""
    chosen = OptimizerConfig(name="adamw" if cell.optimizer == "lora" else cell.optimizer)
    if cell.weights != "float32":
        return _loop(
            model, cell, build_optimizer(chosen, model.named_parameters(), lr=1e-4, betas=(0.9, 0.98), weight_decay=0.0)
        )
    tokenizer = word_tokenizer(["a"])
    policy = Policy(model, tokenizer, dialect_for(tokenizer, "words"))
    config = TrainConfig.model_validate({"lr": 1e-4, "weight_decay": 0.0, "dtype": cell.dtype})
    layout = Parallelism(recompute=cell.recompute)
    learner = Learner(policy, weighted_nll, config, seed=cell.seed, optimizer=chosen, parallelism=layout)

    def update(batch: Batch) -> None:
        learner.update([batch])

    return Made(update, learner.optimizer)


def _loop(model: Any, cell: Cell, optimizer: torch.optim.Optimizer, *, twice: bool = False) -> Made:
    """A plain loop: forward, backward, step, the gradients dropped. `twice` keeps the graph for second derivatives."""
    if cell.recompute:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})

    def update(batch: Batch) -> None:
        if isinstance(optimizer, FusedOptimizer):
            optimizer.arm()
        torch.autograd.backward(_loss(model, batch, cell.dtype), create_graph=twice)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return Made(update, optimizer)


def of_torch(model: Any, cell: Cell) -> Made:
    """torch.optim with its defaults; for LoRA over the adapter that peft itself makes."""
    kinds = {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD, "adafactor": torch.optim.Adafactor}
    kind: Any = kinds.get(cell.optimizer, torch.optim.AdamW)
    return _loop(model, cell, kind([p for p in model.parameters() if p.requires_grad], lr=1e-4))


def of_pytorch_optimizer(model: Any, cell: Cell) -> Made:
    """The package of that name. It has Hutchinson's Sophia only, which wants second derivatives."""
    import pytorch_optimizer as others

    if cell.optimizer in ("lomo", "adalomo"):
        fused: Any = (others.LOMO if cell.optimizer == "lomo" else others.AdaLOMO)(model, lr=1e-4)
        return _fused_loop(model, cell, fused)
    names = {"adafactor": "adafactor", "lion": "lion", "adan": "adan", "sophiag": "sophiah", "sgd": "sgd"}
    name = names.get(cell.optimizer, "adamw")
    optimizer_class: Any = others.load_optimizer(name)
    made = optimizer_class(model.parameters(), lr=1e-4)
    return _loop(model, cell, made, twice=name == "sophiah")


def of_lomo_optim(model: Any, cell: Cell) -> Made:
    """The authors' package."""
    import lomo_optim  # type: ignore[import-untyped]

    return _fused_loop(model, cell, getattr(lomo_optim, {"lomo": "Lomo", "adalomo": "AdaLomo"}[cell.optimizer])(model))


def _fused_loop(model: Any, cell: Cell, optimizer: Any) -> Made:
    if cell.recompute:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})

    def update(batch: Batch) -> None:
        optimizer.fused_backward(_loss(model, batch, cell.dtype), 1e-4)

    return Made(update)


SIDES: dict[str, Callable[[Any, Cell], Made]] = {
    "evolvent": ours,
    "torch": of_torch,
    "peft": of_torch,
    "pytorch_optimizer": of_pytorch_optimizer,
    "lomo_optim": of_lomo_optim,
}


# ---------------------------------------------------------------------- one cell


def build(cell: Cell, config: Any) -> Any:
    """The model on its device, with an adapter where the cell says so."""
    from transformers import AutoModelForCausalLM

    torch.manual_seed(cell.seed)
    with torch.device(cell.device):
        model = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, cell.weights)).train()
    if cell.optimizer != "lora":
        return model
    if cell.side == "evolvent":
        tokenizer = word_tokenizer(["a"])
        return adapt(Policy(model, tokenizer, dialect_for(tokenizer, "words")), LORA, seed=cell.seed).model
    import peft

    given = {"r": LORA.rank, "lora_alpha": LORA.alpha, "target_modules": list(LORA.targets or ())}
    return peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", **given))


class Gauge:
    """Bytes in use on a device: now, and the most since `start`."""

    def __init__(self, device: str) -> None:
        self._cuda = device.startswith("cuda")

    def start(self) -> int:
        """Bytes now; from here on the peak is counted."""
        gc.collect()
        if self._cuda:
            torch.cuda.reset_peak_memory_stats()
        else:
            Path("/proc/self/clear_refs").write_text("5")
        return self.now()

    def now(self) -> int:
        return torch.cuda.memory_allocated() if self._cuda else _status("VmRSS")

    def peak(self) -> int:
        return torch.cuda.max_memory_allocated() if self._cuda else _status("VmHWM")


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith(name + ":")).split()[1])


def warm_up(cell: Cell) -> None:
    """Train a tiny model by the same side, so that what libraries load at first use is not counted."""
    tiny = replace(cell, size=20, rows=1, tokens=8, words=64)
    config = config_of(tiny)
    config.num_hidden_layers = 1
    config.layer_types = ["full_attention"] if hasattr(config, "layer_types") else None
    model = build(tiny, config)
    made = SIDES[cell.side](model, tiny)
    batch = batch_of(tiny).to(torch.device(cell.device))
    for _ in range(2):
        made.update(batch)


def measure(cell: Cell) -> dict[str, Any]:
    """The peak of a few updates beyond the model, in bytes and in parameter bytes; and what was counted by kind."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    try:
        warm_up(cell)
        model = build(cell, config_of(cell))
        return _measured(cell, model)
    except (EvolventError, RuntimeError, AssertionError, TypeError, ValueError, AttributeError, ImportError) as error:
        return {"failed": f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"}


def _measured(cell: Cell, model: Any) -> dict[str, Any]:
    batch, gauge, most = batch_of(cell).to(torch.device(cell.device)), Gauge(cell.device), [0]
    weights = list(model.parameters())

    def count(_: Tensor) -> None:
        most[0] = max(most[0], sum(p.grad.nbytes for p in weights if p.grad is not None))

    for weight in weights:
        if weight.requires_grad:
            weight.register_post_accumulate_grad_hook(count)
    before = gauge.start()
    made = SIDES[cell.side](model, cell)
    for _ in range(cell.updates):
        made.update(batch)
    peak, parameters = gauge.peak(), sum(weight.nbytes for weight in weights)
    found = {
        "parameters": parameters,
        "gradients": most[0],
        "peak": peak - before,
        "beyond": round((peak - before) / parameters, 4),
    }
    if made.optimizer is not None:
        state = [value for entry in made.optimizer.state.values() for value in entry.values()]
        found["optimizer"] = sum(value.nbytes for value in state if isinstance(value, Tensor))
    return found


# ---------------------------------------------------------------------- activations


def activations(cell: Cell) -> dict[str, Any]:
    """What waits for backward, in bytes: summed over what autograd saves, and as memory in use when layers go back."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    model = build(cell, config_of(cell))
    if cell.recompute:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    batch, gauge, seen = batch_of(cell).to(torch.device(cell.device)), Gauge(cell.device), [0]
    layers = {weight for layer in model.get_decoder().layers for weight in layer.parameters()}

    def arrived(weight: Tensor) -> None:
        if weight in layers:
            seen.append(gauge.now() - (weight.grad.nbytes if weight.grad is not None else 0))
        weight.grad = None

    for weight in model.parameters():
        weight.register_post_accumulate_grad_hook(arrived)
    torch.autograd.backward(_loss(model, batch, cell.dtype))  # libraries take their buffers
    before, seen[:] = gauge.start(), [0]
    torch.autograd.backward(_loss(model, batch, cell.dtype))
    in_use = max(seen) - before
    return {"saved": _saved(model, batch, cell), "in_use": in_use}


def _saved(model: Any, batch: Batch, cell: Cell) -> int:
    """Bytes that autograd saves while the decoder runs, and with recomputation those of one layer that runs again."""
    weights = {weight.untyped_storage().data_ptr() for weight in model.parameters()}
    decoder, inside, held, calls = model.get_decoder(), [False], dict[int, Tensor](), list[tuple[Any, Any]]()

    def keep(tensor: Tensor) -> Tensor:
        if inside[0] and tensor.untyped_storage().data_ptr() not in weights:
            held[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    def total() -> int:
        return sum(tensor.untyped_storage().nbytes() for tensor in held.values())

    decoder.register_forward_pre_hook(lambda *_: inside.__setitem__(0, True))
    decoder.register_forward_hook(lambda *_: inside.__setitem__(0, False))
    decoder.layers[0].register_forward_pre_hook(lambda _, args, kwargs: calls.append((args, kwargs)), with_kwargs=True)
    with saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = _loss(model, batch, cell.dtype)
    found = total()
    del loss
    if cell.recompute:
        held.clear()
        inside[0] = True
        (hidden, *rest), named = calls[0]
        model.gradient_checkpointing_disable()
        with saved_tensors_hooks(keep, lambda tensor: tensor):
            decoder.layers[0](hidden.detach().requires_grad_(), *rest, **named)
        found += total()
    return found
