"""What the source may not hold: text that is run, pickles, shells, broad excepts, asserts, prints, global state."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

import pytest
from house import SRC, Module, boundary_lines, modules, programs, read

PICKLES = {"pickle", "cPickle", "_pickle", "dill", "joblib", "cloudpickle", "marshal", "shelve", "yaml"}
MUTATORS = {"append", "add", "update", "pop", "setdefault", "clear", "extend", "insert", "remove", "popitem", "discard"}
Finder = Callable[[Module], Iterator[tuple[int, str]]]


def _dotted(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def _calls(module: Module) -> Iterator[ast.Call]:
    return (node for node in module.nodes if isinstance(node, ast.Call))


def prints(module: Module) -> Iterator[tuple[int, str]]:
    if "cli" not in module.name.split("."):
        yield from ((c.lineno, "print") for c in _calls(module) if _dotted(c.func) in ("print", "sys.stdout.write"))


def runs_text(module: Module) -> Iterator[tuple[int, str]]:
    names = {"eval", "exec", "compile", "__import__", "sympify", "sympy.sympify", "parse_expr"}
    yield from ((c.lineno, _dotted(c.func)) for c in _calls(module) if _dotted(c.func) in names)


def pickles(module: Module) -> Iterator[tuple[int, str]]:
    for node in module.nodes:
        if isinstance(node, ast.Import):
            yield from ((node.lineno, a.name) for a in node.names if a.name.split(".")[0] in PICKLES)
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in PICKLES:
            yield node.lineno, str(node.module)
    for call in _calls(module):
        if _dotted(call.func) in ("torch.load", "torch.save"):
            yield call.lineno, _dotted(call.func)


def unsafe_flags(module: Module) -> Iterator[tuple[int, str]]:
    for call in _calls(module):
        for word in call.keywords:
            on = not (isinstance(word.value, ast.Constant) and word.value.value is False)
            if word.arg in ("shell", "trust_remote_code", "allow_pickle") and on:
                yield call.lineno, word.arg
        if _dotted(call.func) in ("os.system", "os.popen", "subprocess.getoutput"):
            yield call.lineno, _dotted(call.func)


def broad_excepts(module: Module) -> Iterator[tuple[int, str]]:
    allowed = boundary_lines() if module.path == SRC / "errors.py" else range(0)
    broad = {"Exception", "BaseException"}
    for node in module.nodes:
        if isinstance(node, ast.ExceptHandler) and node.lineno not in allowed:
            caught = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
            if any(kind is None or _dotted(kind) in broad for kind in caught):
                yield node.lineno, "broad except"
        named = isinstance(node, ast.Call) and _dotted(node.func).endswith("suppress")
        if named and any(_dotted(argument) in broad for argument in node.args):
            yield node.lineno, "suppress(Exception)"


def asserts(module: Module) -> Iterator[tuple[int, str]]:
    yield from ((node.lineno, "assert") for node in module.nodes if isinstance(node, ast.Assert))


def global_state(module: Module) -> Iterator[tuple[int, str]]:
    """`global`, and functions that change a container made at module level."""
    top = {
        target.id
        for node in module.tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    top |= {n.target.id for n in module.tree.body if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)}
    for function in (n for n in module.nodes if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)):
        changed: list[tuple[int, str]] = []
        local: set[str] = set()
        for node in ast.walk(function):
            if isinstance(node, ast.Global):
                yield node.lineno, "global"
            elif isinstance(node, ast.arg):
                local.add(node.arg)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                local.add(node.id)
            elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del):
                changed += [(node.lineno, node.value.id)] if isinstance(node.value, ast.Name) else []
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in MUTATORS:
                changed += [(node.lineno, node.func.value.id)] if isinstance(node.func.value, ast.Name) else []
        yield from ((line, f"changes {name}") for line, name in changed if name in top - local)


RULES: dict[Finder, str] = {
    prints: "print('x')",
    runs_text: "eval(text)",
    pickles: "import torch\ntorch.load(path)",
    unsafe_flags: "import subprocess\nsubprocess.run(x, shell=True)",
    broad_excepts: "try:\n    f()\nexcept (ValueError, Exception):\n    pass",
    asserts: "assert x > 0",
    global_state: "CACHE = {}\ndef f(x):\n    CACHE[x] = 1",
}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_rule_holds(rule):
    found = [f"{module.where}:{line}: {what}" for module in modules() for line, what in rule(module)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_rule_catches(rule, tmp_path):
    path = tmp_path / "sample.py"
    path.write_text(RULES[rule] + "\n", encoding="utf-8")
    assert list(rule(read(path)))


def test_programs_are_product_too():
    rules = (runs_text, pickles, unsafe_flags, broad_excepts)
    every = (*programs("benchmarks"), *programs("examples"))
    found = [f"{module.where}:{line}: {what}" for rule in rules for module in every for line, what in rule(module)]
    assert not found, "\n".join(found)


def _has_value(node: ast.AST) -> bool:
    """Whether an argument of a raised error holds something known only when it runs."""
    if isinstance(node, ast.Constant):
        return False
    if isinstance(node, ast.JoinedStr):
        return any(isinstance(part, ast.FormattedValue) for part in node.values)
    if isinstance(node, ast.BinOp):
        return _has_value(node.left) or _has_value(node.right)
    if isinstance(node, ast.List | ast.Tuple):
        return any(map(_has_value, node.elts))
    if isinstance(node, ast.Call) and _dotted(node.func) == "Problem":
        return any(map(_has_value, node.args))
    return True


def raised(module: Module) -> Iterator[tuple[ast.Call, bool]]:
    for node in module.nodes:
        call = node.exc if isinstance(node, ast.Raise) else None
        if isinstance(call, ast.Call) and _dotted(call.func) not in ("SystemExit", "StopIteration"):
            yield call, any(map(_has_value, [*call.args, *(word.value for word in call.keywords)]))


def test_messages_carry_values():
    every = [(f"{module.where}:{call.lineno}", good) for module in modules() for call, good in raised(module)]
    bare = [where for where, good in every if not good]
    assert every
    assert len(bare) <= 0.10 * len(every), f"{len(bare)} of {len(every)} raised messages have no value:\n{bare}"
