"""What token ids say: the text of each, by the tokenizer that lies in a run; numbers where there is none."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from evolvent.errors import EvolventError, boundary

__all__ = ["Spelling", "spelling_of"]

_NAME = "tokenizer.json"
_LARGEST = 64 << 20  # bytes of a tokenizer that is read
_FOLDERS = ("model", "policy")
_BELOW = ("stages/*/policy", "snapshots/*", "checkpoints/*/model")


class Spelling:
    """Ids to texts. `known`: there is a tokenizer."""

    def __init__(self, tokenizer: Any = None) -> None:
        """By a `tokenizers.Tokenizer`, or by none."""
        self._tokenizer, self.known = tokenizer, tokenizer is not None
        self._seen: dict[int, str] = {}

    def texts(self, ids: Sequence[int]) -> list[str]:
        """The text of each id; its number in angle brackets where nothing is known of it."""
        return [self._seen[one] if one in self._seen else self._text(int(one)) for one in ids]

    def _text(self, one: int) -> str:
        text = self._tokenizer.decode([one], skip_special_tokens=False) if self.known and one >= 0 else ""
        if not text and self.known and one >= 0:
            text = self._tokenizer.id_to_token(one) or ""
        self._seen[one] = text or f"⟨{one}⟩"
        return self._seen[one]


def spelling_of(run: Path, given: Path | None = None) -> Spelling:
    """The spelling of a run: by the tokenizer in the folder `given`, else by the first that lies in the run.

    A file that is no tokenizer counts as none. Nothing that a run names beyond its own folder is looked at.
    """
    for path in _candidates(run, given):
        try:
            state = path.stat()
        except OSError:
            continue
        if state.st_size <= _LARGEST:
            return _read(path, state.st_mtime_ns)
    return Spelling()


def _candidates(run: Path, given: Path | None) -> list[Path]:
    if given is not None:
        return [given / _NAME if given.is_dir() else given]
    near = [run / name / _NAME for name in _FOLDERS]
    return [path for path in near if path.is_file()] or sorted(
        path for pattern in _BELOW for path in run.glob(f"{pattern}/{_NAME}")
    )


@lru_cache(maxsize=8)
def _read(path: Path, changed: int) -> Spelling:
    try:
        from tokenizers import Tokenizer
    except ImportError:  # it comes with the extra [train]
        return Spelling()
    try:
        with boundary(EvolventError, "no tokenizer"):  # the package raises bare exceptions
            return Spelling(Tokenizer.from_file(str(path)))
    except EvolventError:
        return Spelling()
