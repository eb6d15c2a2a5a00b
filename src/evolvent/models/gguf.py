"""GGUF files, the format of llama.cpp: their header is checked first, then transformers dequantizes the weights.

transformers keeps neither the pre-tokenizer that `tokenizer.ggml.pre` names nor scaled rotary positions; both are
restored here. Log-probabilities differ from those of llama.cpp by up to .1 nats, because llama.cpp also quantizes
activations.
"""

from __future__ import annotations

import io
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from evolvent.errors import ConfigError, Incomplete, MissingExtra, UnsafeFile, VocabularyMismatch
from evolvent.trajectory import JsonObject

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

__all__ = [
    "SUFFIX",
    "GgufHeader",
    "GgufTensor",
    "find_gguf",
    "load_gguf",
    "read_gguf_config",
    "read_gguf_header",
    "require_gguf",
]

SUFFIX = ".gguf"
_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
# The value types of the format (gguf.GGUFValueType) that have a fixed size; 8 is a string and 9 an array.
_VALUE_FORMATS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_MAX_STRING_BYTES = 2**24
_MAX_DIMENSIONS = 8
_TOKENIZERS = ("gpt2", "llama", "gemma4")  # byte-level BPE, and SentencePiece in two forms

# ---------------------------------------------------------------------- pre-tokenizers
# The splits are those of each model's own tokenizer.json. The names, and which of them ignore merges for whole words,
# are those of llama.cpp (src/llama-vocab.cpp). tests/models/test_gguf.py compares the tokens with llama.cpp's.

_DIGIT = r"\p{N}"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", _DIGIT)
_PUNCTUATION = r"[\p{P}\$\+<=>\^~\|`]+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"


def _cased(ending: str, digits: str) -> str:
    """Returns the split of Tekken and GPT-4o, whose words end where a capital letter follows a small one."""
    first = r"[^\r\n\p{L}\p{N}]?"
    words = f"{first}{_UPPER}*{_LOWER}+{ending}|{first}{_UPPER}+{_LOWER}*{ending}"
    return rf"{words}|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"


_QWEN35 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True, slots=True)
class _Split:
    """Regular expressions that are applied one after the other, and whether a whole word that is a token is kept."""

    patterns: tuple[str, ...]
    ignores_merges: bool = False

    def build(self) -> Any:
        """Builds the pre-tokenizer of the tokenizers library."""
        from tokenizers import Regex, pre_tokenizers

        is_gpt2 = self.patterns[-1] == _GPT2  # which the byte level splits by itself
        steps: list[Any] = [
            pre_tokenizers.Digits(individual_digits=True)
            if pattern == _DIGIT
            else pre_tokenizers.Split(Regex(pattern), "isolated")
            for pattern in (self.patterns[:-1] if is_gpt2 else self.patterns)
        ]
        steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=is_gpt2))
        return steps[0] if len(steps) == 1 else pre_tokenizers.Sequence(steps)


_SPLITS_BY_NAMES = {
    ("gpt-2", "phi-2", "gigachat", "a.x-4.0", "mellum", "mpt", "olmo", "jais", "exaone4", "trillion"): _Split((_GPT2,)),
    ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b", "mellum2"): _Split(
        (_DIGIT, _GPT2)
    ),
    ("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"): _Split(
        (_LLAMA3,), ignores_merges=True
    ),
    ("dbrx", "smaug-bpe", "glm4", "chatglm-bpe"): _Split((_LLAMA3,)),
    ("qwen2", "deepseek-r1-qwen", "kormo", "megrez", "stablelm2", "hunyuan", "grok-2"): _Split((_QWEN2,)),
    ("qwen35",): _Split((_QWEN35,)),
    ("tekken",): _Split((_cased("", _DIGIT),), ignores_merges=True),
    ("gpt-4o", "llama4", "kanana2", "minimax-m2"): _Split((_cased(_CONTRACTION, r"\p{N}{1,3}"),)),
    ("falcon",): _Split((_PUNCTUATION, _GPT2, r"[0-9][0-9][0-9]")),
    ("default",): _Split((_PUNCTUATION.replace("`", ""), _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")),
}
_SPLITS = {name: split for names, split in _SPLITS_BY_NAMES.items() for name in names}


# ---------------------------------------------------------------------- the header


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """A tensor of a file: its shape (slowest dimension first), its ggml type, and its offset in the data."""

    name: str
    shape: tuple[int, ...]
    ggml_type: int
    offset: int


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """The header of a GGUF file: metadata and tensors, without weights.

    Attributes:
        metadata: every value by its key; an array is its length.
        data_start: the offset of the tensors' data in the file.
    """

    path: Path
    metadata: JsonObject = field(repr=False)
    tensors: tuple[GgufTensor, ...] = field(repr=False)
    data_start: int

    @property
    def architecture(self) -> str:
        """Returns the name of the architecture, "llama" for example."""
        return str(self.metadata.get("general.architecture", ""))

    @property
    def context(self) -> int | None:
        """Returns the maximum tokens of the model, None where the file does not say."""
        value = self.value("context_length")
        return int(value) if value else None

    def value(self, key: str) -> Any:
        """Returns the value of a key of the architecture, None where it is missing."""
        return self.metadata.get(f"{self.architecture}.{key}")

    def parameters(self) -> int:
        """Counts the weights."""
        return sum(prod(tensor.shape) for tensor in self.tensors)


class _Reader:
    """Reads values from a file and refuses a length that is beyond its end."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self.path, self.file, self.size = path, file, path.stat().st_size

    def take(self, count: int) -> bytes:
        if count > self.size - self.file.tell():
            raise _cut_error(self.path, self.size, self.file.tell() + count)
        return self.file.read(count)

    def number(self, code: str) -> Any:
        return struct.unpack("<" + code, self.take(struct.calcsize("<" + code)))[0]

    def text(self) -> str:
        length = self.number("Q")
        if length > _MAX_STRING_BYTES:
            raise Incomplete(f"{self.path} is damaged: a text of its header is too long", value=f"{length} bytes")
        return self.take(length).decode("utf-8", "replace")

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.text()
        if kind == _ARRAY:
            return self._skip_array()
        if kind not in _VALUE_FORMATS:
            raise Incomplete(f"{self.path} is damaged: unknown type of a value in its header", value=kind)
        return self.number(_VALUE_FORMATS[kind])

    def _skip_array(self) -> int:
        kind, length = self.number("I"), int(self.number("Q"))
        if kind == _STRING:
            for _ in range(length):
                self._skip(self.number("Q"))
        elif kind in _VALUE_FORMATS:
            self._skip(length * struct.calcsize("<" + _VALUE_FORMATS[kind]))
        else:
            raise Incomplete(f"{self.path} is damaged: unknown type of an array in its header", value=kind)
        return length

    def _skip(self, count: int) -> None:
        if count > self.size - self.file.tell():
            raise _cut_error(self.path, self.size, self.file.tell() + count)
        self.file.seek(count, 1)


def _cut_error(path: Path, size: int, needed: int) -> Incomplete:
    return Incomplete(
        f"{path} is cut off", value=f"{size} bytes", expected=f"at least {needed}", hint="download it again"
    )


def find_gguf(path: Path) -> Path | None:
    """Returns the GGUF file that a path means: the file itself, or the one of a folder without other weights.

    Raises:
        ConfigError: the folder holds several GGUF files and no other weights.
    """
    if path.is_file():
        with path.open("rb") as file:
            return path if path.suffix == SUFFIX or file.read(4) == _MAGIC else None
    if not path.is_dir() or any(path.glob("*.safetensors")):
        return None
    files = sorted(path.glob(f"*{SUFFIX}"))
    if len(files) > 1:
        names = ", ".join(file.name for file in files)
        raise ConfigError(f"{path} holds {len(files)} GGUF files", value=names, hint=f"name one: {files[0]}")
    return files[0] if files else None


def read_gguf_header(path: Path) -> GgufHeader:
    """Reads the header of a GGUF file; no weights are read.

    Raises:
        Incomplete: the file is damaged or cut off.
        ConfigError: it is not a GGUF file, or one of another version or byte order.
    """
    with path.open("rb") as file:
        if (magic := file.read(4)) != _MAGIC:
            raise ConfigError(f"{path} is not a GGUF file", value=magic, expected="a file that starts with GGUF")
        reader = _Reader(path, file)
        version, num_tensors, num_values = reader.number("I"), int(reader.number("Q")), int(reader.number("Q"))
        if version not in _VERSIONS:
            raise ConfigError(f"{path} has an unknown version of GGUF", value=version, expected="2 or 3")
        metadata: dict[str, Any] = {}
        for _ in range(num_values):
            key = reader.text()
            metadata[key] = reader.value(reader.number("I"))
        tensors = tuple(_read_tensor(reader) for _ in range(num_tensors))
        alignment = int(metadata.get("general.alignment", 32)) or 32
        return GgufHeader(path, metadata, tensors, -(-file.tell() // alignment) * alignment)


def _read_tensor(reader: _Reader) -> GgufTensor:
    name, num_dimensions = reader.text(), reader.number("I")
    if num_dimensions > _MAX_DIMENSIONS:
        raise Incomplete(
            f"{reader.path} is damaged: too many dimensions of a tensor", value=f"{num_dimensions} of {name!r}"
        )
    shape = tuple(reader.number("Q") for _ in range(num_dimensions))
    return GgufTensor(name, tuple(reversed(shape)), reader.number("I"), reader.number("Q"))


def _check_header(header: GgufHeader) -> None:
    """Checks that a file is whole and has everything that a policy needs, before any weight is read."""
    path = header.path
    if not header.architecture:
        raise Incomplete(f"{path} does not name its architecture", expected="the key general.architecture")
    num_parts = int(header.metadata.get("split.count", 0) or 0)
    if num_parts > 1:
        raise ConfigError(
            f"{path} is one of {num_parts} parts of a model",
            value=f"split.count {num_parts}",
            hint="join them first: llama-gguf-split --merge FIRST_PART WHOLE.gguf",
        )
    model_kind = header.metadata.get("tokenizer.ggml.model")
    if model_kind is None or not header.metadata.get("tokenizer.ggml.tokens"):
        raise Incomplete(f"{path} holds no tokenizer", expected="the keys tokenizer.ggml.model and .tokens")
    if model_kind not in _TOKENIZERS:
        raise ConfigError(
            f"{path} has an unknown kind of tokenizer", value=model_kind, expected=f"one of {', '.join(_TOKENIZERS)}"
        )
    if model_kind == "gpt2" and not header.metadata.get("tokenizer.ggml.merges"):
        raise Incomplete(f"{path} holds no merges of its tokenizer", expected="the key tokenizer.ggml.merges")
    if model_kind == "gpt2" and _split_name(header) not in _SPLITS:
        raise ConfigError(
            f"{path} has an unknown pre-tokenizer",
            value=_split_name(header),
            expected=f"one that splits as {', '.join(names[0] for names in _SPLITS_BY_NAMES)}",
            hint="use the model's folder of safetensors, which brings its own tokenizer",
        )
    _check_size(header)


def _split_name(header: GgufHeader) -> str:
    return str(header.metadata.get("tokenizer.ggml.pre") or "default")


def _check_size(header: GgufHeader) -> None:
    import gguf

    size = header.path.stat().st_size
    for tensor in header.tensors:
        try:
            block_size, block_bytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(tensor.ggml_type)]
        except (ValueError, KeyError) as error:
            raise ConfigError(
                f"{header.path} has weights of an unknown type", value=f"type {tensor.ggml_type} of {tensor.name}"
            ) from error
        end = header.data_start + tensor.offset + prod(tensor.shape) // block_size * block_bytes
        if end > size:
            raise _cut_error(header.path, size, end)


# ---------------------------------------------------------------------- the model


def require_gguf(feature: str = "a GGUF file") -> None:
    """Raises an error that names the extra where a package for GGUF files is missing.

    Raises:
        MissingExtra: `gguf`, `accelerate` or `transformers` cannot be imported.
    """
    try:
        import accelerate  # noqa: F401
        import gguf  # noqa: F401
        import transformers  # noqa: F401
    except ImportError as error:
        raise MissingExtra("gguf", feature) from error


def read_gguf_config(path: Path) -> PreTrainedConfig:
    """Reads the transformers configuration of a GGUF file; no weights are read.

    Raises:
        ConfigError: an architecture, a tokenizer or a scaling of positions that is not understood.
        Incomplete: a cut or damaged file, or one without a tokenizer.
        MissingExtra: `gguf` or `accelerate` is not installed.
    """
    return _read_config(_open(path))


def load_gguf(path: Path) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Loads the model of a GGUF file with dequantized weights (float32), and its tokenizer.

    Raises:
        ConfigError, Incomplete, MissingExtra: see `read_gguf_config`.
        VocabularyMismatch: a tokenizer with more tokens than the model.
    """
    import transformers

    from evolvent.models.loaded_weights import keep_loaded_weights

    header = _open(path)
    config = _read_config(header)
    with _quiet(), keep_loaded_weights():
        try:
            model, report = transformers.AutoModelForCausalLM.from_pretrained(
                path.parent,
                gguf_file=path.name,
                config=config,
                quantization_config=transformers.GgufConfig(dequantize=True),
                trust_remote_code=False,
                local_files_only=True,
                output_loading_info=True,
            )
        except (OSError, ValueError, KeyError, IndexError, RuntimeError, NotImplementedError) as error:
            raise Incomplete(f"{path} cannot be loaded as a causal language model", value=str(error)[:300]) from error
    if report["missing_keys"]:
        raise Incomplete(f"weights are missing in {path}", value=sorted(report["missing_keys"])[:5])
    _check_all_read(header, model)
    model.config.name_or_path = ""  # a saved folder names no file of this machine
    tokenizer = _load_tokenizer(header)
    num_rows = model.get_input_embeddings().weight.shape[0]
    if len(tokenizer) > num_rows:
        raise VocabularyMismatch(
            f"the tokenizer in {path} does not fit its model",
            value=f"{len(tokenizer)} tokens for {num_rows} embeddings",
        )
    return model.eval(), tokenizer


def _open(path: Path) -> GgufHeader:
    """Reads and checks the header; refuses where a package is missing."""
    header = read_gguf_header(path)
    require_gguf()
    _check_header(header)
    return header


def _read_config(header: GgufHeader) -> Any:
    import transformers

    path = header.path
    with _quiet():
        try:
            config = transformers.AutoConfig.from_pretrained(
                path.parent, gguf_file=path.name, trust_remote_code=False, local_files_only=True
            )
        except (OSError, ValueError, KeyError, IndexError) as error:
            raise ConfigError(
                f"{path} has an architecture that transformers does not read from GGUF files",
                value=header.architecture,
                hint="use the model's folder of safetensors",
            ) from error
    if type(config) not in transformers.MODEL_FOR_CAUSAL_LM_MAPPING:
        raise ConfigError(f"{path} is not a causal language model", value=header.architecture)
    if hasattr(config, "_model_name_or_path"):  # general.name, which transformers would write into config.json
        del config._model_name_or_path
    _restore_rope_scaling(header, config)
    return config


def _restore_rope_scaling(header: GgufHeader, config: Any) -> None:
    """Writes the scaling of rotary positions into the configuration, which transformers leaves out.

    Raises:
        ConfigError: a scaling that the configuration has no place for.
    """
    scaling = str(header.value("rope.scaling.type") or "none")
    names = {tensor.name for tensor in header.tensors}
    parameters = getattr(config, "rope_parameters", None)
    if header.architecture.startswith("gpt-oss"):  # transformers reads this one
        return
    has_factors = "rope_freqs.weight" in names
    if scaling == "none" and not has_factors and not any("rope_factors" in name for name in names):
        return
    if not isinstance(parameters, dict) or "rope_theta" not in parameters:
        raise _rope_error(header, scaling)
    if scaling in ("linear", "yarn"):
        parameters |= {"rope_type": scaling, "factor": float(header.value("rope.scaling.factor") or 1.0)}
        original = header.value("rope.scaling.original_context_length")
        if scaling == "yarn" and original:
            parameters["original_max_position_embeddings"] = int(original)
    elif scaling == "none" and has_factors:
        parameters |= _llama3_scaling(header, config)
    else:
        raise _rope_error(header, scaling)
    config.rope_parameters = parameters


def _rope_error(header: GgufHeader, scaling: str) -> ConfigError:
    return ConfigError(
        f"{header.path} scales its positions in a way that transformers does not read from GGUF files",
        value=scaling if scaling != "none" else "factors of each frequency",
        hint="use the model's folder of safetensors",
    )


def _llama3_scaling(header: GgufHeader, config: Any) -> dict[str, Any]:
    """Returns the settings of Llama 3.1's scaling whose factors of each frequency are those of the file.

    A file holds the factors alone. All models of Llama 3.1 to 3.3 share the other settings, which is checked.
    """
    import numpy as np

    tensor = next(tensor for tensor in header.tensors if tensor.name == "rope_freqs.weight")
    if tensor.ggml_type != 0:  # not float32
        raise _rope_error(header, "none")
    factors = np.fromfile(header.path, "<f4", prod(tensor.shape), offset=header.data_start + tensor.offset)
    largest, original = float(factors.max()), 8192
    settings = {
        "rope_type": "llama3",
        "factor": largest,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": original,
    }
    theta, width = float(config.rope_parameters["rope_theta"]), 2 * len(factors)
    wavelengths = 2 * np.pi * theta ** (np.arange(0, width, 2) / width)
    smooth = (original / wavelengths - 1.0) / (4.0 - 1.0)
    blended = 1 / ((1 - smooth) / largest + smooth)
    expected = np.where(smooth >= 1, 1.0, np.where(smooth <= 0, largest, blended))
    if not np.allclose(factors, expected, rtol=1e-3):
        raise _rope_error(header, "none")
    return settings


def _check_all_read(header: GgufHeader, model: Any) -> None:
    """Refuses a file with weights that the model has no place for; transformers passes over them without a word."""
    num_layers = int(getattr(model.config, "num_hidden_layers", 0) or sys.maxsize)
    expected = sum(
        prod(tensor.shape)
        for tensor in header.tensors
        if not tensor.name.startswith("rope_") and not _is_beyond(tensor.name, num_layers)
    )
    num_weights = sum(weight.numel() for weight in model.parameters())
    if expected > num_weights and header.architecture not in ("falcon", "bloom"):  # their heads are always tied
        raise Incomplete(
            f"{header.path} has weights that transformers does not read",
            value=f"{expected} weights in the file, {num_weights} in the model",
            hint="use the model's folder of safetensors",
        )


def _is_beyond(name: str, num_layers: int) -> bool:
    """Returns whether a tensor belongs to a block after the last layer, which predicts further tokens."""
    prefix, _, rest = name.partition(".")
    block = rest.partition(".")[0]
    return prefix == "blk" and block.isdigit() and int(block) >= num_layers


def _load_tokenizer(header: GgufHeader) -> Any:
    """Loads the tokenizer and restores the pre-tokenizer that the file names."""
    import transformers

    path = header.path
    with _quiet():
        try:
            tokenizer = transformers.AutoTokenizer.from_pretrained(
                path.parent, gguf_file=path.name, trust_remote_code=False, local_files_only=True
            )
        except (OSError, ValueError, KeyError, IndexError, RuntimeError) as error:
            raise Incomplete(f"the tokenizer in {path} cannot be loaded", value=str(error)[:300]) from error
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise UnsafeFile(f"the tokenizer in {path} is not understood", value=type(tokenizer).__name__)
    if header.metadata["tokenizer.ggml.model"] == "gpt2":
        split = _SPLITS[_split_name(header)]
        backend.pre_tokenizer = split.build()
        backend.model.ignore_merges = split.ignores_merges
    if header.context:
        tokenizer.model_max_length = header.context
    return tokenizer


@contextmanager
def _quiet() -> Iterator[None]:
    """Hides the progress bars of transformers; those of a GGUF file heed no setting, so standard error is hidden."""
    import transformers

    logging = transformers.utils.logging
    was_enabled = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        with redirect_stderr(io.StringIO()):
            yield
    finally:
        if was_enabled:
            logging.enable_progress_bar()
