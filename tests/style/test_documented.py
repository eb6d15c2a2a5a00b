"""Public names are declared and documented; public functions and configuration fields say what they are."""

from __future__ import annotations

import ast

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
