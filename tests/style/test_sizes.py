"""Limits of size: what does not fit on a page or two is taken apart."""

from __future__ import annotations

import ast

import pytest
from house import Function, Module, functions, is_public, modules, programs, read


def _lines(module: Module) -> int:
    return module.text.count("\n")


def body_lines(node: Function) -> int:
    """Lines of a function without its docstring."""
    end = node.end_lineno or node.lineno
    doc = node.body[0] if ast.get_docstring(node, clean=False) is not None else None
    return end - node.lineno + 1 - ((doc.end_lineno or doc.lineno) - doc.lineno + 1 if doc else 0)


def has_reason(module: Module, node: Function) -> bool:
    """A comment `# long: why` on the line of the `def` or the one above it."""
    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    lines = module.text.splitlines()
    near = lines[max(0, first - 2) : node.lineno]
    return any(len(line.partition("# long: ")[2].split()) >= 3 for line in near)


def arguments(node: Function) -> tuple[int, int]:
    """(all, positional) arguments without self or cls."""
    positional = [arg.arg for arg in (*node.args.posonlyargs, *node.args.args)]
    if positional[:1] in (["self"], ["cls"]):
        positional = positional[1:]
    return len(positional) + len(node.args.kwonlyargs), len(positional)


@pytest.mark.parametrize(("folder", "limit"), [("", 400), ("methods", 200)])
def test_files(folder, limit):
    chosen = [m for m in modules() if not folder or f"/{folder}/" in m.path.as_posix()]
    assert chosen
    assert not {m.where: _lines(m) for m in chosen if _lines(m) > limit}


def test_examples_and_benchmarks():
    assert programs("examples")
    assert not {m.where: _lines(m) for m in programs("examples") if _lines(m) > 60}
    assert not {m.where: _lines(m) for m in programs("benchmarks") if _lines(m) > 400}


def test_functions():
    long = []
    for module in (*modules(), *programs("benchmarks"), *programs("examples")):
        for name, node in functions(module):
            limit = 60 if has_reason(module, node) else 50
            if body_lines(node) > limit:
                long.append(f"{module.where}:{node.lineno}: {name} has {body_lines(node)} lines, at most {limit}")
    assert not long, "\n".join(long)


def test_arguments():
    wrong = []
    for module in modules():
        for name, node in functions(module):
            every, positional = arguments(node)
            if every > 8:
                wrong.append(f"{module.where}:{node.lineno}: {name} has {every} arguments, at most 8")
            if positional > 3 and is_public(name):
                wrong.append(f"{module.where}:{node.lineno}: {name} has {positional} positional arguments, at most 3")
    assert not wrong, "\n".join(wrong)


def test_no_catch_all_files():
    names = {"utils", "util", "helpers", "helper", "misc", "common", "shared"}
    assert not [m.where for m in modules() if m.path.stem in names or m.path.parent.name in names]


def test_the_measures(tmp_path):
    path = tmp_path / "sample.py"
    path.write_text(
        '# long: it is a table\ndef f(a, b, *, c):\n    """Doc\n    two."""\n    return a\n', encoding="utf-8"
    )
    module = read(path)
    ((_, node),) = functions(module)
    assert (body_lines(node), arguments(node), has_reason(module, node)) == (2, (3, 2), True)


TRAINING = ("learner", "packing", "checkpoint")  # beside learn/optim and learn/parallel


def code_lines(module: Module) -> int:
    """Lines without docstrings, comments and blank ones."""
    prose: set[int] = set()
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Module | ast.ClassDef | Function) and ast.get_docstring(node, clean=False) is not None:
            doc = node.body[0]
            prose.update(range(doc.lineno, (doc.end_lineno or doc.lineno) + 1))
    lines = enumerate(module.text.splitlines(), 1)
    return sum(bool(line.strip()) and not line.strip().startswith("#") and at not in prose for at, line in lines)


def test_the_training_room_stays_small():
    room = [m for m in modules() if m.name.startswith(("evolvent.learn.optim", "evolvent.learn.parallel"))]
    room += [m for m in modules() if m.name in {f"evolvent.learn.{name}" for name in TRAINING}]
    assert len(room) > 20
    assert sum(map(code_lines, room)) <= 2500
