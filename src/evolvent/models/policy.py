"""The policy: a model, its tokenizer, its dialect and a version. Any Hugging Face causal LM folder is a policy.

So is a GGUF file, a model that `evolvent models get` fetched, and a name of the Hugging Face cache.

A saved policy is an ordinary folder that `AutoModelForCausalLM` and `AutoTokenizer` load, with one additional
small file (`evolvent.json`: dialect and version) and, where there is a value head, `value_head.safetensors`. A
policy with an adapter is saved as peft saves it, beside a note of the folder of its frozen weights.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from evolvent.errors import (
    ConfigError,
    HashMismatch,
    Incomplete,
    MissingExtra,
    Problem,
    ShapeMismatch,
    UnsafeFile,
    VocabularyMismatch,
    boundary,
)
from evolvent.models.catalog import count_parameters, locate_model, read_weight_shapes
from evolvent.models.dialects import Chat, Dialect, HistoryMode, Words, dialect_for
from evolvent.models.gguf import find_gguf, load_gguf, read_gguf_config, read_gguf_header
from evolvent.models.inspection import TokenizerTrial, check_config, check_files, check_finite
from evolvent.models.placement import (
    DEFAULT_CONTEXT,
    ContextSetting,
    DtypeName,
    check_memory,
    find_device,
    find_dtype,
)
from evolvent.models.quantized import dequantize, is_quantized, load_quantized
from evolvent.models.tiny import init_tiny, tiny_config, word_tokenizer
from evolvent.models.tuned import (
    FILES,
    HEAD_FILE,
    attach_adapter,
    base_digest,
    kind_of,
    light_copy,
    save_adapter,
    strip_adapter,
    trainable,
    virtual_tokens,
)

if TYPE_CHECKING:
    import torch
    from torch import nn
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

    from evolvent.models.heads import ValueHead

__all__ = ["BaseFolder", "Policy", "load_policy", "quantize_base", "refuse_pickle", "tiny_policy"]

try:
    _HAS_TORCH = find_spec("torch") is not None
except (ImportError, ValueError):  # it was blocked
    _HAS_TORCH = False
if not _HAS_TORCH:
    raise MissingExtra("train", "a language model")

_NOTE, _BASE = "evolvent.json", "base"
_TOKENIZERS = {"tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json"}
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")


@dataclass(frozen=True, slots=True)
class BaseFolder:
    """The folder that weights were read from, and the digest that they had then (`tuned.base_digest`).

    Attributes:
        dtype: the numbers that the weights were converted to; "auto": they are as stored.
        bits: of the linear layers that were quantized then; None: none were.
    """

    folder: Path
    digest: str
    dtype: DtypeName = "auto"
    bits: Literal[4] | None = None


@dataclass(frozen=True, eq=False)
class Policy:
    """A causal language model that acts.

    Attributes:
        model: a transformers causal LM. Learners change its weights; then they hand out a policy of the next version.
        tokenizer, dialect: how text becomes tokens.
        version: counts the updates of the weights; every generation carries the version that wrote it.
        value_head: `[hidden] -> [1]` on the model's last hidden state, where an objective needs values.
        limit: a context shorter than the model's.
        base: where the weights, those below an adapter, were read from; None: they were made in memory.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    dialect: Dialect
    version: int = 0
    value_head: nn.Module | None = None
    limit: int | None = None
    base: BaseFolder | None = None

    def __repr__(self) -> str:
        """Returns what the policy is in one line, without its weights."""
        config, adapter = self.model.config, kind_of(self.model)
        parts = [str(getattr(config, "model_type", type(self.model).__name__)), f"{self.parameters():,} weights"]
        parts += [f"{adapter} adapter"] if adapter else []
        parts += [str(next(self.model.parameters()).dtype).removeprefix("torch.")]
        parts += ["value head"] if self.value_head is not None else []
        return f"Policy({', '.join(parts)}, version={self.version}, context={self.context})"

    @property
    def context(self) -> int:
        """Returns the maximum tokens of an episode: the model's limit less an adapter's virtual tokens, or `limit`
        if less.
        """
        return min(self.model_context, self.limit or self.model_context)

    @property
    def model_context(self) -> int:
        """Returns the maximum tokens that the model reads, less an adapter's virtual tokens."""
        max_tokens = int(getattr(self.model.config, "max_position_embeddings", 0) or self.tokenizer.model_max_length)
        return max_tokens - sum(virtual_tokens(self.model))

    def to(self, device: str | torch.device, dtype: DtypeName = "auto") -> Policy:
        """Moves the weights to a device, and converts them unless the dtype is "auto"; returns the policy itself.

        Raises:
            ConfigError: a device that this machine does not have, or an unknown dtype.
        """
        target, weights_dtype = find_device(device), find_dtype(dtype)
        self.model.to(device=target, dtype=weights_dtype)
        if self.value_head is not None:
            self.value_head.to(target)
        return self

    def parameters(self) -> int:
        """Counts the weights of the model, an adapter's among them."""
        from evolvent.models.nf4 import count_weights

        return count_weights(self.model)

    def next_version(self) -> Policy:
        """Returns the same objects as the next version, after an update of the weights."""
        return replace(self, version=self.version + 1)

    def clone(self) -> Policy:
        """Returns a copy whose weights can be changed independently. Frozen weights below an adapter are shared."""
        tuned = kind_of(self.model) is not None
        model = light_copy(self.model, trained_names=trainable(self.model)) if tuned else copy.deepcopy(self.model)
        return replace(self, model=model, value_head=copy.deepcopy(self.value_head))

    def save(self, folder: Path | str) -> None:
        """Writes the policy as a Hugging Face folder (safetensors). An existing folder's files are replaced.

        Of a policy with an adapter, the adapter is written and the location of its base; a base that is in no other
        folder, or has changed there, is written into the folder too.
        """
        from evolvent.models.heads import save_head

        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        note: dict[str, Any] = {"format": 1, "dialect": self.dialect.name, "version": self.version}
        if isinstance(self.dialect, Chat):
            note["history"] = self.dialect.history
        if not isinstance(self.dialect, Words):
            note["end_ids"] = sorted(self.dialect.stop_ids)  # those of a generation_config would join them otherwise
        if kind_of(self.model) is None:
            with _hide_progress_bars(), _save_on_any_rank(self.model):
                self.model.save_pretrained(folder, **_save_options(self.model))
            for name in FILES:
                (folder / name).unlink(missing_ok=True)
        else:
            note["base"] = self._save_adapter(folder)
        self.tokenizer.save_pretrained(folder)
        (folder / HEAD_FILE).unlink(missing_ok=True)
        if self.value_head is not None:
            save_head(self.value_head, folder)
        (folder / _NOTE).write_text(json.dumps(note, indent=1) + "\n", encoding="utf-8")

    def _save_adapter(self, folder: Path) -> dict[str, Any]:
        """Writes the adapter, and its base if needed; returns the note of the base."""
        from evolvent.models.nf4 import dequantize_layers, list_nf4_layers

        digest, beside = base_digest(self.model), folder.resolve() / _BASE
        base_folder = self.base.folder.resolve() if self.base is not None and self.base.digest == digest else None
        location = _BASE  # beside the adapter, so that both can be moved together
        if (
            base_folder is None
            or base_folder == folder.resolve()
            or not (base_folder / "config.json").is_file()
            or (base_folder / FILES[0]).exists()
        ):  # a folder that holds an adapter is no base any more
            float_model = strip_adapter(self.model)
            dequantize_layers(float_model)  # they are quantized to the same numbers again
            replace(self, model=float_model, value_head=None, base=None).save(beside)
        elif base_folder != beside:
            location = str(base_folder)
        save_adapter(self.model, folder, base=location)
        note: dict[str, Any] = {"folder": location, "digest": digest}
        if list_nf4_layers(self.model):
            note["bits"] = 4
        is_converted = location != _BASE and self.base is not None and self.base.dtype != "auto"
        return {**note, "dtype": self.base.dtype} if is_converted and self.base is not None else note


def quantize_base(policy: Policy) -> Policy:
    """Returns the policy with linear layers of 4 bits (`models.nf4`); embeddings, norms and the head stay floats.

    The given policy stays unchanged. Where its weights are as its folder has them, an adapter on the result is saved
    with the location of that folder, from which they are quantized again.
    Raises:
        ConfigError: a model without linear layers in decoder layers.
    """
    from evolvent.models.nf4 import list_nf4_layers, quantize_layers

    if list_nf4_layers(policy.model):
        return policy
    model, base = light_copy(policy.model), policy.base
    if not quantize_layers(model):
        message = f"a {model.config.model_type} model has no linear layers that could have 4 bits"
        raise ConfigError([Problem("adapter.base_bits", message, "leave it out")])
    is_as_stored = base is not None and base.digest == base_digest(policy.model)
    quantized_base = replace(base, digest=base_digest(model), bits=4) if base is not None and is_as_stored else None
    return replace(policy, model=model, base=quantized_base)


def tiny_policy(vocabulary: Sequence[str], *, size: str = "xs", context: int = 256, seed: int = 0) -> Policy:
    """Returns the embedded default policy, untrained, over a closed vocabulary of words.

    Args:
        vocabulary: the words.
        size: size of the model.
        context: maximum tokens of an episode.
        seed: seed of the initialization.

    >>> policy = tiny_policy(["go", "left", "right"], context=64)
    >>> policy.version, policy.context, policy.dialect.name
    (0, 64, 'words')
    """
    tokenizer = word_tokenizer(vocabulary, context=context)
    model = init_tiny(tiny_config(len(tokenizer), size, context=context), seed=seed)
    return Policy(model, tokenizer, dialect_for(tokenizer, "words"))


def load_policy(
    folder: Path | str,
    *,
    dialect: str | None = None,
    history: HistoryMode | None = None,
    context: ContextSetting = "auto",
    device: str | torch.device = "cpu",
    dtype: DtypeName = "auto",
    base: Path | str | Policy | None = None,
) -> Policy:
    """Loads any Hugging Face causal LM folder, a peft adapter on one, or a GGUF file. No code is run, and weights are
    read from safetensors and GGUF alone.

    Weights of 8 bits that `models.quantized` wrote, and those of GGUF files, are dequantized.

    Args:
        folder: a local folder with config.json, *.safetensors and tokenizer files; or with adapter_config.json and
            adapter_model.safetensors; a GGUF file, or a folder that holds one; the name of a fetched model
            ("smollm2"), or of one in the Hugging Face cache ("Qwen/Qwen2.5-0.5B").
        dialect: "words", "chat" or "lines"; None: that of the folder's note, else the one that fits the tokenizer.
        history: of the dialect chat: past replies as they were sampled ("append"), or as the template renders them
            ("template"); None: that of the folder's note, else "append".
        context: maximum tokens of an episode; "auto": 4,096, or the model's limit if that is less, since an engine's
            memory grows with it; None: the model's limit.
        device: where the model runs, as "cuda:1".
        dtype: the numbers of the weights: "float32", "bfloat16", "float16"; "auto": as they are stored.
        base: the folder that an adapter belongs on, or its policy, which is loaded already and shares its weights;
            None: the location in the adapter's note.
    Raises:
        Incomplete: a missing or damaged file, named; weights that are not finite. UnsafeFile: pickled weights only, a
            folder that brings its own code, or a pipe or device in place of a file.
        VocabularyMismatch: a tokenizer that knows more tokens than the model. ShapeMismatch: weights that do not
            fit. LimitExceeded: a file that is too large.
        ConfigError: no such model; an adapter or a GGUF file that is not understood; a device that is not there or has
            too little memory for the weights; a context above the model's.
        HashMismatch: an adapter's base has changed.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp()) / "model"
    >>> tiny_policy(["go", "left", "right"]).save(folder)
    >>> load_policy(folder).context
    256
    """
    folder = locate_model(folder)
    check_files(folder)
    trial = TokenizerTrial.start(folder)
    target, weights_dtype = find_device(device), find_dtype(dtype)
    if (folder / FILES[0]).is_file():
        adapted_policy = _load_adapted(
            folder, dialect=dialect, history=history, context=context, dtype=dtype, base=base
        )
        return adapted_policy.to(target)
    if base is not None:
        raise ConfigError(
            "base can be set only for an adapter folder", value=str(folder), expected=f"a folder with {FILES[0]}"
        )
    gguf_file = find_gguf(folder)
    if gguf_file is not None:
        _transformers()
        gguf_config = read_gguf_config(gguf_file)
        if gguf_config is not None:
            shapes = {tensor.name: tensor.shape for tensor in read_gguf_header(gguf_file).tensors}
            check_config(gguf_file, gguf_config.to_dict(), shapes)
        _check_fits(gguf_file, gguf_config, context=context, dtype=weights_dtype, device=target)
        model, tokenizer = load_gguf(gguf_file)
        model.to(dtype=weights_dtype)
    else:
        _check_folder(folder)
        _check_fits(folder, _read_config(folder), context=context, dtype=weights_dtype, device=target)
        model = _load_model(folder, weights_dtype)
        trial.finish()
        tokenizer = _load_tokenizer(folder, model)
    check_finite(model, folder)
    note = _read_note(folder)
    policy_dialect = _dialect_of(tokenizer, model, dialect or note.get("dialect"), history or note.get("history"), note)
    version, head = int(note.get("version", 0)), _load_value_head(folder, model)
    base_folder = BaseFolder(folder.resolve(), base_digest(model), dtype)
    policy = Policy(model, tokenizer, policy_dialect, version, head, base=base_folder)
    return _limit_context(policy, context).to(target)


def _check_fits(
    path: Path,
    config: PreTrainedConfig | None,
    *,
    context: ContextSetting,
    dtype: torch.dtype | None,
    device: torch.device,
) -> None:
    """Checks the context of a model and the memory of its weights before they are read."""
    limit = getattr(config, "max_position_embeddings", None)
    if isinstance(context, int) and isinstance(limit, int) and context > limit:
        raise _context_error(context, limit)
    stored_bytes = sum(file.stat().st_size for file in path.glob("*.safetensors"))
    num_weights = count_parameters(path) or 0
    if dtype is not None or not stored_bytes or is_quantized(path):
        stored_bytes = num_weights * (4 if dtype is None else dtype.itemsize)
    check_memory(str(path), stored_bytes, device)


def _context_error(context: int, limit: int) -> ConfigError:
    return ConfigError([Problem("context", f"got {context}, expected at most {limit}, the model's limit")])


def _limit_context(policy: Policy, context: ContextSetting) -> Policy:
    """Returns the policy with the requested context."""
    limit = policy.model_context
    if context == "auto":
        return replace(policy, limit=DEFAULT_CONTEXT if limit > DEFAULT_CONTEXT else None)
    if isinstance(context, int) and context > limit:
        raise _context_error(context, limit)
    return replace(policy, limit=context)


def _dialect_of(tokenizer: Any, model: Any, name: str | None, history: str | None, note: Mapping[str, Any]) -> Dialect:
    """Returns the dialect of a loaded model, which stops at every token that its generation_config names.

    A folder that evolvent saved has a note of the tokens instead.
    """
    ends = note.get("end_ids", getattr(getattr(model, "generation_config", None), "eos_token_id", None))
    end_ids = [] if ends is None else [ends] if isinstance(ends, int) else list(ends)
    return dialect_for(tokenizer, name, history=cast(HistoryMode, history or "append"), end_ids=end_ids)


def _load_adapted(
    folder: Path,
    *,
    dialect: str | None,
    history: HistoryMode | None,
    context: ContextSetting,
    dtype: DtypeName,
    base: Path | str | Policy | None,
) -> Policy:
    """Loads an adapter on its base, in main memory. The base has the dtype in which the adapter was trained, unless
    another one is requested.
    """
    note = _read_note(folder)
    base_note: dict[str, Any] = note["base"] if isinstance(note.get("base"), dict) else {}
    if isinstance(base, Policy):
        base_policy = base
    else:
        base_policy = load_policy(
            _find_base_folder(folder, base or base_note.get("folder")),
            dialect=dialect,
            history=history or note.get("history"),
            context=context,
            dtype=base_note.get("dtype", "auto"),
        )
    if base_note.get("bits") is not None:
        if base_note["bits"] != 4:
            raise Incomplete(f"the note of {folder} has an unknown base", value=base_note["bits"], expected="bits: 4")
        base_policy = quantize_base(base_policy)
    if base_note and base_policy.base is not None and base_note.get("digest") != base_policy.base.digest:
        raise HashMismatch(
            f"the base of the adapter in {folder} has changed: {base_policy.base.folder}",
            value=base_policy.base.digest,
            expected=base_note.get("digest"),
            hint="restore the base model that the adapter was trained on",
        )
    if base_policy.base is not None and dtype not in ("auto", base_policy.base.dtype):
        base_policy.model.to(dtype=find_dtype(dtype))
        base_policy = replace(base_policy, base=None)  # its folder holds other numbers: it is saved with the adapter
    model, tokenizer, policy_dialect = (
        attach_adapter(base_policy.model, folder),
        base_policy.tokenizer,
        base_policy.dialect,
    )
    check_finite(model, folder)
    if any((folder / name).exists() for name in _TOKENIZERS):
        TokenizerTrial.start(folder).finish()
        tokenizer = _load_tokenizer(folder, model)
        name = dialect or note.get("dialect") or policy_dialect.name
        policy_dialect = _dialect_of(tokenizer, model, name, history or note.get("history"), note)
    version, head = int(note.get("version", 0)), _load_value_head(folder, model)
    return replace(
        base_policy, model=model, tokenizer=tokenizer, dialect=policy_dialect, version=version, value_head=head
    )


def _find_base_folder(folder: Path, location: Path | str | None) -> Path:
    """Returns the folder of an adapter's base: as given or noted, else as peft has it; relative to the adapter
    first.
    """
    if location is None:
        try:
            location = json.loads((folder / FILES[0]).read_text(encoding="utf-8")).get("base_model_name_or_path")
        except (ValueError, AttributeError) as error:
            raise Incomplete(f"{folder / FILES[0]} is not a JSON object", value=str(error)) from error
    base_folder = next(
        (candidate for candidate in (folder / str(location), Path(str(location))) if location and candidate.is_dir()),
        None,
    )
    hint = "set it with load_policy(folder, base=...)"
    if base_folder is None:
        raise ConfigError(
            f"base model of the adapter in {folder} not found",
            value=location,
            expected="a local model folder",
            hint=hint,
        )
    if (base_folder / FILES[0]).exists():
        raise ConfigError(
            f"base of the adapter in {folder} is another adapter",
            value=str(base_folder),
            expected="a model folder",
            hint=hint,
        )
    return base_folder


def _read_config(folder: Path) -> PreTrainedConfig | None:
    """Reads the configuration of a model folder; None where `_load_model` is to say what is wrong with it."""
    with suppress(Incomplete), boundary(Incomplete, f"config.json of {folder} is not understood"):
        config: PreTrainedConfig = _transformers().AutoConfig.from_pretrained(
            folder, trust_remote_code=False, local_files_only=True
        )
        return config
    return None


def _load_value_head(folder: Path, model: PreTrainedModel) -> ValueHead | None:
    from evolvent.models.heads import load_head

    return load_head(folder, model)


def _load_model(folder: Path, dtype: torch.dtype | None) -> Any:
    if is_quantized(folder):
        return dequantize(load_quantized(folder)).to(dtype=dtype)
    with boundary(Incomplete, f"{folder} cannot be loaded as a causal language model"):
        model, report = _build_model(folder, dtype)
    if report["missing_keys"]:
        raise Incomplete(f"weights are missing in {folder}", value=sorted(report["missing_keys"])[:5])
    return model.eval()


def _build_model(folder: Path, dtype: torch.dtype | None) -> Any:
    """Returns the model of a folder and transformers' report of its weights."""
    from safetensors import SafetensorError

    from evolvent.models.loaded_weights import keep_loaded_weights

    try:
        with _hide_progress_bars(), keep_loaded_weights():
            return _transformers().AutoModelForCausalLM.from_pretrained(
                folder,
                trust_remote_code=False,
                use_safetensors=True,
                local_files_only=True,
                dtype=dtype or "auto",
                output_loading_info=True,
                ignore_mismatched_sizes=False,
            )
    except RuntimeError as error:
        raise ShapeMismatch(f"the weights in {folder} do not fit its config.json", value=str(error)) from error
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise Incomplete(f"{folder} cannot be loaded as a causal language model", value=str(error)) from error


def _load_tokenizer(folder: Path, model: PreTrainedModel) -> Any:
    with boundary(Incomplete, f"the tokenizer in {folder} cannot be loaded"):
        tokenizer = _transformers().AutoTokenizer.from_pretrained(
            folder, trust_remote_code=False, local_files_only=True
        )
    rows = model.get_input_embeddings().weight.shape[0]
    if len(tokenizer) > rows:
        raise VocabularyMismatch(
            f"the tokenizer in {folder} does not fit its model",
            value=f"{len(tokenizer)} tokens for {rows} embeddings",
            hint="use the tokenizer that the model was trained with",
        )
    return tokenizer


def _save_options(model: PreTrainedModel) -> dict[str, Any]:
    """Returns options of `save_pretrained` that leave out a value head, which is saved in its own file."""
    if getattr(model, "value_head", None) is None:
        return {}
    weights = model.state_dict().items()
    return {"state_dict": {name: weight for name, weight in weights if not name.startswith("value_head.")}}


@contextmanager
def _save_on_any_rank(model: PreTrainedModel) -> Iterator[None]:
    """Lets the calling rank write the model: transformers would write no weights on a rank other than the first.

    Which ranks write is the caller's decision; each rank hands weights to its own players.
    """
    attributes = getattr(model, "__dict__", {})  # a stand-in whose weights are streamed has none, and asks no rank
    attributes["should_save_on_this_rank"] = lambda is_main_process: is_main_process
    try:
        yield
    finally:
        del attributes["should_save_on_this_rank"]


@contextmanager
def _hide_progress_bars() -> Iterator[None]:
    """Hides the progress bars that transformers draws for every file."""
    logging = _transformers().utils.logging
    was_enabled = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if was_enabled:
            logging.enable_progress_bar()


def _transformers() -> Any:
    try:
        import transformers
    except ImportError as error:
        raise MissingExtra("train", "a language model") from error
    return transformers


def _read_note(folder: Path) -> dict[str, Any]:
    path = folder / _NOTE
    if not path.exists():
        return {}
    try:
        note = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise Incomplete(f"{path} is not valid JSON", value=str(error)) from error
    note = {name: value for name, value in note.items() if value is not None} if isinstance(note, dict) else {}
    types = {"dialect": str, "end_ids": list, "history": str, "version": int}
    wrong = sorted(name for name, kind in types.items() if not isinstance(note.get(name, kind()), kind))
    if "end_ids" not in wrong and not all(type(index) is int for index in note.get("end_ids", ())):
        wrong.append("end_ids")
    if wrong:
        raise Incomplete(
            f"{path} is not the metadata of a policy",
            value={name: note[name] for name in wrong},
            expected="names of a dialect and of its history, whole numbers as end_ids and version",
        )
    return note


def refuse_pickle(path: Path) -> None:
    """Raises UnsafeFile for a file in a form that runs code when it is read; other paths pass."""
    if path.is_file() and path.suffix in _PICKLES:
        raise UnsafeFile(
            f"{path} is a pickle, which can run code when it is read",
            value=path.name,
            expected="a folder with *.safetensors",
            hint="convert it on a machine where you trust it: model.save_pretrained(folder)",
        )


def _check_folder(folder: Path) -> None:
    """Checks a folder for every known problem before a model is built."""
    refuse_pickle(folder)
    if not folder.is_dir():
        raise ConfigError("model folder not found", value=str(folder), expected="a folder with config.json")
    names = {path.name for path in folder.iterdir()}
    if "config.json" not in names:
        raise Incomplete(f"{folder} is not a model folder", expected="config.json", value=sorted(names)[:8])
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise Incomplete(f"{folder / 'config.json'} is not valid JSON", value=str(error)) from error
    if not isinstance(config, dict):
        raise Incomplete(f"{folder / 'config.json'} is not a JSON object", value=type(config).__name__)
    if "auto_map" in config:
        raise UnsafeFile(
            f"{folder} contains its own model code",
            value=config["auto_map"],
            expected="an architecture of transformers",
        )
    check_config(folder, config, read_weight_shapes(folder))
    if not any(name.endswith(".safetensors") and name != HEAD_FILE for name in names):
        pickles = sorted(name for name in names if name.endswith(_PICKLES))
        if pickles:
            raise UnsafeFile(
                f"{folder} has pickled weights only",
                value=pickles,
                expected="*.safetensors",
                hint="convert them on a machine where you trust them: model.save_pretrained(folder)",
            )
        raise Incomplete(f"{folder} has no weights", expected="*.safetensors")
    if not names & _TOKENIZERS:
        raise Incomplete(
            f"{folder} has no tokenizer",
            expected="tokenizer.json",
            hint="save it beside the model: tokenizer.save_pretrained(folder)",
        )
