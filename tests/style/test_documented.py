"""Public names are declared and documented; public functions and configuration fields say what they are."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache

from house import declared, modules

DEFINITION = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def _private(module) -> bool:
    return module.is_package or any(part.startswith("_") for part in module.name.split("."))


def test_every_module_says_what_it_is():
    rooms_without = {m.where for m in modules() if not m.is_package and not ast.get_docstring(m.tree)}
    assert not rooms_without


def test_every_module_declares_its_names():
    assert not [m.where for m in modules() if not _private(m) and declared(m) is None]


def test_declared_names_exist_and_are_documented():
    wrong = []
    for module in modules():
        if module.is_package:
            continue
        defined: dict[str, ast.AST] = {}
        for node in module.tree.body:
            if isinstance(node, DEFINITION):
                defined[node.name] = node
            elif isinstance(node, ast.ImportFrom):
                defined |= {alias.asname or alias.name: node for alias in node.names}
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                defined |= {target.id: node for target in targets if isinstance(target, ast.Name)}
        for name in declared(module) or ():
            node = defined.get(name)
            if node is None:
                wrong.append(f"{module.where}: {name} is declared, but not defined here")
            elif isinstance(node, DEFINITION) and not ast.get_docstring(node):
                wrong.append(f"{module.where}:{node.lineno}: {name} has no docstring")
    assert not wrong, "\n".join(wrong)


def test_configuration_fields_are_described():
    """Fields of classes that derive from Config or BaseModel are made by `Field(..., description=...)`."""
    wrong = []
    for module in modules():
        for node in module.nodes:
            if not isinstance(node, ast.ClassDef):
                continue
            bases = {base.id for base in node.bases if isinstance(base, ast.Name)}
            if not bases & {"Config", "BaseModel"}:
                continue
            for field in node.body:
                if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                    call = field.value
                    words = {word.arg for word in call.keywords} if isinstance(call, ast.Call) else set()
                    is_class_variable = ast.dump(field.annotation).startswith("Subscript(value=Name(id='ClassVar'")
                    if not is_class_variable and field.target.id != "model_config" and "description" not in words:
                        wrong.append(f"{module.where}:{field.lineno}: {node.name}.{field.target.id}")
    assert not wrong, "\n".join(wrong)


def _docstrings() -> Iterator[tuple[object, ast.AST, str]]:
    """Module, definition and docstring of everything that has one."""
    for module in modules():
        for node in module.nodes:
            if isinstance(node, DEFINITION | ast.Module) and (text := ast.get_docstring(node)):
                yield module, node, text


def _own_names(node: ast.AST) -> set[str]:
    """Parameters of a function; of a class its fields, methods, what it sets, and parameters of its creation."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        own = node.args
        every = [*own.posonlyargs, *own.args, *own.kwonlyargs, own.vararg, own.kwarg]
        return {argument.arg for argument in every if argument is not None}
    names = set()
    for part in ast.walk(node):
        if isinstance(part, ast.AnnAssign | ast.Assign):
            targets = part.targets if isinstance(part, ast.Assign) else [part.target]
            names |= {each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name)}
        if isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name) and part.value.id == "self":
            names.add(part.attr)
        if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef):
            names |= {part.name} | (_own_names(part) if part.name in ("__init__", "__new__", "__call__") else set())
    return names


def test_described_arguments_exist():
    """A parameter that was renamed keeps its description under the new name."""
    wrong = []
    for module, node, text in _docstrings():
        section = re.search(r"^(?:Args|Attributes):\n((?: +.*\n?|\n)+)", text, re.MULTILINE)
        if isinstance(node, ast.Module) or section is None:
            continue
        lines = [line for line in section[1].splitlines() if line.strip()]
        indent = min(len(line) - len(line.lstrip()) for line in lines)
        heads = [re.match(rf" {{{indent}}}([\w*`]+(?:, [\w*`]+)*):", line) for line in lines]
        described = {name.strip("*`") for head in heads if head for name in head[1].split(", ")}
        inherited = set().union(*(_class_names().get(base, set()) for base in _bases(node)))
        for name in sorted(described - _own_names(node) - inherited):
            wrong.append(f"{module.where}:{node.lineno}: {node.name} has no {name}")
    assert not wrong, "\n".join(wrong)


def _bases(node: ast.AST) -> set[str]:
    named = node.bases if isinstance(node, ast.ClassDef) else []
    return {ast.unparse(base).partition("[")[0].rpartition(".")[2] for base in named}


@cache
def _class_names() -> dict[str, set[str]]:
    """What classes of the library have, with what they inherit within it."""
    classes = [node for module in modules() for node in module.nodes if isinstance(node, ast.ClassDef)]
    own: dict[str, set[str]] = {}
    bases: dict[str, set[str]] = {}
    for node in classes:  # several may share a name
        own.setdefault(node.name, set()).update(_own_names(node))
        bases.setdefault(node.name, set()).update(_bases(node))

    def inherit(name: str) -> set[str]:
        return own[name].union(*(inherit(base) for base in bases[name] & own.keys() - {name}))

    return {name: inherit(name) for name in own}


def test_references_exist():
    """`room.module.name` and `Class.name` in docstrings name something, as long as they name the library's own."""
    tails: dict[str, set[str]] = {}
    for module in modules():
        parts = module.name.split(".")[1:]
        names = {each.id for each in module.nodes if isinstance(each, ast.Name)}
        names |= {each.name for each in module.nodes if isinstance(each, DEFINITION)}
        names |= {alias.asname or alias.name for each in module.nodes if isinstance(each, ast.ImportFrom)
                  for alias in each.names}  # fmt: skip
        for start in range(len(parts)):
            tails.setdefault(".".join(parts[start:]), set()).update(names)
    rooms = {module.name.split(".")[1] for module in modules() if module.is_package and "." in module.name}
    foreign = {node.name for module in modules() for node in module.nodes if isinstance(node, ast.ClassDef)
               and _bases(node) - _class_names().keys() - {"object", "Protocol", "Generic"}}  # fmt: skip
    wrong = []
    for module, node, text in _docstrings():
        for reference in re.findall(r"`(?:evolvent\.)?([A-Za-z_]\w*(?:\.\w+)+)(?:\(\))?`", text):
            before, _, name = reference.rpartition(".")
            owner = before.rpartition(".")[2]
            if reference in tails or name in tails.get(before, ()) or name in _FILES:
                continue
            if owner in _class_names() and owner not in foreign:
                known = name in _class_names()[owner]
            else:
                known = reference.partition(".")[0] not in rooms or "." not in before
            if not known:
                wrong.append(f"{module.where}:{getattr(node, 'lineno', 1)}: {reference}")
    assert not wrong, "\n".join(wrong)


_FILES = ("json", "jsonl", "toml", "txt", "parquet", "py", "fbs")


def test_lines_of_a_docstring_are_full():
    """No word or two alone on a line within a paragraph, as a renaming leaves them."""
    wrong = []
    for module, node, text in _docstrings():
        lines = text.splitlines()
        for before, line, after in zip(lines, lines[1:], lines[2:], strict=False):
            indents = {len(each) - len(each.lstrip()) for each in (line, after)}
            is_inside = len(indents) == 1 and line.strip() and after.strip() and len(before) > 90
            is_code = line.lstrip().startswith("...") or re.match(r"\s*([-*>`\d]|\.\.\.)|.*[:=]", after)
            if is_inside and len(line.split()) <= 2 and not is_code:
                wrong.append(f"{module.where}:{getattr(node, 'lineno', 1)}: {line.strip()}")
    assert not wrong, "\n".join(wrong)
