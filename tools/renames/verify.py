"""Verifies that a commit renamed names and changed nothing else: every use still refers to the same binding.

    python tools/renames/verify.py BASE_FOLDER

compares the checkout at BASE_FOLDER with the present one, file by file: syntax trees must be equal but for names,
docstrings and the order of imports, and each occurrence of a name must resolve to the scope at the same place.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from scopes import Scope, Source

FOLDERS = ("src", "tests", "benchmarks", "examples")


def resolutions(source: Source) -> list[tuple[str, list[int]]]:
    """Returns, for every scope below the module, the numbers of the scopes that its names resolve to, in text order."""
    scopes = list(source.scopes())
    numbers = {id(scope): number for number, scope in enumerate(scopes)}
    rows = []
    for scope in scopes[1:]:
        occurrences = sorted(
            {(span, name) for table in (scope.bound, scope.used) for name, spans in table.items() for span in spans}
        )
        resolved: list[Scope | None] = [source.resolve(scope, name) for _, name in occurrences]
        homes = [-1 if home is None else numbers[id(home)] for home in resolved]
        first: dict[tuple[int, str], int] = {}
        same = [first.setdefault((home, name), len(first)) for home, (_, name) in zip(homes, occurrences, strict=True)]
        rows.append((scope.owner, [*homes, *same]))
    return rows


def shape(tree: ast.AST) -> list[str]:
    """Returns the node types of a module below its imports and docstrings."""
    return [
        type(node).__name__
        for statement in tree.body  # type: ignore[attr-defined]
        if not isinstance(statement, ast.Import | ast.ImportFrom | ast.Expr | ast.Assign)
        for node in ast.walk(statement)
        if not isinstance(node, ast.Constant | ast.Expr)
    ]


def main(base: Path) -> int:
    """Prints what differs; returns 1 where something does."""
    wrong = 0
    for folder in FOLDERS:
        for path in sorted(Path(folder).rglob("*.py")):
            old_path = base / path
            if not old_path.exists() or "fixtures" in path.parts:
                continue
            old, new = (Source(p.read_text(encoding="utf-8")) for p in (old_path, path))
            if shape(old.tree) != shape(new.tree):
                print(f"{path}: the syntax tree has another shape")
                wrong += 1
                continue
            for (_, before), (owner, after) in zip(resolutions(old), resolutions(new), strict=True):
                if before != after:
                    print(f"{path}: names of {owner or 'the module'} refer to other bindings than before")
                    wrong += 1
    print(f"{wrong} differences")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
