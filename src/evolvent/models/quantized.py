"""A policy for a device: its linear layers' weights as whole numbers of 8 bits, one scale an output row.

`int8_folder` writes a Hugging Face folder that `AutoModelForCausalLM.from_pretrained` loads where `torchao` is
installed: w = scale * q, q in -128..127, symmetric, per row (PyTorch's `Int8WeightOnlyConfig`). Nothing is calibrated,
and activations stay float. Embeddings, and a head that is tied to them, stay as they are. `load_policy` reads such a
folder as well, with the weights multiplied out, so that every engine plays it; it then takes the memory of floats.
"""

from __future__ import annotations

import json
import logging
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from evolvent.errors import ConfigError, Incomplete, MissingExtra
from evolvent.models.heads import ValueHead

__all__ = ["int8_folder", "is_quantized", "load_quantized", "multiplied_out"]


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what torchao says on import about kernels of other devices, and the bars of transformers."""
    import transformers

    bars = transformers.utils.logging.is_progress_bar_enabled()
    transformers.utils.logging.disable_progress_bar()
    loggers = [logging.getLogger(name) for name in ("torchao", "torch.utils._pytree", "transformers")]
    before = [one.level for one in loggers]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for one in loggers:
            one.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for one, level in zip(loggers, before, strict=True):
                one.setLevel(level)
            if bars:
                transformers.utils.logging.enable_progress_bar()


def is_quantized(folder: Path) -> bool:
    """Whether a model folder says that its weights are quantised by torchao."""
    try:
        found = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        return bool(found["quantization_config"]["quant_method"] == "torchao")
    except (OSError, ValueError, KeyError, TypeError):
        return False


def int8_folder(source: Path, to: Path) -> None:
    """Write the model of a folder with weights of 8 bits into another, its tokenizer, notes and value head beside it.

    Args:
        source: as `Policy.save` wrote it, without an adapter. to: a folder that is not there yet.
    Raises:
        MissingExtra: torchao is not installed. ConfigError: `to` exists, or the source is quantised already.
            Incomplete: the source is no whole model.
    """
    if to.exists():
        raise ConfigError("the folder to write to exists", value=str(to), expected="a new name")
    if is_quantized(source):
        raise ConfigError("the weights are of 8 bits already", value=str(source), expected="a folder of floats")
    with _quiet():
        import transformers

        try:
            from torchao.quantization import Int8WeightOnlyConfig
        except ImportError as error:
            raise MissingExtra("device", "weights of 8 bits") from error
        how = transformers.TorchAoConfig(Int8WeightOnlyConfig(version=2))
        model = _loaded(source, quantization_config=how)
        to.mkdir(parents=True)
        model.save_pretrained(to)
    _copy_beside(source, to)


def _copy_beside(source: Path, to: Path) -> None:
    """All that lies beside a model's own weights: its tokenizer, notes, and a value head, which stays floats.

    An index of weight files is of the source's files, and would name some that are not here.
    """
    for path in sorted(source.iterdir()):
        weights = path.name != ValueHead.FILE and path.name.endswith((".safetensors", ".safetensors.index.json"))
        if path.is_file() and not weights and not (to / path.name).exists():
            shutil.copyfile(path, to / path.name)


def load_quantized(folder: Path) -> Any:
    """The model of such a folder as transformers loads it, its weights of 8 bits.

    Raises:
        MissingExtra: torchao is not installed. Incomplete: it cannot be loaded.
    """
    with _quiet():
        try:
            import torchao  # noqa: F401
        except ImportError as error:
            raise MissingExtra("device", "weights of 8 bits") from error
        return _loaded(folder).eval()


def _loaded(folder: Path, **more: Any) -> Any:
    """What transformers makes of a folder here, and of nothing else."""
    import transformers

    try:
        return transformers.AutoModelForCausalLM.from_pretrained(
            folder,
            use_safetensors=True,
            local_files_only=True,
            trust_remote_code=False,
            dtype="auto",
            device_map="cpu",
            **more,
        )
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise Incomplete(f"{folder} cannot be loaded as a quantised model", value=str(error)[:300]) from error


def multiplied_out(model: Any) -> Any:
    """A model of floats with the weights that the whole numbers and scales stand for."""
    import torch
    import transformers

    config = type(model.config).from_dict(
        {key: value for key, value in model.config.to_dict().items() if key != "quantization_config"}
    )
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        plain = transformers.AutoModelForCausalLM.from_config(config)
        held = dict(model.named_parameters())
        for name, weight in plain.named_parameters():
            found = held[name].detach()
            weight.copy_(found.dequantize() if hasattr(found, "qdata") else found)
    return plain.to(model.dtype).eval()
