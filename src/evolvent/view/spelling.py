"""Texts of token ids, by the tokenizer in the folder of a run; the id numbers where there is none."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from evolvent.errors import EvolventError, boundary

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["TokenTexts", "find_token_texts"]

_FILE_NAME = "tokenizer.json"
_MAX_FILE_BYTES = 64 << 20  # bytes of a tokenizer that is read
_FOLDERS = ("model", "policy")
_NESTED_FOLDERS = ("stages/*/policy", "snapshots/*", "checkpoints/*/model")


class TokenTexts:
    """A map from token ids to texts. `known`: there is a tokenizer."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase = None) -> None:
        """Creates a map that decodes with a `tokenizers.Tokenizer`, or without any."""
        self._tokenizer, self.known = tokenizer, tokenizer is not None
        self._seen: dict[int, str] = {}

    def texts(self, ids: Sequence[int]) -> list[str]:
        """Returns the text of each id; its number in angle brackets where the text is unknown."""
        return [self._seen[token_id] if token_id in self._seen else self._decode(int(token_id)) for token_id in ids]

    def _decode(self, token_id: int) -> str:
        text = self._tokenizer.decode([token_id], skip_special_tokens=False) if self.known and token_id >= 0 else ""
        if not text and self.known and token_id >= 0:
            text = self._tokenizer.id_to_token(token_id) or ""
        self._seen[token_id] = text or f"⟨{token_id}⟩"
        return self._seen[token_id]


def find_token_texts(run: Path, tokenizer_path: Path | None = None) -> TokenTexts:
    """Returns the token texts of a run: by the tokenizer at `tokenizer_path`, else by the first tokenizer in the
    run.

    A file that is no tokenizer counts as none. Nothing that a run names beyond its own folder is looked at.
    """
    for path in _list_candidates(run, tokenizer_path):
        try:
            state = path.stat()
        except OSError:
            continue
        if state.st_size <= _MAX_FILE_BYTES:
            return _load_tokenizer(path, state.st_mtime_ns)
    return TokenTexts()


def _list_candidates(run: Path, tokenizer_path: Path | None) -> list[Path]:
    if tokenizer_path is not None:
        return [tokenizer_path / _FILE_NAME if tokenizer_path.is_dir() else tokenizer_path]
    direct_paths = [run / name / _FILE_NAME for name in _FOLDERS]
    return [path for path in direct_paths if path.is_file()] or sorted(
        path for pattern in _NESTED_FOLDERS for path in run.glob(f"{pattern}/{_FILE_NAME}")
    )


@lru_cache(maxsize=8)
def _load_tokenizer(path: Path, changed: int) -> TokenTexts:
    try:
        from tokenizers import Tokenizer
    except ImportError:  # it comes with the extra [train]
        return TokenTexts()
    try:
        with boundary(EvolventError, "no tokenizer"):  # the package raises bare exceptions
            return TokenTexts(Tokenizer.from_file(str(path)))
    except EvolventError:
        return TokenTexts()
