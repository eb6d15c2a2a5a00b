"""The file system: directories and files with text, and a current directory."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from evolvent.errors import InvalidAction, SampleInvalid
from evolvent.trajectory import Json
from evolvent.worlds.bfcl.apis.api import Api, index_by_name, operation, refuse
from evolvent.worlds.bfcl.apis.padding import SHORT_FILES, Padding

__all__ = ["Files"]

_FORBIDDEN = set('|/\\?%*:"><')
_COUNT_MODES: Mapping[str, tuple[str, Callable[[str], Sequence[str]]]] = {
    "l": ("lines", str.splitlines),
    "w": ("words", str.split),
    "c": ("characters", list),
}
_MAX_NODES, _MAX_LEVELS = 10_000, 100  # a tree may hold; a directory copied into itself doubles with every call
_UNITS = ("B", "KB", "MB", "GB", "TB", "PB")

Node = dict[str, Any]
"""A file `{"type": "file", "content": text}` or a directory `{"type": "directory", "contents": {name: node}}`."""


def _is_directory(node: Node | None) -> bool:
    return node is not None and node["type"] == "directory"


def _load_directory(nodes: Mapping[str, Any], padding: Padding | None) -> Node:
    """Loads the contents of a directory of the item, with the padding of long context."""
    contents: dict[str, Node] = {}
    for name, node in nodes.items():
        if not isinstance(node, Mapping) or node.get("type") not in ("file", "directory"):
            raise SampleInvalid(f"{name!r} is neither a file nor a directory", value=node)
        if node["type"] == "directory":
            contents[name] = _load_directory(node.get("contents", {}), padding)
        else:
            padding_text = padding.text if padding and name not in SHORT_FILES else ""
            contents[name] = {"type": "file", "content": f"{node.get('content', '')}{padding_text}"}
    if padding and not any(map(_is_directory, contents.values())):
        contents |= {name: {"type": "file", "content": ""} for name in padding.files}
    return {"type": "directory", "contents": contents}


def _walk(directory: Node, path: str) -> Iterator[tuple[str, str]]:
    """Yields (path, name) of everything below a directory, parents first."""
    for name, node in directory["contents"].items():
        yield f"{path}/{name}", name
        if _is_directory(node):
            yield from _walk(node, f"{path}/{name}")


def _measure(node: Node) -> tuple[int, int]:
    """Counts the (nodes, levels) of a tree, itself included."""
    child_sizes = [_measure(child) for child in node["contents"].values()] if _is_directory(node) else []
    return 1 + sum(nodes for nodes, _ in child_sizes), 1 + max((levels for _, levels in child_sizes), default=0)


def _size(node: Node) -> int:
    """Returns the bytes of all text in a node."""
    if _is_directory(node):
        return sum(map(_size, node["contents"].values()))
    return len(node["content"].encode())


class Files(Api):
    """`GorillaFileSystem`: `state["root"]` is the name of the root and its contents; the current directory is not
    compared.

    A copy of a directory is a deep copy, and a moved node knows its new path; in the leaderboard's class, copies
    share their subdirectories, and `pwd` below a renamed directory shows the old name.
    """

    wire = "GorillaFileSystem"
    document = "gorilla_file_system.json"

    def __init__(self, config: Mapping[str, object], padding: Padding | None = None) -> None:
        super().__init__(config, padding)
        roots = config.get("root", {"": {"type": "directory", "contents": {}}})
        if not isinstance(roots, Mapping) or not roots:
            raise SampleInvalid("the file system has no root", value=roots, expected="a name and its contents")
        name, root = next(iter(roots.items()))
        self.state = {"name": name, "root": _load_directory(root.get("contents", {}), padding)}
        self._path: tuple[str, ...] = ()

    @property
    def _here(self) -> Node:
        node: Node = self.state["root"]
        for name in self._path:
            node = node["contents"][name]
        return node

    @property
    def _contents(self) -> dict[str, Node]:
        contents: dict[str, Node] = self._here["contents"]
        return contents

    def _text(self, name: str) -> str | None:
        """Returns the content of a file of the current directory, None where it does not exist."""
        node = self._contents.get(name)
        return None if node is None or _is_directory(node) else node["content"]

    def _pwd(self) -> Json:
        return {"current_working_directory": "/" + "/".join((self.state["name"], *self._path))}

    def _ls(self, a: Any = False) -> Json:
        return {"current_directory_content": [name for name in self._contents if a or not name.startswith(".")]}

    def _cd(self, folder: Any) -> Json:
        folder = folder.rstrip("/") or "/"
        if folder == "..":
            if not self._path:
                return refuse("the root has no parent directory")
            self._path = self._path[:-1]
            return {}
        if folder == "/":
            self._path = ()
        elif folder != ".":
            if "/" in folder:
                return refuse(f"{folder} is a path: cd goes one level at a time")
            if not _is_directory(self._contents.get(folder)):
                return refuse(f"there is no directory {folder} here")
            self._path = (*self._path, folder)
        return {"current_working_directory": self._path[-1] if self._path else self.state["name"]}

    def _mkdir(self, dir_name: Any) -> Json:
        return self._create(dir_name, {"type": "directory", "contents": {}})

    def _touch(self, file_name: Any) -> Json:
        return self._create(file_name, {"type": "file", "content": ""})

    def _create(self, name: Any, node: Node) -> Json:
        if _FORBIDDEN & set(name):
            return refuse(f"{name!r} is no name: it has a mark that names cannot have")
        if name in self._contents:
            return refuse(f"{name} exists already")
        self._check_capacity(node)
        self._contents[name] = node
        return None

    def _check_capacity(self, node: Node) -> None:
        """Raises InvalidAction where the tree would be too large with one more node below the current directory."""
        nodes, levels = _measure(node)
        if _measure(self.state["root"])[0] + nodes > _MAX_NODES or len(self._path) + levels + 2 > _MAX_LEVELS:
            raise InvalidAction(
                "the file system is full", value=nodes, expected=f"{_MAX_NODES} nodes, {_MAX_LEVELS} levels"
            )

    def _echo(self, content: Any, file_name: Any = None) -> Json:
        if not file_name:
            return {"terminal_output": content}
        if _FORBIDDEN & set(file_name):
            return refuse(f"{file_name!r} is no name: it has a mark that names cannot have")
        if self._text(file_name) is None:
            return refuse(f"there is no file {file_name} here to write to")
        # Only text is a content: everything that reads files counts on it.
        self._contents[file_name]["content"] = content if isinstance(content, str) else str(content)
        return None

    def _cat(self, file_name: Any) -> Json:
        text = self._text(file_name)
        return refuse(f"there is no file {file_name} here") if text is None else {"file_content": text}

    def _find(self, path: Any = ".", name: Any = None) -> Json:
        node: Node | None = self.state["root"] if path.startswith("/") else self._here
        for part in path.strip("/").split("/"):
            if part not in ("", "."):
                node = node["contents"].get(part) if node is not None and _is_directory(node) else None
        if node is None or not _is_directory(node):
            return refuse(f"there is no directory {path}")
        entries = _walk(node, path.rstrip("/"))
        return {"matches": [entry_path for entry_path, entry_name in entries if name is None or name in entry_name]}

    def _wc(self, file_name: Any, mode: Any = "l") -> Json:
        text = self._text(file_name)
        if mode not in _COUNT_MODES:
            return refuse(f"{mode!r} is no mode of wc")
        if text is None:
            return refuse(f"there is no file {file_name} here")
        kind, pieces = _COUNT_MODES[mode]
        return {"count": len(pieces(text)), "type": kind}

    def _sort(self, file_name: Any) -> Json:
        text = self._text(file_name)
        if text is None:
            return refuse(f"there is no file {file_name} here")
        return {"sorted_content": "\n".join(sorted(text.splitlines()))}

    def _grep(self, file_name: Any, pattern: Any) -> Json:
        text = self._text(file_name)
        if text is None:
            return refuse(f"there is no file {file_name} here")
        return {"matching_lines": [line for line in text.splitlines() if pattern in line]}

    def _tail(self, file_name: Any, lines: Any = 10) -> Json:
        text = self._text(file_name)
        if text is None:
            return refuse(f"there is no file {file_name} here")
        all_lines = text.splitlines()
        num_lines = max(0, min(lines, len(all_lines)))
        return {"last_lines": "\n".join(all_lines[len(all_lines) - num_lines :])}

    def _du(self, human_readable: Any = False) -> Json:
        size: float = _size(self._here)
        if not human_readable:
            return {"disk_usage": f"{size} bytes"}
        power = 0
        while size >= 1024 and power < len(_UNITS) - 1:
            size, power = size / 1024, power + 1
        return {"disk_usage": f"{size:.2f} {_UNITS[power]}"}

    def _diff(self, file_name1: Any, file_name2: Any) -> Json:
        first, second = self._text(file_name1), self._text(file_name2)
        if first is None or second is None:
            return refuse(f"there is no file {file_name1} or no file {file_name2} here")
        # Line by line up to the end of the shorter one, as the gold answers quote it.
        pairs = zip(first.splitlines(), second.splitlines(), strict=False)
        return {
            "diff_lines": "\n".join(
                f"- {first_line}\n+ {second_line}" for first_line, second_line in pairs if first_line != second_line
            )
        }

    def _mv(self, source: Any, destination: Any) -> Json:
        return self._place_node(source, destination, is_move=True)

    def _cp(self, source: Any, destination: Any) -> Json:
        return self._place_node(source, destination, is_move=False)

    def _place_node(self, source: Any, destination: Any, *, is_move: bool) -> Json:
        node, target = self._contents.get(source), self._contents.get(destination)
        if node is None:
            return refuse(f"there is no {source} here")
        if "/" in destination:
            return refuse(f"{destination} is a path: only a name of the current directory can be given")
        if target is not None and not _is_directory(target):
            return refuse(f"{destination} exists already and is a file")
        if target is node and is_move:
            return refuse(f"{source} cannot be moved into itself")
        target_contents = self._contents if target is None else target["contents"]
        name = destination if target is None else source
        if name in target_contents:
            raise InvalidAction(f"{destination} has {source} already")
        self._check_capacity(node)
        # Copied before it is put in place: a directory may be copied into itself.
        target_contents[name] = copy.deepcopy(node)
        if is_move:
            del self._contents[source]
        target_text = destination if target is None else f"{destination}/{source}"
        return {"result": f"{source} is {'moved' if is_move else 'copied'} to {target_text}"}

    def _rm(self, file_name: Any) -> Json:
        if file_name not in self._contents:
            return refuse(f"there is no {file_name} here")
        del self._contents[file_name]
        return {"result": f"{file_name} is removed"}

    def _rmdir(self, dir_name: Any) -> Json:
        node = self._contents.get(dir_name)
        if node is None or not _is_directory(node):
            return refuse(f"there is no directory {dir_name} here")
        if node["contents"]:
            return refuse(f"the directory {dir_name} is not empty")
        del self._contents[dir_name]
        return {"result": f"{dir_name} is removed"}

    operations = index_by_name(
        operation("cat(file_name)", _cat),
        operation("cd(folder)", _cd),
        operation("cp(source, destination)", _cp),
        operation("diff(file_name1, file_name2)", _diff),
        operation("du(human_readable=)", _du),
        operation("echo(content, file_name=)", _echo),
        operation("find(path=, name=)", _find),
        operation("grep(file_name, pattern)", _grep),
        operation("ls(a=)", _ls),
        operation("mkdir(dir_name)", _mkdir),
        operation("mv(source, destination)", _mv),
        operation("pwd()", _pwd),
        operation("rm(file_name)", _rm),
        operation("rmdir(dir_name)", _rmdir),
        operation("sort(file_name)", _sort),
        operation("tail(file_name, lines=)", _tail),
        operation("touch(file_name)", _touch),
        operation("wc(file_name, mode=)", _wc),
    )
