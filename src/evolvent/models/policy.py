"""The policy: a model, its tokenizer, its dialect and a version. Any Hugging Face causal LM folder is one.

A saved policy is an ordinary folder that `AutoModelForCausalLM` and `AutoTokenizer` load, with one small file more
(`evolvent.json`: dialect and version) and, where there is a value head, `value_head.safetensors`.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evolvent.errors import ConfigError, Incomplete, MissingExtra, ShapeMismatch, UnsafeFile, VocabularyMismatch
from evolvent.models.dialects import Dialect, dialect_for
from evolvent.models.heads import ValueHead, load_head, save_head
from evolvent.models.tiny import init_tiny, tiny_config, word_tokenizer

if TYPE_CHECKING:
    from torch import nn

__all__ = ["Policy", "load_policy", "tiny_policy"]

_NOTE = "evolvent.json"
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")


@dataclass(frozen=True, eq=False)
class Policy:
    """A causal language model that acts.

    Attributes:
        model: a transformers causal LM. Learners change its weights; then they hand out a policy of the next version.
        tokenizer, dialect: how text becomes tokens.
        version: counts the updates of the weights; every generation carries the version that wrote it.
        value_head: `[hidden] -> [1]` on the model's last hidden state, where an objective needs values.
        limit: a context shorter than the model's. An engine holds keys and values for slots x context tokens.
    """

    model: Any
    tokenizer: Any
    dialect: Dialect
    version: int = 0
    value_head: nn.Module | None = None
    limit: int | None = None

    @property
    def context(self) -> int:
        """Most tokens of an episode: what the model takes, or `limit` if that is less."""
        takes = int(getattr(self.model.config, "max_position_embeddings", 0) or self.tokenizer.model_max_length)
        return min(takes, self.limit or takes)

    def parameters(self) -> int:
        """How many weights the model has."""
        return sum(weight.numel() for weight in self.model.parameters())

    def advanced(self) -> Policy:
        """The same objects as the next version, after an update of the weights."""
        return replace(self, version=self.version + 1)

    def clone(self) -> Policy:
        """A copy whose weights can be changed without changing this one's."""
        return replace(self, model=copy.deepcopy(self.model), value_head=copy.deepcopy(self.value_head))

    def save(self, folder: Path) -> None:
        """Write the policy as a Hugging Face folder (safetensors). An existing folder's files are replaced."""
        folder.mkdir(parents=True, exist_ok=True)
        with _quiet():
            self.model.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)
        (folder / ValueHead.FILE).unlink(missing_ok=True)
        if self.value_head is not None:
            save_head(self.value_head, folder)
        note = {"format": 1, "dialect": self.dialect.name, "version": self.version}
        (folder / _NOTE).write_text(json.dumps(note, indent=1) + "\n", encoding="utf-8")


def tiny_policy(words: Sequence[str], *, size: str = "xs", context: int = 256, seed: int = 0) -> Policy:
    """The embedded default policy, untrained, over a closed vocabulary of words."""
    tokenizer = word_tokenizer(words, context=context)
    model = init_tiny(tiny_config(len(tokenizer), size, context=context), seed=seed)
    return Policy(model, tokenizer, dialect_for(tokenizer, "words"))


def load_policy(folder: Path | str, *, dialect: str | None = None, context: int | None = 4096) -> Policy:
    """Load any Hugging Face causal LM folder. Only safetensors are read and no code of the folder is run.

    Args:
        folder: a local folder with config.json, *.safetensors and tokenizer files.
        dialect: "words", "chat" or "lines"; None: what the folder says, else what fits the tokenizer.
        context: most tokens of an episode, since an engine's memory grows with it; None: all that the model takes.
    Raises:
        Incomplete: a missing file, named. UnsafeFile: pickled weights only, or a folder that brings its own code.
        VocabularyMismatch: a tokenizer that knows more tokens than the model. ShapeMismatch: weights that do not fit.
    """
    folder = Path(folder)
    _check_folder(folder)
    from safetensors import SafetensorError

    transformers = _transformers()
    try:
        with _quiet():
            model, report = transformers.AutoModelForCausalLM.from_pretrained(
                folder, trust_remote_code=False, use_safetensors=True, local_files_only=True, dtype="auto",
                output_loading_info=True, ignore_mismatched_sizes=False,
            )  # fmt: skip
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    except RuntimeError as error:
        raise ShapeMismatch(f"the weights in {folder} do not fit its config.json", value=str(error)) from error
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise Incomplete(f"{folder} cannot be loaded as a causal language model", value=str(error)) from error
    if report["missing_keys"]:
        raise Incomplete(f"weights are missing in {folder}", value=sorted(report["missing_keys"])[:5])
    rows = model.get_input_embeddings().weight.shape[0]
    if len(tokenizer) > rows:
        raise VocabularyMismatch(
            f"the tokenizer in {folder} does not fit its model",
            value=f"{len(tokenizer)} tokens for {rows} embeddings",
            hint="use the tokenizer that the model was trained with",
        )
    note = _read_note(folder)
    chosen = dialect_for(tokenizer, dialect or note.get("dialect"))
    return Policy(model.eval(), tokenizer, chosen, int(note.get("version", 0)), load_head(folder, model), context)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the progress bars that transformers draws for every file."""
    logging = _transformers().utils.logging
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
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
    except ValueError as error:
        raise Incomplete(f"{path} is no JSON", value=str(error)) from error
    return note if isinstance(note, dict) else {}


def _check_folder(folder: Path) -> None:
    """Everything that can be wrong with a folder before a model is built."""
    if not folder.is_dir():
        raise ConfigError("no such model folder", value=str(folder), expected="a folder with config.json")
    names = {path.name for path in folder.iterdir()}
    if "config.json" not in names:
        raise Incomplete(f"{folder} is no model folder", expected="config.json", value=sorted(names)[:8])
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except ValueError as error:
        raise Incomplete(f"{folder / 'config.json'} is no JSON", value=str(error)) from error
    if "auto_map" in config:
        raise UnsafeFile(f"{folder} brings its own model code", value=config["auto_map"],
                         expected="an architecture that transformers knows")  # fmt: skip
    if not any(name.endswith(".safetensors") and name != ValueHead.FILE for name in names):
        pickles = sorted(name for name in names if name.endswith(_PICKLES))
        if pickles:
            raise UnsafeFile(f"{folder} has pickled weights only", value=pickles, expected="*.safetensors",
                             hint="convert them where you trust them: model.save_pretrained(folder)")  # fmt: skip
        raise Incomplete(f"{folder} has no weights", expected="*.safetensors")
    if not names & {"tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json"}:
        raise Incomplete(f"{folder} has no tokenizer", expected="tokenizer.json",
                         hint="save it beside the model: tokenizer.save_pretrained(folder)")  # fmt: skip
