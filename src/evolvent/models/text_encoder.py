"""Encoding of rendered conversations: whole texts at once, where only a template may write control tokens.

SentencePiece and byte-level tokenizers encode a piece otherwise when it stands alone, so that the tokens of a text are
those of the whole text. Text of users, tools and worlds that spells a control token is encoded as its letters.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["EncodedText", "Piece", "TextEncoder", "join_pieces"]

_ANCHOR = "\ue0a0anchor\ue0a0"


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of a rendered conversation: the template's own text, or text of a message (`is_content`)."""

    text: str
    is_content: bool = False


@dataclass(frozen=True, slots=True)
class EncodedText:
    """Token ids `[T]`, and where in the text each token starts and ends (in characters)."""

    ids: list[int]
    starts: list[int]
    ends: list[int]

    def after(self, position: int) -> list[int]:
        """Returns the tokens that end behind a position; one that crosses it is among them."""
        return [index for index, end in zip(self.ids, self.ends, strict=True) if end > position]

    def before(self, position: int) -> list[int]:
        """Returns the tokens up to a position; one that crosses it is not among them."""
        return self.ids[: len(self.ids) - len(self.after(position))]


def join_pieces(pieces: Sequence[Piece]) -> str:
    """Returns the text of pieces."""
    return "".join([piece.text for piece in pieces])


class TextEncoder:
    """Encodes texts whole. Control tokens are those that the template wrote, never those that a message spells.

    Args:
        tokenizer: of Hugging Face.
        template_text: texts in which the control tokens of the format are spelled: the template and its renderings.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, template_text: str) -> None:
        self._tokenizer = tokenizer
        special_ids = {int(index) for index in tokenizer.all_special_ids}
        self._marks = {
            int(index): added_token
            for index, added_token in tokenizer.added_tokens_decoder.items()
            if added_token.special
            or (str(added_token).strip() and (str(added_token) in template_text or index in special_ids))
        }
        self.mark_ids = frozenset(self._marks) | special_ids
        self._spellings = [str(mark) for mark in self._marks.values() if str(mark).strip()]
        self._has_offsets = bool(getattr(tokenizer, "is_fast", False)) and hasattr(tokenizer, "backend_tokenizer")

    def encode(self, pieces: Sequence[Piece]) -> EncodedText:
        """Encodes pieces as one text.

        Returns:
            The tokens of the whole text; where a message spells a control token, the message's letters instead.
        """
        text = join_pieces(pieces)
        if not text:
            return EncodedText([], [], [])
        if not self._has_offsets:
            return self._encode_apart(pieces)
        if not any(piece.is_content and self.find_mark(piece.text) for piece in pieces):
            return self._encode_whole(text)
        return self._encode_guarded(pieces, text)

    def find_mark(self, text: str) -> str | None:
        """Returns a control token that a text spells; None where it spells none."""
        return next((spelling for spelling in self._spellings if spelling in text), None)

    def _encode_whole(self, text: str) -> EncodedText:
        row = self._tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        offsets = row["offset_mapping"]
        return EncodedText(
            list(row["input_ids"]), [int(start) for start, _ in offsets], [int(end) for _, end in offsets]
        )

    def _encode_guarded(self, pieces: Sequence[Piece], text: str) -> EncodedText:
        """Encodes the text between the template's control tokens as letters."""
        filled = "".join([re.sub(r"\S", "x", piece.text) if piece.is_content else piece.text for piece in pieces])
        template_tokens = self._encode_whole(filled)
        ids, starts, ends, position = list[int](), list[int](), list[int](), 0
        marks = [
            row
            for row in zip(template_tokens.ids, template_tokens.starts, template_tokens.ends, strict=True)
            if row[0] in self.mark_ids
        ]
        for index, start, end in [*marks, (-1, len(text), len(text))]:
            if start > position:
                run = self._encode_letters(text[position:start], is_first=position == 0)
                ids += run.ids
                starts += [position + offset for offset in run.starts]
                ends += [position + offset for offset in run.ends]
            if index >= 0:
                ids.append(index)
                starts.append(start)
                ends.append(end)
            position = max(position, end)
        return EncodedText(ids, starts, ends)

    def _encode_letters(self, text: str, *, is_first: bool) -> EncodedText:
        """Encodes a text without control tokens. Behind a control token it is anchored, as it is not the beginning."""
        shift = 0 if is_first else len(_ANCHOR)
        encoding = self._letters.encode(text if is_first else _ANCHOR + text, add_special_tokens=False)
        rows = [
            (index, start - shift, end - shift)
            for index, (start, end) in zip(encoding.ids, encoding.offsets, strict=True)
            if end > shift or is_first
        ]
        return EncodedText([row[0] for row in rows], [row[1] for row in rows], [row[2] for row in rows])

    @cached_property
    def _letters(self) -> Any:
        """Returns a copy of the tokenizer in which every control token is read as letters, and the anchor is one."""
        from tokenizers import AddedToken

        core = copy.deepcopy(self._tokenizer.backend_tokenizer)
        marks = [copy.deepcopy(mark) for mark in self._marks.values()]
        for mark in marks:
            mark.special = True
        core.add_special_tokens(marks)
        core.add_tokens([AddedToken(_ANCHOR, special=False, normalized=False)])
        core.no_truncation()
        core.no_padding()
        core.encode_special_tokens = True
        return core

    def _encode_apart(self, pieces: Sequence[Piece]) -> EncodedText:
        """Encodes piece by piece: for tokenizers that tell no offsets."""
        ids, starts, ends, position = list[int](), list[int](), list[int](), 0
        for piece in pieces:
            options = {"split_special_tokens": True} if piece.is_content else {}
            piece_ids = self._tokenizer.encode(piece.text, add_special_tokens=False, **options) if piece.text else []
            end = position + len(piece.text)
            ids += piece_ids
            starts += [position] * len(piece_ids)
            ends += [end] * len(piece_ids)
            position = end
        return EncodedText(ids, starts, ends)
