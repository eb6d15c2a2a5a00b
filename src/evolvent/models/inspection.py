"""A model folder is looked at before anything of it is built: its files, its sizes against its weights, its tokenizer.

A folder of a stranger may hold a pipe in place of a file, a configuration of a million layers, weights that are not
numbers, or a tokenizer that asks for gigabytes. What can be read off the files is checked here; the tokenizer is tried
in a process that can be killed, while the weights are read.
"""

from __future__ import annotations

import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

from evolvent.errors import ConfigError, Incomplete, LimitExceeded, UnsafeFile
from evolvent.models.template_process import start_template_process
from evolvent.workers import SharedWorker

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = ["TokenizerTrial", "check_config", "check_files", "check_finite", "try_tokenizer"]

_MAX_BYTES = {"tokenizer.json": 2**28, "tokenizer.model": 2**27, "vocab.json": 2**26, "merges.txt": 2**26}
_MAX_TEXT_BYTES = 2**26  # any other text that is read; the largest indices of weights have some megabytes
_TEXTS = frozenset(
    (
        *_MAX_BYTES,
        "config.json",
        "generation_config.json",
        "adapter_config.json",
        "evolvent.json",
        "source.json",
        "tokenizer_config.json",
        "special_tokens_map.json",
        "added_tokens.json",
        "chat_template.jinja",
        "chat_template.json",
        "model.safetensors.index.json",
    )
)
_LAYER_COUNTS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
_WIDTHS = ("hidden_size", "n_embd", "d_model", "dim")
_SIZES = (
    *_LAYER_COUNTS,
    *_WIDTHS,
    "vocab_size",
    "intermediate_size",
    "moe_intermediate_size",
    "num_attention_heads",
    "n_head",
    "n_positions",
    "max_position_embeddings",
)
_OPTIONAL_SIZES = ("num_experts", "num_local_experts", "n_routed_experts", "num_key_value_heads", "head_dim", "n_inner")
_TIMES_WIDTH = ("vocab_size", "intermediate_size", "n_positions", "n_inner")
_UNBOUND = ("max_position_embeddings",)  # no weights belong to it
_MIN_POSITION_WEIGHTS = 2**24  # so many are never too many: some models with rotary positions have n_positions too
_LAYER = re.compile(r"(.*?\b(?:layers|h|blocks|block|layer|blk))\.(\d+)\.")
_TOKENIZER_S, _TOKENIZER_MIB = 60.0, 2048
_PROBE = "Go north, then\n  look: 42 <|end|> \u00e9\U0001f600 \tend."


def check_files(folder: Path) -> None:
    """Checks that a model folder holds ordinary files of ordinary sizes; others than folders are not opened.

    Raises:
        UnsafeFile: a pipe, a device or a socket. Incomplete: a link that leads nowhere.
        LimitExceeded: a text file that is too large.
    """
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        is_text = path.name in _TEXTS
        try:
            status = path.stat()
        except OSError as error:
            if not is_text and path.suffix != ".safetensors":
                continue  # a file that nothing reads
            raise Incomplete(f"{path} cannot be read", value=error.strerror, hint="fetch the folder again") from error
        if stat.S_ISDIR(status.st_mode):
            continue
        if not stat.S_ISREG(status.st_mode):
            raise UnsafeFile(
                f"{path} is not an ordinary file", expected="a file", hint="remove it, or fetch the folder again"
            )
        limit = _MAX_BYTES.get(path.name, _MAX_TEXT_BYTES)
        if is_text and status.st_size > limit:
            raise LimitExceeded(
                f"{path} is too large", value=f"{status.st_size:,} bytes", expected=f"at most {limit:,}"
            )


def check_config(folder: Path, config: Mapping[str, object], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Checks the sizes of a configuration against the shapes of the stored weights, before a model is built.

    Raises:
        ConfigError: a size that is not a positive whole number, one that needs more weights than there are, or a
            number of layers that is not that of the weights.
    """
    is_packed = "quantization_config" in config  # several weights are then one stored number
    num_weights = 0 if is_packed else sum(map(prod, shapes.values()))
    for part in _iterate_parts(config):
        _check_part(folder, part, num_weights)
    _check_layers(folder, config, shapes)


def _iterate_parts(config: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yields a configuration, and that of the text model where it describes several."""
    yield config
    for name in ("text_config", "llm_config", "language_config"):
        if isinstance(part := config.get(name), Mapping):
            yield part


def _check_part(folder: Path, part: Mapping[str, Any], num_weights: int) -> None:
    width = next((part[name] for name in _WIDTHS if _is_whole(part.get(name))), 1)
    for name in (*_SIZES, *_OPTIONAL_SIZES):
        value = part.get(name)
        if value is None or isinstance(value, list):  # some models have a size for each layer
            continue
        if not _is_whole(value) or value < (1 if name in _SIZES else 0):
            raise ConfigError(
                f"config.json of {folder} has an impossible size",
                value=f"{name} {value!r:.80}",
                expected="a whole number above 0",
                hint="fetch the folder again",
            )
        needed = value * (width if name in _TIMES_WIDTH else 1)
        most = max(num_weights, _MIN_POSITION_WEIGHTS) if name == "n_positions" else num_weights
        if num_weights and name not in _UNBOUND and needed > most:
            raise ConfigError(
                f"the weights of {folder} do not fit its config.json",
                value=f"{name} {value:,}, which needs {needed:,} weights",
                expected=f"at most the {num_weights:,} that its files hold",
                hint="fetch the folder again",
            )


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _check_layers(folder: Path, config: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> None:
    parts = [part for part in (config, config.get("text_config")) if isinstance(part, Mapping)]
    stated = next((part[name] for part in parts for name in _LAYER_COUNTS if _is_whole(part.get(name))), None)
    extra = next((part[name] for part in parts if _is_whole(part.get(name := "num_nextn_predict_layers"))), 0)
    counts: dict[str, int] = {}
    for name in shapes:
        if (match := _LAYER.match(name)) is not None:
            counts[match[1]] = max(counts.get(match[1], 0), int(match[2]) + 1)
    if stated is None or not counts or any(stated <= count <= stated + extra for count in counts.values()):
        return
    raise ConfigError(
        f"the weights of {folder} do not fit its config.json",
        value=f"{stated:,} layers in config.json",
        expected=f"{max(counts.values()):,}, as in the weights",
        hint="fetch the folder again",
    )


def check_finite(model: PreTrainedModel, folder: Path) -> None:
    """Checks that every weight is a finite number.

    Raises:
        Incomplete: a tensor holds NaN or an infinite number.
    """
    import torch

    with torch.no_grad():
        for name, weight in model.named_parameters():
            if not weight.is_floating_point() or weight.device.type == "meta":
                continue
            # A sum is finite where all numbers are, unless it overflows: only then every number is looked at.
            if not torch.isfinite(weight.sum(dtype=torch.float32)) and not torch.isfinite(weight).all():
                raise Incomplete(
                    f"the weights in {folder} are not all numbers",
                    value=f"NaN or infinity in {name}",
                    hint="use another checkpoint of this model, or fetch the folder again",
                )


# ---------------------------------------------------------------------- the tokenizer


def try_tokenizer(path: str) -> str:
    """Loads a tokenizer.json, and encodes and decodes a text; returns an error message, "" where there is none."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(path)
    ids = tokenizer.encode(_PROBE, add_special_tokens=True).ids
    tokenizer.decode(ids)
    return ""


_TOKENIZERS = SharedWorker(try_tokenizer, wall_s=_TOKENIZER_S, memory_mb=_TOKENIZER_MIB)


@lru_cache(maxsize=64)
def _pass_tokenizer(path: str, inode: int, size: int, changed: int) -> None:
    """Tries a file once as long as it stays the same; raises Incomplete with the reason, which is not kept."""
    _, failure = _TOKENIZERS.call(path)
    if failure:
        raise Incomplete(failure)


@dataclass
class TokenizerTrial:
    """A trial of a folder's tokenizer in another process, which runs until `finish` is called.

    The process of chat templates is started too, so that both are ready once the weights have been read.
    """

    folder: Path
    _failure: list[str] = field(default_factory=list)
    _thread: Thread | None = None

    @classmethod
    def start(cls, folder: Path) -> TokenizerTrial:
        """Starts a trial; a folder without tokenizer.json, and a file that has passed before, need none."""
        trial, path = cls(folder), (folder / "tokenizer.json").resolve()
        if _has_template(folder):
            start_template_process()
        if path.is_file():
            trial._thread = Thread(target=trial._run, args=_identify(path), daemon=True)
            trial._thread.start()
        return trial

    def finish(self) -> None:
        """Waits for the end of the trial.

        Raises:
            Incomplete: the tokenizer cannot be loaded, or loading it exceeds the limits.
        """
        if self._thread is not None:
            self._thread.join()
        if self._failure:
            raise Incomplete(
                f"the tokenizer in {self.folder} cannot be loaded",
                value=self._failure[0],
                expected=f"one that loads within {_TOKENIZERS.wall_s:g} s and {_TOKENIZERS.memory_mb} MiB",
                hint="fetch the folder again",
            )

    def _run(self, path: str, inode: int, size: int, changed: int) -> None:
        try:
            _pass_tokenizer(path, inode, size, changed)
        except Incomplete as error:
            self._failure.append(error.what)


def _identify(path: Path) -> tuple[str, int, int, int]:
    status = path.stat()
    return str(path), status.st_ino, status.st_size, status.st_mtime_ns


def _has_template(folder: Path) -> bool:
    if (folder / "chat_template.jinja").is_file() or (folder / "chat_template.json").is_file():
        return True
    path = folder / "tokenizer_config.json"
    return path.is_file() and b'"chat_template"' in path.read_bytes()
