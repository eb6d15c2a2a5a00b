"""Frames, as the trusted side writes and reads them: uint32 length (little-endian), then a JSON object in ASCII."""

from __future__ import annotations

import json
from typing import Any

from evolvent.sandbox.values import HEADER_BYTES, MAX_FRAME_BYTES, Malformed

__all__ = ["encode_frame", "parse_frame"]


def encode_frame(row: dict[str, Any], size: int = MAX_FRAME_BYTES) -> bytes:
    """Encodes a row as a frame: uint32 length (little-endian), then JSON in ASCII.

    Raises:
        Malformed: more than `size` bytes.
    """
    body = json.dumps(row, separators=(",", ":")).encode("ascii")
    if len(body) > size:
        raise Malformed(f"a frame of {len(body)} bytes, at most {size}")
    return len(body).to_bytes(HEADER_BYTES, "little") + body


def parse_frame(body: bytes) -> dict[str, Any]:
    """Parses the row of a frame's body.

    Raises:
        Malformed: no JSON object, nested too deeply, or a number too long.
    """
    try:
        row = json.loads(body.decode("ascii"))
    except (ValueError, RecursionError) as error:
        raise Malformed(f"no JSON: {type(error).__name__}") from None
    if not isinstance(row, dict):
        raise Malformed(f"a {type(row).__name__}, not an object")
    return row
