"""Writes docs/renames.md: the names that users of the library may have written, and what they are called now.

    python tools/renames/document.py

Settings come from `evolvent.former_names`, modules from moves.txt and moves_cli.txt, classes and functions from the
tables: those without an underscore in front that modules export, and methods of exported classes.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(Path(__file__).parent), str(ROOT / "src")]
from moves import parse_table as parse_moves  # noqa: E402
from tables import Entry, parse_table  # noqa: E402

from evolvent.former_names import FORMER_FIELDS, FORMER_VALUES  # noqa: E402

HEAD = """# Renames

evolvent's names became those of the field in one step. Settings still load under their former names, from TOML files,
dotted overrides and constructors, with one warning; runs made before it resume. Code that imports classes or functions
has to be changed by this table, which `tools/renames/document.py` writes from the tables of the codemod
(`tools/renames/`): `moves.py` moves modules, `apply.py` renames, `verify.py` checks that nothing else changed.
"""


def settings_rows(configs: set[str]) -> list[str]:
    """Returns a row for every renamed setting of a configuration class."""
    rows = ["| class | before | now |", "|---|---|---|"]
    for name in sorted(FORMER_FIELDS):
        if name in configs:
            rows += [f"| `{name}` | `{old}` | `{new}` |" for new, old in sorted(FORMER_FIELDS[name].items())]
        for field, values in sorted(FORMER_VALUES.get(name, {}).items() if name in configs else ()):
            rows += [f"| `{name}` | `{field} = {old!r}` | `{field} = {new!r}` |" for new, old in values.items()]
    return rows


def module_targets() -> dict[Path, Path]:
    """Returns the last place of every module that was moved or merged."""
    moves = [
        move
        for name in ("moves.txt", "moves_cli.txt")
        for move in parse_moves((ROOT / "tools/renames" / name).read_text(encoding="utf-8"))
    ]
    targets = {move.source: move.target for move in moves}
    last_targets = {}
    for source, target in targets.items():
        while target in targets:
            target = targets[target]
        last_targets[source] = target
    return last_targets


def module_rows() -> list[str]:
    """Returns a row for every moved or merged module."""
    return ["| before | now |", "|---|---|", *(f"| `{old}` | `{new}` |" for old, new in module_targets().items())]


def name_rows(entries: list[Entry], exported: dict[str, set[str]]) -> list[str]:
    """Returns a row for every renamed public class, function or method, with the module where it is now."""
    targets = module_targets()
    rows = set()
    for entry in entries:
        outer, _, last = entry.scope.rpartition(".")
        public = not last.startswith("_") and not outer.startswith("_") and entry.path.startswith("src/evolvent/")
        if entry.new_name and public and outer.count(".") == 0 and entry.new_name != last:
            if outer and not outer[:1].isupper():
                continue
            module = entry.path.removeprefix("src/evolvent/")
            module = targets.get(Path(module), Path(module)).as_posix()
            names = exported.get(f"src/evolvent/{module}", set())
            if outer or entry.new_name in names:
                rows.add(f"| `{module}` | `{entry.scope}` | `{entry.new_name}` |")
    return ["| module | before | now |", "|---|---|---|", *sorted(rows)]


def _is_described_field(node: ast.stmt) -> bool:
    is_call = isinstance(node, ast.AnnAssign) and isinstance(node.value, ast.Call)
    return is_call and any(word.arg == "description" for word in node.value.keywords)  # type: ignore[union-attr]


def main() -> int:
    """Writes the page."""
    entries = [
        entry
        for path in sorted((ROOT / "tools/renames/tables").glob("*.txt"))
        for entry in parse_table(path.read_text(encoding="utf-8"), str(path))
    ]
    exported, configs = {}, set()
    for path in (ROOT / "src/evolvent").rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in tree.body:
            if isinstance(node, ast.Assign) and any(getattr(t, "id", "") == "__all__" for t in node.targets):
                exported[str(path.relative_to(ROOT))] = set(ast.literal_eval(node.value))
            if isinstance(node, ast.ClassDef) and any(map(_is_described_field, node.body)):
                configs.add(node.name)
    parts = [
        HEAD,
        "## Settings\n",
        "\n".join(settings_rows(configs)),
        "\n## Modules\n",
        "\n".join(module_rows()),
        "\n## Classes, functions and methods\n",
        "\n".join(name_rows(entries, exported)),
    ]
    (ROOT / "docs/renames.md").write_text("\n".join(parts) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
