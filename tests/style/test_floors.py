"""Rooms import from the floors below them only, and no modules import each other in a circle."""

from __future__ import annotations

from house import imports, modules, room_of, rooms


def _within() -> list[object]:
    return [module for module in modules() if module.name != "evolvent"]


def test_the_table_is_read():
    assert rooms()["errors"][0] == 1 and rooms()["cli"][0] == 10
    assert rooms()["worlds"] == rooms()["models"], "rooms of one floor stand in one row"
    assert len({floor for floor, _ in rooms().values()}) == 10


def test_every_module_has_a_room():
    homeless = sorted({room_of(module.name) for module in _within()} - set(rooms()))
    assert not homeless, f"not in the table of docs/design.md: {homeless}"


def test_imports_go_down():
    wrong = []
    for module in _within():
        floor, room = rooms()[room_of(module.name)]
        for target, line in imports(module):
            if target.startswith("evolvent:"):
                if target != "evolvent:__version__":
                    wrong.append(f"{module.where}:{line}: imports from the package itself: {target}")
                continue
            target_floor, target_room = rooms()[room_of(target)]
            if target_room != room and target_floor >= floor:
                wrong.append(f"{module.where}:{line}: floor {floor} imports {target} of floor {target_floor}")
    assert not wrong, "\n".join(wrong)


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Strongly connected parts of more than one node (Kosaraju), and nodes that point to themselves."""
    order: list[str] = []
    seen: set[str] = set()

    def visit(node: str, edges: dict[str, set[str]], out: list[str]) -> None:
        stack = [(node, iter(sorted(edges.get(node, ()))))]
        seen.add(node)
        while stack:
            here, rest = stack[-1]
            child = next((child for child in rest if child not in seen), None)
            if child is None:
                out.append(here)
                stack.pop()
            else:
                seen.add(child)
                stack.append((child, iter(sorted(edges.get(child, ())))))

    for node in sorted(graph):
        if node not in seen:
            visit(node, graph, order)
    reverse: dict[str, set[str]] = {}
    for node, targets in graph.items():
        for target in targets:
            reverse.setdefault(target, set()).add(node)
    seen.clear()
    parts = []
    for node in reversed(order):
        if node not in seen:
            part: list[str] = []
            visit(node, reverse, part)
            if len(part) > 1 or node in graph.get(node, ()):
                parts.append(sorted(part))
    return parts


def test_circles_are_found():
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [["a", "b", "c"]]
    assert circles({"a": {"b"}, "b": {"c"}}) == []
    assert circles({"a": {"a"}}) == [["a"]]


def test_no_circles():
    graph = {module.name: {target for target, _ in imports(module) if ":" not in target} for module in _within()}
    assert circles(graph) == []


def test_no_catch_all_files():
    names = {"utils", "util", "helpers", "helper", "misc", "common", "shared"}
    assert not [m.where for m in modules() if m.path.stem in names or m.path.parent.name in names]
