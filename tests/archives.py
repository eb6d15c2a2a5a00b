"""Unpacks the archives that the tests keep."""

from __future__ import annotations

import tarfile
from pathlib import Path


def unpack(archive: Path, folder: Path) -> None:
    """Unpacks a tar archive of the fixtures. Python before 3.11.4 has no filters; these archives are our own."""
    options = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
    with tarfile.open(archive) as packed:
        packed.extractall(folder, **options)  # type: ignore[arg-type]
