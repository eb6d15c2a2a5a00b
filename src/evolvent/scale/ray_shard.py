"""One shard of data on a node of a cluster. It needs neither torch nor a model, so that a worker is there at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from evolvent.curate.shards import Shard
from evolvent.curate.stages import Stage, file_of, transform
from evolvent.errors import EngineError, EvolventError, boundary
from evolvent.scale.ray_versions import check_versions

__all__ = ["made_shard"]


def made_shard(
    row: Mapping[str, Any], stages: Sequence[Stage], versions: Mapping[str, str]
) -> tuple[bytes, bytes, tuple[str, str] | None]:
    """The task: the bytes of a finished shard and of its summary, or the kind and text of an error.

    Args:
        versions: of the run; where there are others here, the error says so.
    """
    shard = Shard(**{**row, "path": Path(row["path"])})
    try:
        check_versions(versions)
        with boundary(EngineError, "a stage failed"), TemporaryDirectory(prefix="evolvent-") as made:
            cache = Path(made)
            transform([shard], stages, cache / "rows.jsonl", cache=cache, may_be_empty=True)
            file = file_of(stages, shard, cache)
            return file.read_bytes(), file.with_suffix(".json").read_bytes(), None
    except EvolventError as error:
        return b"", b"", (type(error).__name__, str(error))
