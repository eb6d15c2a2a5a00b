"""What must be the same on every node of a cluster: Python, and the packages that results depend on."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version

from evolvent.errors import VersionMismatch

__all__ = ["check_versions", "versions"]

_COMPARED = ("evolvent", "torch", "numpy", "transformers")


def versions() -> dict[str, str]:
    """The versions here; "none" for a package that is not there."""
    found = {"python": ".".join(map(str, sys.version_info[:2]))}
    for name in _COMPARED:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "none"
    return found


def check_versions(theirs: Mapping[str, str]) -> None:
    """Refuse to work for a run that has other versions than there are here. Raises VersionMismatch."""
    own = versions()
    if own != theirs:
        raise VersionMismatch(
            "a node of the cluster has other packages than the run",
            value=own,
            expected=theirs,
            hint="install the same versions there",
        )
