"""Labels of weights, which identify the weights that a server loads and that wrote a reply.

A label has the form of our own servers' fingerprints (`replies.FINGERPRINT`), so a reader of replies knows the
version.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from evolvent.engine.replies import FINGERPRINT
from evolvent.errors import Incomplete, WeightsChanged

__all__ = ["reply_label", "same_weights", "weights_label"]

_BLOCK, _BLOCKS = (
    1 << 16,
    64,
)  # bytes of a block, and blocks of a file that are read: an update changes nearly all of them


def weights_label(folder: Path) -> str:
    """Returns the label `evolvent-vVERSION-DIGEST` of a model folder; the version is that of its `evolvent.json`, else
    0.

    The digest covers the weight files' names and sizes, and 64 evenly spaced blocks of 64 KiB of each.

    Raises:
        Incomplete: no safetensors there, or a file that cannot be read.
    """
    files = sorted(Path(folder).glob("*.safetensors"))
    if not files:
        raise Incomplete("the folder has no weights", value=str(folder), expected="*.safetensors")
    try:
        note_path = Path(folder) / "evolvent.json"
        version = int(json.loads(note_path.read_text(encoding="utf-8")).get("version", 0)) if note_path.exists() else 0
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


def reply_label(label: object, spans: object, *, request_name: str) -> str:
    """Returns the label of the weights that wrote a reply; "" where the server does not report it.

    Args:
        label: of the weights at the end of the reply, as the server reports it.
        spans: `[{"version", "start", "end"}, ...]` over its tokens, where the server reports them.
        request_name: the answered request, for errors.
    Raises:
        WeightsChanged: different weights wrote parts of the reply.
    """
    rows = spans if isinstance(spans, list) else []
    span_labels = [
        row.get("version") for row in rows if isinstance(row, Mapping) and row.get("start") != row.get("end")
    ]
    names = sorted({name for name in span_labels if isinstance(name, str)})
    if len(names) > 1:
        raise WeightsChanged(
            f"{request_name}: the weights changed while the reply was generated",
            expected="one version",
            value=" and ".join(names)[:200],
            hint="send the request again",
        )
    return names[0][:200] if names else label[:200] if isinstance(label, str) else ""


def same_weights(reported: str, label: str) -> bool:
    """Returns whether a reported label means the same weights as `label`. Our own servers compute a different
    digest.
    """
    reported_match, expected_match = FINGERPRINT.fullmatch(reported), FINGERPRINT.fullmatch(label)
    return reported == label or (
        reported_match is not None and expected_match is not None and reported_match[1] == expected_match[1]
    )
