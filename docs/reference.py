"""The pages of the site: `python docs/reference.py` lays `docs/` and a reference made of docstrings into `build/docs`.

The source is read, never imported, so the reference needs no extra and shows every room. One page a room: its public
names (`__all__`) with signatures and docstrings. The functions here are pure, but for `lay`, which writes.
"""

from __future__ import annotations

import ast
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "evolvent"
SECTION = re.compile(r"^(Args|Attributes|Raises|Returns|Yields):(.*)$")
ITEM = re.compile(r"^ {4}(\S[^:`]*(?:`[^`]*`[^:`]*)*): +(.*)$")
LONGEST = 100
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Module:
    """A public module: its dotted name without `evolvent.`, its file in the repository, its tree, its public names."""

    name: str
    where: str
    tree: ast.Module
    names: tuple[str, ...]


def modules(source: Path = SOURCE) -> list[Module]:
    """All modules that declare public names, by name; those of private folders and files are left out."""
    found = []
    for path in sorted(source.rglob("*.py")):
        parts = path.relative_to(source).with_suffix("").parts
        if any(part.startswith("_") for part in parts):
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        if names := declared(tree):
            found.append(Module(".".join(parts), path.relative_to(source.parents[1]).as_posix(), tree, names))
    return found


def declared(tree: ast.Module) -> tuple[str, ...]:
    """The names in a module's `__all__`, in its order."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets):
            return tuple(ast.literal_eval(node.value))
    return ()


def rooms(found: Sequence[Module]) -> dict[str, list[Module]]:
    """Modules by room: the folder below `evolvent`, or `evolvent` itself for the files on the ground floor."""
    grouped: dict[str, list[Module]] = {}
    for module in found:
        room = module.name.partition(".")[0] if "." in module.name else "evolvent"
        grouped.setdefault(room, []).append(module)
    return dict(sorted(grouped.items()))


def room_page(room: str, found: Sequence[Module], about: str) -> str:
    """The page of a room."""
    lines = [f"# {room}", "", prose(about), ""]
    for module in found:
        lines += [f"## `{module.name}`", "", f"`{module.where}`", ""]
        lines += [prose(ast.get_docstring(module.tree) or ""), ""]
        for name, node, said in definitions(module):
            lines += entry(name, node, said)
    return "\n".join(lines).rstrip() + "\n"


def definitions(module: Module) -> Iterator[tuple[str, ast.stmt, str]]:
    """(name, definition, docstring) of every public name that is defined here, in the order of `__all__`."""
    defined: dict[str, tuple[ast.stmt, str]] = {}
    for node, after in zip(module.tree.body, [*module.tree.body[1:], None], strict=True):
        if isinstance(node, Function | ast.ClassDef):
            defined[node.name] = (node, ast.get_docstring(node) or "")
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                if isinstance(target, ast.Name):
                    defined[target.id] = (node, _said(after))
    for name in module.names:
        if name in defined:
            yield name, *defined[name]


def _said(node: ast.stmt | None) -> str:
    """The text that stands alone behind an assignment and says what it is."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
        return node.value.value
    return ""


def entry(name: str, node: ast.stmt, said: str) -> list[str]:
    """The lines about one public name."""
    if isinstance(node, Function):
        return [f"### {_plain(name)}", "", *fenced(signature(node)), prose(said), ""]
    if not isinstance(node, ast.ClassDef):
        shown = ast.unparse(node)
        return [
            f"### {_plain(name)}",
            "",
            *fenced(shown if len(shown) <= LONGEST else f"{name} = ..."),
            prose(said),
            "",
        ]
    bases = ", ".join(ast.unparse(base) for base in node.bases)
    marks = [f"@{ast.unparse(one)}" for one in node.decorator_list]
    head = "\n".join([*marks, f"class {name}({bases})" if bases else f"class {name}", *_fields(node)])
    lines = [f"### {_plain(name)}", "", *fenced(head), prose(said), ""]
    for method in node.body:
        if isinstance(method, Function) and (not method.name.startswith("_") or method.name == "__init__"):
            told = ast.get_docstring(method) or ""
            if method.name != "__init__" or told:
                lines += [f"#### {_plain(f'{name}.{method.name}')}", "", *fenced(signature(method)), prose(told), ""]
    return lines


def _fields(node: ast.ClassDef) -> list[str]:
    """The annotated public fields of a class, with their defaults and, behind them, what `Field` says of them."""
    lines = []
    for field in node.body:
        if not isinstance(field, ast.AnnAssign) or not isinstance(field.target, ast.Name):
            continue
        if field.target.id.startswith("_") or field.target.id == "model_config":
            continue
        shown = f"    {field.target.id}: {ast.unparse(field.annotation)}"
        if isinstance(field.value, ast.Call) and ast.unparse(field.value.func) == "Field":
            words = {word.arg: word.value for word in field.value.keywords}
            default = words.get("default", field.value.args[0] if field.value.args else None)
            shown += f" = {ast.unparse(default)}" if default is not None else ""
            about = words.get("description")
            shown += f"  # {about.value}" if isinstance(about, ast.Constant) else ""
        elif field.value is not None:
            value = ast.unparse(field.value)
            shown += f" = {value}" if len(value) <= LONGEST else " = ..."
        lines.append(shown)
    return lines


def signature(node: Function) -> str:
    """`def name(arguments) -> result`, on several lines where one would be too long."""
    word = "async def" if isinstance(node, ast.AsyncFunctionDef) else "def"
    marks = [f"@{ast.unparse(one)}" for one in node.decorator_list]
    result = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    whole = f"{word} {node.name}({ast.unparse(node.args)}){result}"
    if len(whole) > LONGEST:
        given = "".join(f"    {one},\n" for one in arguments(node.args))
        whole = f"{word} {node.name}(\n{given}){result}"
    return "\n".join([*marks, whole])


def arguments(args: ast.arguments) -> list[str]:
    """The arguments one by one as they are written, with the marks `/` and `*`."""
    places = [*args.posonlyargs, *args.args]
    defaults = [None] * (len(places) - len(args.defaults)) + list(args.defaults)
    shown = [_argument(one, default) for one, default in zip(places, defaults, strict=True)]
    if args.posonlyargs:
        shown.insert(len(args.posonlyargs), "/")
    if args.vararg or args.kwonlyargs:
        shown.append(f"*{_argument(args.vararg, None)}" if args.vararg else "*")
    shown += [_argument(one, default) for one, default in zip(args.kwonlyargs, args.kw_defaults, strict=True)]
    return shown + ([f"**{_argument(args.kwarg, None)}"] if args.kwarg else [])


def _argument(one: ast.arg, default: ast.expr | None) -> str:
    kind = f": {ast.unparse(one.annotation)}" if one.annotation else ""
    given = f" = {ast.unparse(default)}" if kind and default is not None else ""
    return one.arg + kind + (given or (f"={ast.unparse(default)}" if default is not None else ""))


def fenced(code: str) -> list[str]:
    """A block of Python."""
    return ["```python", *code.splitlines(), "```", ""]


def prose(said: str) -> str:
    """A docstring as Markdown: sections become lists, indented lines stay as they are, marks lose their meaning."""
    lines: list[str] = []
    section = False
    for line in said.strip().splitlines():
        named = SECTION.match(line)
        item = ITEM.match(line) if section else None
        if named:
            section = True
            lines += ["", f"**{named[1]}**" + (f" {_plain(named[2].strip())}" if named[2].strip() else ""), ""]
        elif item:
            lines.append(f"- `{item[1]}`: {_plain(item[2])}" if "`" not in item[1] else f"- {_plain(line.strip())}")
        elif section and line.startswith("    "):
            lines.append(f"  {_plain(line.strip())}")
        else:
            section = section and not line.strip()
            lines.append(line if line.startswith("    ") else _plain(line))
    return "\n".join(_apart(lines)).strip()


def _apart(lines: Sequence[str]) -> Iterator[str]:
    """Blank lines round indented blocks, without which they would belong to the paragraph before."""
    before = ""
    for line in lines:
        if before.strip() and line.strip() and line.startswith("    ") != before.startswith("    "):
            yield ""
        yield line
        before = line


def _plain(text: str) -> str:
    """Text outside of backticks with its marks taken literally."""
    parts = re.split(r"(`[^`]*`)", text)
    escaped = [part if part.startswith("`") else re.sub(r"([\\*_<>\[\]|#~^])", r"\\\1", part) for part in parts]
    return "".join(escaped)


def about_rooms(design: str) -> dict[str, str]:
    """What `docs/design.md` says of each room in its table."""
    found = {}
    for line in design.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if len(cells) == 3 and cells[0].isdigit():
            found |= {name.removesuffix("/"): cells[2] for name in re.findall(r"`([a-z_]+/?)`", cells[1])}
    return found


def index_page(grouped: dict[str, list[Module]], about: dict[str, str]) -> str:
    """The reference's first page: every room with what it is and how much of it is public."""
    lines = [
        "# Reference",
        "",
        "Made of the docstrings when the site is built. A package imports only from lower layers",
    ]
    lines += ["([design](../design.md)).", "", "| package | contents | modules | names |", "|---|---|---|---|"]
    for room, found in grouped.items():
        names = sum(len(module.names) for module in found)
        lines.append(f"| [{room}]({room}.md) | {_plain(about.get(room, ''))} | {len(found)} | {names} |")
    return "\n".join(lines) + "\n"


def reference(source: Path = SOURCE, design: Path = ROOT / "docs" / "design.md") -> dict[str, str]:
    """Every page of the reference by its file name."""
    grouped = rooms(modules(source))
    about = about_rooms(design.read_text(encoding="utf-8"))
    about.setdefault("evolvent", "what everything stands on: the record, the run, errors, configuration, files")
    pages = {f"{room}.md": room_page(room, found, about.get(room, "")) for room, found in grouped.items()}
    return {"index.md": index_page(grouped, about), **pages}


def lay(to: Path) -> None:
    """Write the pages of `docs/` and the reference into a folder, which is emptied first."""
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(ROOT / "docs", to, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    (to / "reference").mkdir()
    for name, text in reference().items():
        (to / "reference" / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    lay(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build" / "docs")
