"""A model with an adapter of `peft`: its properties, the model below it, and its files.

Files are peft's own, `adapter_config.json` and `adapter_model.safetensors`, and contain nothing that is run:
settings that name modules to import, and pickles, are refused. Making and merging adapters is in `adapters.py`.
"""

from __future__ import annotations

import copy
import hashlib
import json
import sys
import warnings
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from evolvent.errors import (
    ConfigError,
    Incomplete,
    MissingExtra,
    Problem,
    ShapeMismatch,
    UnsafeFile,
    boundary,
    unknown_name_problem,
)

if TYPE_CHECKING:
    from types import ModuleType

    import torch
    from torch import Tensor
    from transformers import PreTrainedModel

__all__ = [
    "FILES",
    "HEAD_FILE",
    "NAME",
    "adapter_names",
    "adapter_tensors",
    "attach_adapter",
    "base_digest",
    "import_peft",
    "kind_of",
    "light_copy",
    "plain_model",
    "save_adapter",
    "seeded_silence",
    "strip_adapter",
    "trainable",
    "virtual_tokens",
]

HEAD_FILE = "value_head.safetensors"
"""The file of a value head beside a model."""
FILES = ("adapter_config.json", "adapter_model.safetensors")
NAME = "default"  # what peft calls an adapter in a model; files do not know it
_SETTINGS, _WEIGHTS = FILES
_KINDS: dict[str, Literal["lora", "ia3", "prefix", "prompt"]] = {
    "LORA": "lora",
    "IA3": "ia3",
    "PREFIX_TUNING": "prefix",
    "PROMPT_TUNING": "prompt",
}
# Settings of a file that may differ from peft's defaults. Others import code, change the base's weights or add layers.
_SUPPORTED_SETTINGS = frozenset(
    {
        "alpha_pattern",
        "auto_mapping",
        "base_model_name_or_path",
        "encoder_hidden_size",
        "exclude_modules",
        "fan_in_fan_out",
        "feedforward_modules",
        "inference_mode",
        "init_ia3_weights",
        "init_lora_weights",
        "init_weights",
        "layers_pattern",
        "layers_to_transform",
        "lora_alpha",
        "lora_dropout",
        "num_attention_heads",
        "num_layers",
        "num_transformer_submodules",
        "num_virtual_tokens",
        "peft_type",
        "peft_version",
        "prefix_projection",
        "prompt_tuning_init",
        "prompt_tuning_init_text",
        "r",
        "rank_pattern",
        "revision",
        "target_modules",
        "task_type",
        "token_dim",
        "tokenizer_kwargs",
        "tokenizer_name_or_path",
        "use_dora",
        "use_rslora",
    }
)
# How values were begun or computed does not matter to a reader: they are in the file.
_IGNORED_SETTINGS: dict[str, dict[str, Any]] = {
    "PREFIX_TUNING": {"prefix_projection": False},
    "PROMPT_TUNING": {"prompt_tuning_init": "RANDOM", "prompt_tuning_init_text": None, "tokenizer_kwargs": None},
}
_DIGEST_SAMPLES = 1024  # weights of a tensor that enter the digest of a base


def kind_of(model: PreTrainedModel) -> Literal["lora", "dora", "ia3", "prefix", "prompt"] | None:
    """Returns a model's adapter kind; None where it has none. Raises ConfigError for an unsupported kind."""
    settings = _peft_config(model)
    if settings is None:
        return None
    name = str(settings.peft_type.value)
    if name not in _KINDS:
        raise ConfigError([unknown_name_problem("peft_type", name, _KINDS)])
    return "dora" if getattr(settings, "use_dora", False) else _KINDS[name]


def virtual_tokens(model: PreTrainedModel) -> tuple[int, int]:
    """Returns how many positions an adapter takes: before every layer's keys and values, and before the text.

    Those of the second kind stand before the logits too: `[B, tokens + T, V]`.
    """
    kind, settings = kind_of(model), _peft_config(model)
    if kind == "prefix":
        return int(settings.num_virtual_tokens), 0
    return 0, int(settings.num_virtual_tokens) if kind == "prompt" else 0


def trainable(model: PreTrainedModel) -> list[str]:
    """Lists the trainable parameters by their names in `named_parameters`: all that a checkpoint must hold."""
    return [name for name, weight in model.named_parameters() if weight.requires_grad]


def adapter_names(model: PreTrainedModel) -> dict[str, str]:
    """Maps each local adapter parameter from its name in the model to its name in `adapter_model.safetensors`."""
    if any(virtual_tokens(model)):
        return {f"prompt_encoder.{model.active_adapter}.embedding.weight": "prompt_embeddings"}
    weights = dict(model.named_parameters())
    saved = import_peft().get_peft_model_state_dict(
        model, state_dict=weights, adapter_name=model.active_adapter, save_embedding_layers=False
    )
    names = {id(weight): name for name, weight in weights.items()}
    return {names[id(weight)]: name for name, weight in saved.items()}


def adapter_tensors(model: PreTrainedModel) -> dict[str, Tensor]:
    """Returns the adapter's weights under their names in files, complete, on the CPU, in their own memory.

    Where they are sharded (DTensor), all ranks must call this together.
    """
    names, tensors = adapter_names(model), {}
    for name, weight in model.named_parameters():
        if name in names:
            tensor = weight.full_tensor() if hasattr(weight, "full_tensor") else weight
            tensors[names[name]] = tensor.detach().cpu().clone().contiguous()
    return tensors


def light_copy(model: PreTrainedModel, *, trained_names: Collection[str] = ()) -> PreTrainedModel:
    """Copies a model; weights other than `trained_names` share the model's memory and are frozen."""
    from torch import nn

    from evolvent.models.nf4 import iterate_buffers

    shared: dict[int, Tensor] = {
        id(weight): nn.Parameter(weight.detach(), requires_grad=False)
        for name, weight in model.named_parameters()
        if name not in trained_names
    }
    shared |= {id(buffer): buffer for _, buffer in iterate_buffers(model)}
    return copy.deepcopy(model, shared)


def strip_adapter(model: PreTrainedModel) -> PreTrainedModel:
    """Returns the model below an adapter, as it was before; its weights are shared. A plain model is returned
    unchanged.
    """
    if kind_of(model) is None:
        return model
    base = light_copy(model)
    return base.get_base_model() if any(virtual_tokens(model)) else base.unload()


def plain_model(model: PreTrainedModel) -> PreTrainedModel:
    """Returns a model without adapter that computes the same; weights that the adapter leaves alone are shared.

    Weights of 4 bits become floats.

    Raises:
        ConfigError: virtual tokens, which no weights can represent.
    """
    kind = kind_of(model)
    if kind is None:
        return model
    if any(virtual_tokens(model)):
        raise ConfigError(
            f"{kind} tuning cannot be merged into weights",
            value=f"{sum(virtual_tokens(model))} virtual tokens",
            expected="an adapter of kind lora, dora or ia3",
            hint="use RecomputeEngine to serve it",
        )
    layer = import_peft().tuners.tuners_utils.BaseTunerLayer
    changed = {
        f"{module_name}.{name}"
        for module_name, module in model.named_modules()
        if isinstance(module, layer)
        for name, _ in module.named_parameters()
    }
    from evolvent.models.nf4 import dequantize_layers

    floats = light_copy(model, trained_names=changed)
    dequantize_layers(floats)
    with seeded_silence(0):
        return floats.merge_and_unload()


def base_digest(model: PreTrainedModel, *, dtype: torch.dtype | None = None) -> str:
    """Computes a digest of the weights below an adapter, for any dtype: names, shapes and evenly spaced weights of
    each.

    Weights of 4 bits count by their codes and scales. Not of every weight: an update changes nearly all, and reading
    all of a large model takes longer than loading it.

    Args:
        dtype: numbers that floats are rounded to first: the digest of a model that was loaded with these.
    """
    digest = hashlib.sha256()
    from evolvent.models.nf4 import iterate_buffers

    base = strip_adapter(model)
    for name, weight in sorted([*base.named_parameters(), *iterate_buffers(base)]):
        flat = weight.detach().flatten()
        samples = flat[:: max(1, -(-len(flat) // _DIGEST_SAMPLES))]
        samples = samples if dtype is None or not samples.is_floating_point() else samples.to(dtype)
        some = samples.float().cpu().numpy().astype("<f4")
        digest.update(f"{name} {tuple(weight.shape)}".encode() + some.tobytes())
    return digest.hexdigest()[:24]


# ---------------------------------------------------------------------- files


def save_adapter(
    model: PreTrainedModel, folder: Path, *, tensors: Mapping[str, Tensor] | None = None, base: str | None = None
) -> None:
    """Writes a model's adapter as `peft.PeftModel.from_pretrained` reads it.

    Args:
        tensors: complete tensors that were gathered elsewhere, under their names in files (`adapter_names`); None:
            the model's own.
        base: the location of the base model; None: the location recorded in the model.
    Raises:
        ConfigError: a model without adapter.
    """
    from safetensors.torch import save_file

    settings = _peft_config(model)
    if settings is None:
        raise ConfigError("the model has no adapter to save", value=type(model).__name__, hint="use adapt(policy, ...)")
    values = {**settings.to_dict(), "inference_mode": True}
    values["base_model_name_or_path"] = base or settings.base_model_name_or_path
    plain = {name: sorted(value) if isinstance(value, set) else value for name, value in values.items()}
    complete_tensors = adapter_tensors(model) if tensors is None else tensors
    folder.mkdir(parents=True, exist_ok=True)
    save_file(
        {name: complete_tensors[name].contiguous() for name in sorted(complete_tensors)},
        folder / _WEIGHTS,
        metadata={"format": "pt"},
    )
    (folder / _SETTINGS).write_text(json.dumps(plain, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def attach_adapter(model: PreTrainedModel, folder: Path) -> PreTrainedModel:
    """Returns the model with the adapter of a folder, ready for further training; the given model stays unchanged.

    Raises:
        Incomplete: a file or tensor that is missing. UnsafeFile: pickled weights. ShapeMismatch: made for another
            model. ConfigError: a kind or settings that are not understood here. MissingExtra: without peft.
    """
    peft, values, tensors = import_peft(), _read_settings(folder), _read_weights(folder)
    values |= {"inference_mode": False, "auto_mapping": None, **_IGNORED_SETTINGS.get(values["peft_type"], {})}
    with boundary(ConfigError, "the adapter does not fit the model", folder=folder, model=model.config.model_type):
        with seeded_silence(0):
            settings = peft.PeftConfig.from_peft_type(**values)
            tuned = peft.get_peft_model(light_copy(model), settings, adapter_name=NAME)
    _check_tensors(tuned, tensors, folder / _WEIGHTS)
    with seeded_silence(0):
        peft.set_peft_model_state_dict(tuned, tensors, adapter_name=NAME)
    return tuned.train(model.training)


def _read_settings(folder: Path) -> dict[str, Any]:
    """Reads the settings of a saved adapter.

    Raises:
        Incomplete: no JSON object. ConfigError: a kind or settings that are not understood here, each named.
    """
    path = folder / _SETTINGS
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise Incomplete(f"{path} cannot be read", value=str(error)) from error
    if not isinstance(values, dict):
        raise Incomplete(f"{path} is not a JSON object", value=type(values).__name__)
    kind = str(values.get("peft_type"))
    if kind not in _KINDS:
        raise ConfigError([unknown_name_problem("peft_type", kind, _KINDS, location=str(path))])
    default = import_peft().PEFT_TYPE_TO_CONFIG_MAPPING[kind]().to_dict()
    unsupported = [
        name
        for name, value in values.items()
        if name not in _SUPPORTED_SETTINGS and value and value != default.get(name)
    ]
    if values.get("init_lora_weights") not in (None, True, False, "gaussian"):
        unsupported.append("init_lora_weights")  # PiSSA and its like change the base
    if unsupported:
        hint = "merge it where it was trained: PeftModel.from_pretrained(base, folder).merge_and_unload()"
        raise ConfigError(
            [Problem(str(path), f"{name} = {values[name]!r} is not supported", hint) for name in unsupported]
        )
    return values


def _read_weights(folder: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if not (folder / _WEIGHTS).exists():
        pickled_files = sorted(path.name for path in folder.glob("adapter_model.*"))
        if pickled_files:
            raise UnsafeFile(f"{folder} has pickled adapter weights only", value=pickled_files, expected=_WEIGHTS)
        raise Incomplete(f"{folder} has no adapter weights", expected=_WEIGHTS)
    try:
        return dict(load_file(folder / _WEIGHTS))
    except (SafetensorError, OSError) as error:
        raise Incomplete(f"{folder / _WEIGHTS} cannot be read", value=str(error)) from error


def _check_tensors(tuned: Any, tensors: Mapping[str, Tensor], path: Path) -> None:
    weights = dict(tuned.named_parameters())
    expected = {saved: tuple(weights[name].shape) for name, saved in adapter_names(tuned).items()}
    missing = sorted(set(expected) - set(tensors))
    if missing:
        raise Incomplete(f"weights are missing in {path}", value=missing[:5])
    mismatched = {
        name: tuple(tensor.shape) for name, tensor in tensors.items() if expected.get(name) != tuple(tensor.shape)
    }
    if mismatched:
        name = min(mismatched)
        raise ShapeMismatch(
            f"{path} belongs to another model: wrong shape of {name}",
            value=mismatched[name],
            expected=expected.get(name, "a missing tensor"),
        )


# ---------------------------------------------------------------------- the library


def import_peft() -> ModuleType:
    """Imports the module `peft`. Raises MissingExtra where it is not installed."""
    try:
        import peft
    except ImportError as error:
        raise MissingExtra("peft", "an adapter") from error
    module: ModuleType = peft
    return module


@contextmanager
def seeded_silence(seed: int) -> Iterator[None]:
    """Sets the random seed and hides peft's warnings inside the block; they concern settings that are checked here."""
    import torch

    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(seed & (2**63 - 1))
        yield


def _peft_config(model: PreTrainedModel) -> Any:
    """Returns peft's configuration of a model's adapter, None where there is none; peft is not imported for that."""
    peft = sys.modules.get("peft")
    return model.peft_config[model.active_adapter] if peft and isinstance(model, peft.PeftModel) else None
