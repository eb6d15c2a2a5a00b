"""Moves and merges modules of the package and rewrites every mention of them.

Usage: python tools/renames/moves.py [--root FOLDER] [--table tools/renames/moves.txt]

The table has one move a line, `old.py -> new.py` (move) or `old.py into new.py` (merge), with paths below
`src/evolvent`. Moves that were already made are skipped, so the program may be run again, also over a branch that began
before.
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

PACKAGE = Path("src/evolvent")
TEXTS = {".py", ".md", ".toml", ".txt", ".sh", ".jinja", ".json"}
_DEFINITIONS = (ast.Assign, ast.AnnAssign, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
FOLDERS = ("src", "tests", "benchmarks", "examples", "docs", "tools")


@dataclass(frozen=True)
class Move:
    """One move of a module: paths below the package, and whether the target exists already."""

    source: Path
    target: Path
    merge: bool


def parse_table(text: str) -> list[Move]:
    """Reads the table of moves.

    Raises:
        ValueError: a line of another form.
    """
    moves = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        match = re.fullmatch(r"(\S+) (->|into) (\S+)", line.strip())
        if match is None:
            raise ValueError(f"line {number}: expected 'old.py -> new.py' or 'old.py into new.py', got {line!r}")
        moves.append(Move(Path(match[1]), Path(match[3]), match[2] == "into"))
    return moves


def module_name(path: Path) -> str:
    """Returns the dotted name of a module below the package: `learn/flat.py` is `evolvent.learn.flat`."""
    return ".".join(("evolvent", *path.with_suffix("").parts))


def merge_sources(source: str, target: str, source_module: str, *, target_module: str = "") -> str:
    """Returns the target's text with the source's docstring, imports, exports and definitions added.

    What both modules define in the same words stands once. The source's definitions come first, unless the source
    imports the target.

    Raises:
        ValueError: both define the same top-level name in different words.
    """
    target = _add_docstring(source, target)
    source_tree, target_tree = ast.parse(source), ast.parse(target)
    same = {ast.dump(node) for node in target_tree.body if isinstance(node, _DEFINITIONS) and not _is_exports(node)}
    repeated = [node for node in source_tree.body if ast.dump(node) in same]
    source_tree.body = [node for node in source_tree.body if node not in repeated]
    duplicates = _defined(source_tree) & _defined(target_tree)
    if duplicates:
        raise ValueError(f"{source_module}: both modules define {sorted(duplicates)}")
    imports, body = _split(source, source_tree, repeated)
    target_lines = target.splitlines()
    exports = next((node for node in target_tree.body if _is_exports(node)), None)
    before = target_tree.body[: target_tree.body.index(exports)] if exports else target_tree.body
    head = [node for node in before if isinstance(node, ast.Import | ast.ImportFrom) or _is_typing_block(node)]
    last_import = max(node.end_lineno or node.lineno for node in head)
    first_body = (exports.end_lineno or exports.lineno) if exports else last_import
    is_later = any(isinstance(node, ast.ImportFrom) and node.module == target_module for node in source_tree.body)
    names = sorted({*_exports(source_tree), *_exports(target_tree)})
    lines = [
        *target_lines[:last_import],
        *imports,
        "",
        f"__all__ = {names!r}",
        *(body if not is_later else ()),
        "",
        *target_lines[first_body:],
        *(["", *body] if is_later else ()),
    ]
    return "\n".join(lines) + "\n"


def _add_docstring(source: str, target: str) -> str:
    """Returns the target with the source's module docstring as further paragraphs of its own."""
    texts = [ast.get_docstring(ast.parse(text), clean=False) for text in (source, target)]
    if None in texts or not all(text.startswith(('"""', 'r"""')) for text in (source, target)):
        return target
    if source.startswith("r") and not target.startswith("r"):
        target = f"r{target}"
    node = ast.parse(target).body[0]
    lines = target.splitlines()
    docstring = "\n".join(lines[: node.end_lineno]).rstrip().removesuffix('"""').rstrip()
    return "\n".join([docstring, "", str(texts[0]).strip(), '"""', *lines[node.end_lineno :]]) + "\n"


def _is_exports(node: ast.stmt) -> bool:
    return isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets)


def _is_typing_block(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def _exports(tree: ast.Module) -> list[str]:
    return [
        name
        for node in tree.body
        if isinstance(node, ast.Assign) and _is_exports(node)
        for name in ast.literal_eval(node.value)
    ]


def _defined(tree: ast.Module) -> set[str]:
    names = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign) and not _is_exports(node):
            names.update(t.id for t in node.targets if isinstance(t, ast.Name))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
    return names


def _first_line(node: ast.stmt) -> int:
    """Returns the index of a statement's first line, decorators included."""
    return min([node.lineno, *(decorator.lineno for decorator in getattr(node, "decorator_list", ()))]) - 1


def _split(text: str, tree: ast.Module, repeated: list[ast.stmt]) -> tuple[list[str], list[str]]:
    """Splits a module into the lines of its top-level imports and those of its body, without what is repeated."""
    lines, imports, removed = text.splitlines(), [], set()
    for node in repeated:
        removed.update(range(_first_line(node), node.end_lineno or node.lineno))
    for index, node in enumerate(tree.body):
        start, end = _first_line(node), node.end_lineno or node.lineno
        is_docstring = index == 0 and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        is_import = isinstance(node, ast.Import | ast.ImportFrom) or _is_typing_block(node)
        if is_docstring or is_import or _is_exports(node):
            removed.update(range(start, end))
        if is_import and getattr(node, "module", None) != "__future__":
            imports += lines[start:end]
    return imports, [line for number, line in enumerate(lines) if number not in removed]


def rewrite(text: str, moves: list[Move]) -> str:
    """Returns the text with every mention of a moved module, dotted or as a path, rewritten."""
    for move in moves:
        if move.source.stem not in text:
            continue
        old, new = module_name(move.source), module_name(move.target)
        text = re.sub(rf"(?<![\w.]){re.escape(old)}(?![\w])", new, text)
        text = re.sub(rf"(?<![\w/]){re.escape(move.source.as_posix())}(?![\w])", move.target.as_posix(), text)
        path, new_path = (f"{PACKAGE.as_posix()}/{end.as_posix()}" for end in (move.source, move.target))
        text = re.sub(rf"(?<![\w/]){re.escape(path)}(?![\w])", new_path, text)
        package, _, name = old.rpartition(".")
        new_package, _, new_name = new.rpartition(".")
        statement = re.compile(rf"from {re.escape(package)} import {name}$", re.MULTILINE)
        if statement.search(text):
            text = statement.sub(f"from {new_package} import {new_name}", text)
            text = re.sub(rf"(?<![\w.\"']){name}(?=[.,)])", new_name, text)
    return text


def drop_self_imports(text: str, module: str) -> str:
    """Removes imports of a module from itself, also those in functions, which a merge leaves behind."""
    lines = text.splitlines(keepends=True)
    own = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom) and node.module == module]
    for node in sorted(own, key=lambda node: node.lineno, reverse=True):
        del lines[node.lineno - 1 : node.end_lineno]
    return "".join(lines)


def git(root: Path, *args: str) -> None:
    """Runs one git command in the folder."""
    subprocess.run(("git", *args), cwd=root, check=True, stdout=subprocess.DEVNULL)


def main(argv: list[str] | None = None) -> int:
    """Applies the table to a checkout; returns 0."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--root", type=Path, default=Path())
    parser.add_argument("--table", type=Path, default=Path(__file__).with_name("moves.txt"))
    options = parser.parse_args(argv)
    root, moves = options.root, parse_table(options.table.read_text(encoding="utf-8"))
    for move in moves:
        source, target = root / PACKAGE / move.source, root / PACKAGE / move.target
        if not source.exists():
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        if not (target.parent / "__init__.py").exists() and target.parent != root / PACKAGE:
            (target.parent / "__init__.py").write_text("", encoding="utf-8")
        if move.merge:
            merged = merge_sources(
                source.read_text(encoding="utf-8"),
                target.read_text(encoding="utf-8"),
                source.stem,
                target_module=module_name(move.target),
            )
            target.write_text(merged, encoding="utf-8")
            git(root, "rm", "-q", "-f", str(PACKAGE / move.source))
        else:
            git(root, "mv", str(PACKAGE / move.source), str(PACKAGE / move.target))
    files = [
        path
        for folder in FOLDERS
        for path in (root / folder).rglob("*")
        if path.suffix in TEXTS and "fixtures" not in path.parts
    ]
    for path in [*files, *root.glob("*.md"), root / "pyproject.toml", root / "Makefile"]:
        if Path(__file__).parent.name in path.parts or "results" in path.parts:
            continue
        before = path.read_text(encoding="utf-8")
        after = rewrite(before, moves)
        if (root / PACKAGE) in path.parents and path.suffix == ".py":
            after = drop_self_imports(after, module_name(path.relative_to(root / PACKAGE)))
        if after != before:
            path.write_text(after, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
