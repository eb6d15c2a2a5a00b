"""A policy for a device: its linear layers' weights as whole numbers of 8 bits, one scale per output row.

`write_int8_folder` writes a Hugging Face folder that `AutoModelForCausalLM.from_pretrained` loads where `torchao` is
installed: w = scale * q, q in -128..127, symmetric, per row (PyTorch's `Int8WeightOnlyConfig`). Nothing is
calibrated, and activations stay float. Embeddings, and a head that is tied to them, stay as they are.
`load_policy` reads such a folder as well, with the weights dequantized, so that every engine plays it; it then
takes the memory of floats.
"""

from __future__ import annotations

import json
import logging
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evolvent.errors import ConfigError, Incomplete, MissingExtra
from evolvent.models.tuned import HEAD_FILE

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = ["dequantize", "is_quantized", "load_quantized", "write_int8_folder"]


@contextmanager
def _hide_messages() -> Iterator[None]:
    """Hides torchao's import messages about kernels of other devices, and the progress bars of transformers."""
    import transformers

    bars = transformers.utils.logging.is_progress_bar_enabled()
    transformers.utils.logging.disable_progress_bar()
    loggers = [logging.getLogger(name) for name in ("torchao", "torch.utils._pytree", "transformers")]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)
            if bars:
                transformers.utils.logging.enable_progress_bar()


def is_quantized(folder: Path) -> bool:
    """Returns whether a model folder's config says that its weights are quantized by torchao."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        return bool(config["quantization_config"]["quant_method"] == "torchao")
    except (OSError, ValueError, KeyError, TypeError):
        return False


def write_int8_folder(source: Path, target: Path) -> None:
    """Writes the model of a folder with weights of 8 bits into another, along with its tokenizer, notes and value
    head.

    Args:
        source: as `Policy.save` wrote it, without an adapter. target: a folder that does not exist yet.
    Raises:
        MissingExtra: torchao is not installed. ConfigError: `target` exists, or the source is quantized already.
            Incomplete: the source is not a complete model.
    """
    if target.exists():
        raise ConfigError(
            "the output folder already exists", value=str(target), expected="a folder that does not exist"
        )
    if is_quantized(source):
        raise ConfigError(
            "the weights already have 8 bits", value=str(source), expected="a folder with floating-point weights"
        )
    with _hide_messages():
        import transformers

        try:
            from torchao.quantization import Int8WeightOnlyConfig
        except ImportError as error:
            raise MissingExtra("device", "8-bit weights") from error
        quantization = transformers.TorchAoConfig(Int8WeightOnlyConfig(version=2))
        model = _load_local(source, quantization_config=quantization)
        target.mkdir(parents=True)
        model.save_pretrained(target)
    _copy_other_files(source, target)


def _copy_other_files(source: Path, target: Path) -> None:
    """Copies the files beside a model's own weights: its tokenizer, notes, and a value head, which stays float.

    An index of weight files is left out: it would name files of the source that are not here.
    """
    for path in sorted(source.iterdir()):
        is_weight_file = path.name != HEAD_FILE and path.name.endswith((".safetensors", ".safetensors.index.json"))
        if path.is_file() and not is_weight_file and not (target / path.name).exists():
            shutil.copyfile(path, target / path.name)


def load_quantized(folder: Path) -> object:
    """Loads the model of such a folder as transformers does, with its weights of 8 bits.

    Raises:
        MissingExtra: torchao is not installed. Incomplete: it cannot be loaded.
    """
    with _hide_messages():
        try:
            import torchao  # noqa: F401
        except ImportError as error:
            raise MissingExtra("device", "8-bit weights") from error
        return _load_local(folder).eval()


def _load_local(folder: Path, **options: Any) -> Any:
    """Loads a local folder with transformers, and nothing else."""
    import transformers

    from evolvent.models.loaded_weights import keep_loaded_weights

    try:
        with keep_loaded_weights():
            return transformers.AutoModelForCausalLM.from_pretrained(
                folder,
                use_safetensors=True,
                local_files_only=True,
                trust_remote_code=False,
                dtype="auto",
                device_map="cpu",
                **options,
            )
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise Incomplete(f"{folder} cannot be loaded as a quantized model", value=str(error)[:300]) from error


def dequantize(model: PreTrainedModel) -> PreTrainedModel:
    """Returns a float model with the weights that the whole numbers and scales represent."""
    import torch
    import transformers

    config = type(model.config).from_dict(
        {key: value for key, value in model.config.to_dict().items() if key != "quantization_config"}
    )
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        plain = transformers.AutoModelForCausalLM.from_config(config)
        quantized_weights = dict(model.named_parameters())
        for name, weight in plain.named_parameters():
            quantized = quantized_weights[name].detach()
            weight.copy_(quantized.dequantize() if hasattr(quantized, "qdata") else quantized)
    float_model: PreTrainedModel = plain.to(model.dtype).eval()
    return float_model
