"""The source tree as the house rules see it: files, syntax trees, imports, and the table of rooms in docs/design.md."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src" / "evolvent"
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Module:
    name: str  # dotted, from "evolvent"
    path: Path
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, str(self.path))

    @cached_property
    def nodes(self) -> tuple[ast.AST, ...]:
        """All nodes of the tree; every rule reads them."""
        return tuple(ast.walk(self.tree))

    @property
    def where(self) -> str:
        return str(self.path.relative_to(ROOT))

    @property
    def is_package(self) -> bool:
        return self.path.name == "__init__.py"


@cache
def modules() -> tuple[Module, ...]:
    return tuple(read(path) for path in sorted(SRC.rglob("*.py")))


@cache
def _module_names() -> frozenset[str]:
    return frozenset(module.name for module in modules())


@cache
def read(path: Path) -> Module:
    parts = list(path.relative_to(ROOT / "src").with_suffix("").parts) if SRC in path.parents else [path.stem]
    if parts[-1] == "__init__":
        parts.pop()
    text = path.read_text(encoding="utf-8")
    return Module(".".join(parts), path, text)


def programs(folder: str) -> tuple[Module, ...]:
    return tuple(read(path) for path in sorted((ROOT / folder).rglob("*.py")))


@cache
def rooms() -> dict[str, tuple[int, int]]:
    """Room name (first part below `evolvent.`) -> (floor, row): names of one row are one room."""
    found: dict[str, tuple[int, int]] = {}
    text = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    for row, match in enumerate(re.finditer(r"^\| (\d+) \| ([^|]+) \|", text, re.MULTILINE)):
        for name in re.findall(r"`(\w+)(?:\.py|/)`", match[2]):
            found[name] = (int(match[1]), row)
    return found


def room_of(module: str) -> str:
    return module.split(".")[1]


def imports(module: Module) -> Iterator[tuple[str, int]]:
    """Every module of the package that this one imports anywhere, also in functions and for types, with the line."""
    known = _module_names()
    for node in module.nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "evolvent":
                    yield alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module.where}:{node.lineno}: a relative import"
            if node.module and node.module.split(".")[0] == "evolvent":
                for alias in node.names:
                    full = f"{node.module}.{alias.name}"
                    yield (
                        (
                            full
                            if full in known
                            else f"evolvent:{alias.name}"
                            if node.module == "evolvent"
                            else node.module
                        ),
                        node.lineno,
                    )


def functions(module: Module) -> Iterator[tuple[str, Function]]:
    """Every function and method with its qualified name; names with a part that begins with `_` are private."""

    def inside(node: ast.AST, prefix: str) -> Iterator[tuple[str, Function]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, Function):
                yield prefix + child.name, child
                yield from inside(child, f"{prefix}{child.name}.<locals>.")
            elif isinstance(child, ast.ClassDef):
                yield from inside(child, f"{prefix}{child.name}.")
            else:
                yield from inside(child, prefix)

    return inside(module.tree, "")


def is_public(qualified: str) -> bool:
    return not any((part.startswith("_") and part != "__init__") or part == "<locals>" for part in qualified.split("."))


def declared(module: Module) -> list[str] | None:
    """The names in `__all__`, None where there is none."""
    for node in module.tree.body:
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets):
            return list(ast.literal_eval(node.value))
    return None


def boundary_lines() -> range:
    """The lines of errors.boundary, the one place for a broad `except`."""
    module = read(SRC / "errors.py")
    node = next(node for name, node in functions(module) if name == "boundary")
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)
