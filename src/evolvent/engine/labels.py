"""The label of weights: what a server that lets its clients name them is told, and gives back with what they wrote.

It has the form of our own servers' fingerprints (`replies.FINGERPRINT`), so whoever reads replies knows the version.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from evolvent.engine.replies import FINGERPRINT
from evolvent.errors import Incomplete, WeightsChanged

__all__ = ["one_label", "same_weights", "weights_label"]

_BLOCK, _BLOCKS = (
    1 << 16,
    64,
)  # bytes of a block, and blocks of a file that are read: an update changes nearly all of them


def weights_label(folder: Path) -> str:
    """`evolvent-vVERSION-DIGEST` of a model folder: the version that its `evolvent.json` notes, else 0.

    The digest is of the weight files' names, sizes, and 64 evenly spaced blocks of 64 KiB of each.

    Raises:
        Incomplete: no safetensors there, or a file that cannot be read.
    """
    files = sorted(Path(folder).glob("*.safetensors"))
    if not files:
        raise Incomplete("a folder without weights was handed over", value=str(folder), expected="*.safetensors")
    try:
        note = Path(folder) / "evolvent.json"
        version = int(json.loads(note.read_text(encoding="utf-8")).get("version", 0)) if note.exists() else 0
        digest = hashlib.sha256()
        for file in files:
            size = file.stat().st_size
            digest.update(f"{file.name} {size}\n".encode())
            with file.open("rb") as data:
                for block in range(_BLOCKS):
                    data.seek(max(0, size - _BLOCK) * block // (_BLOCKS - 1))
                    digest.update(data.read(_BLOCK))
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise Incomplete(f"{folder} cannot be read", value=f"{type(error).__name__}: {error}") from error
    return f"evolvent-v{version}-{digest.hexdigest()[:12]}"


def one_label(label: object, spans: object, *, where: str) -> str:
    """Whose weights wrote a reply; "" where that is not told.

    Args:
        label: of the weights at its end, as the server tells. spans: `[{"version", "start", "end"}, ...]` over its
            tokens, where it tells those.
        where: which request it answers, for errors.
    Raises:
        WeightsChanged: parts of it were written by different weights.
    """
    rows = spans if isinstance(spans, list) else []
    told = [row.get("version") for row in rows if isinstance(row, Mapping) and row.get("start") != row.get("end")]
    names = sorted({name for name in told if isinstance(name, str)})
    if len(names) > 1:
        raise WeightsChanged(
            f"{where}: the weights were replaced while the reply was written",
            expected="one version",
            value=" and ".join(names)[:200],
            hint="ask again",
        )
    return names[0][:200] if names else label[:200] if isinstance(label, str) else ""


def same_weights(told: str, label: str) -> bool:
    """Whether a server that tells this serves what bears that label. A server of ours makes its own digest."""
    one, other = FINGERPRINT.fullmatch(told), FINGERPRINT.fullmatch(label)
    return told == label or (one is not None and other is not None and one[1] == other[1])
