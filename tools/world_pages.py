"""Writes docs/worlds/NAME.md for every embedded world that loads without a file, a server or a missing package.

Run it after a change of a world: `make docs-worlds`. A new page also goes into zensical.toml and docs/worlds.md.
"""

from __future__ import annotations

import sys
from pathlib import Path

from evolvent.cli.main import main as run_command
from evolvent.cli.setup.registry import load_world
from evolvent.cli.setup.world_registry import EMBEDDED
from evolvent.errors import ConfigError, MissingExtra

PAGES = Path(__file__).parents[1] / "docs" / "worlds"


def main() -> int:
    """Writes all pages; returns the first exit code that is not 0."""
    PAGES.mkdir(exist_ok=True)
    for name in sorted(EMBEDDED):
        try:
            load_world(name)
        except (ConfigError, MissingExtra) as error:
            print(f"skipped {name}: {str(error).splitlines()[0]}")
            continue
        if exit_code := run_command(["worlds", "page", name, "--to", str(PAGES / f"{name}.md")]):
            return exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
