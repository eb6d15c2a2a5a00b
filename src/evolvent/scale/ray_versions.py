"""Versions that must be the same on every node of a cluster: Python, and the packages that results depend on."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version

from evolvent.errors import VersionMismatch

__all__ = ["check_versions", "read_versions"]

_COMPARED = ("evolvent", "torch", "numpy", "transformers")


def read_versions() -> dict[str, str]:
    """Returns the versions here; "none" for a missing package."""
    version_by_package = {"python": ".".join(map(str, sys.version_info[:2]))}
    for name in _COMPARED:
        try:
            version_by_package[name] = version(name)
        except PackageNotFoundError:
            version_by_package[name] = "none"
    return version_by_package


def check_versions(run_versions: Mapping[str, str]) -> None:
    """Raises VersionMismatch for a run that has other versions than this process."""
    local_versions = read_versions()
    if local_versions != run_versions:
        raise VersionMismatch(
            "packages of a cluster node differ from the run",
            value=local_versions,
            expected=run_versions,
            hint="install the same versions on the node",
        )
