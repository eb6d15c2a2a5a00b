"""The file system: directories and files with text, and a current directory."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from evolvent.errors import InvalidAction, SampleInvalid
from evolvent.trajectory import Json
from evolvent.worlds.bfcl.apis.api import Api, operation, refusal, table
from evolvent.worlds.bfcl.apis.padding import SHORT_FILES, Padding

__all__ = ["Files"]

_FORBIDDEN = set('|/\\?%*:"><')
_COUNTED: Mapping[str, tuple[str, Callable[[str], Sequence[str]]]] = {
    "l": ("lines", str.splitlines),
    "w": ("words", str.split),
    "c": ("characters", list),
}
_NODES, _LEVELS = 10_000, 100  # a tree may hold; a directory copied into itself doubles with every call
_UNITS = ("B", "KB", "MB", "GB", "TB", "PB")

Node = dict[str, Any]
"""A file `{"type": "file", "content": text}` or a directory `{"type": "directory", "contents": {name: node}}`."""


def _is_directory(node: Node | None) -> bool:
    return node is not None and node["type"] == "directory"


def _loaded(given: Mapping[str, Any], padding: Padding | None) -> Node:
    """The contents of a directory of the item, with what long context adds."""
    contents: dict[str, Node] = {}
    for name, node in given.items():
        if not isinstance(node, Mapping) or node.get("type") not in ("file", "directory"):
            raise SampleInvalid(f"{name!r} is neither a file nor a directory", value=node)
        if node["type"] == "directory":
            contents[name] = _loaded(node.get("contents", {}), padding)
        else:
            longer = padding.text if padding and name not in SHORT_FILES else ""
            contents[name] = {"type": "file", "content": f"{node.get('content', '')}{longer}"}
    if padding and not any(map(_is_directory, contents.values())):
        contents |= {name: {"type": "file", "content": ""} for name in padding.files}
    return {"type": "directory", "contents": contents}


def _below(directory: Node, path: str) -> Iterator[tuple[str, str]]:
    """(path, name) of everything below a directory, parents first."""
    for name, node in directory["contents"].items():
        yield f"{path}/{name}", name
        if _is_directory(node):
            yield from _below(node, f"{path}/{name}")


def _measured(node: Node) -> tuple[int, int]:
    """(nodes, levels) of a tree, itself included."""
    below = [_measured(one) for one in node["contents"].values()] if _is_directory(node) else []
    return 1 + sum(nodes for nodes, _ in below), 1 + max((levels for _, levels in below), default=0)


def _size(node: Node) -> int:
    """Bytes of all text in a node."""
    if _is_directory(node):
        return sum(map(_size, node["contents"].values()))
    return len(node["content"].encode())


class Files(Api):
    """`GorillaFileSystem`: `state["root"]` is the name of the root and its contents; where one stands is not compared.

    A copy of a directory is a copy all the way down, and what is moved knows where it stands; in the leaderboard's
    class, copies share their subdirectories, and `pwd` below something that was renamed shows the old name.
    """

    wire = "GorillaFileSystem"
    document = "gorilla_file_system.json"

    def __init__(self, config: Mapping[str, Any], padding: Padding | None = None) -> None:
        super().__init__(config, padding)
        roots = config.get("root", {"": {"type": "directory", "contents": {}}})
        if not isinstance(roots, Mapping) or not roots:
            raise SampleInvalid("a file system without a root", value=roots, expected="a name and its contents")
        name, root = next(iter(roots.items()))
        self.state = {"name": name, "root": _loaded(root.get("contents", {}), padding)}
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
        """The content of a file of the current directory, None where there is none."""
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
                return refusal("the root has no parent directory")
            self._path = self._path[:-1]
            return {}
        if folder == "/":
            self._path = ()
        elif folder != ".":
            if "/" in folder:
                return refusal(f"{folder} is a path: cd goes one level at a time")
            if not _is_directory(self._contents.get(folder)):
                return refusal(f"there is no directory {folder} here")
            self._path = (*self._path, folder)
        return {"current_working_directory": self._path[-1] if self._path else self.state["name"]}

    def _mkdir(self, dir_name: Any) -> Json:
        return self._made(dir_name, {"type": "directory", "contents": {}})

    def _touch(self, file_name: Any) -> Json:
        return self._made(file_name, {"type": "file", "content": ""})

    def _made(self, name: Any, node: Node) -> Json:
        if _FORBIDDEN & set(name):
            return refusal(f"{name!r} is no name: it has a mark that names cannot have")
        if name in self._contents:
            return refusal(f"{name} exists already")
        self._grown(node)
        self._contents[name] = node
        return None

    def _grown(self, node: Node) -> None:
        """InvalidAction where the tree would be too large with one more node below the current directory."""
        nodes, levels = _measured(node)
        if _measured(self.state["root"])[0] + nodes > _NODES or len(self._path) + levels + 2 > _LEVELS:
            raise InvalidAction("the file system is full", value=nodes, expected=f"{_NODES} nodes, {_LEVELS} levels")

    def _echo(self, content: Any, file_name: Any = None) -> Json:
        if not file_name:
            return {"terminal_output": content}
        if _FORBIDDEN & set(file_name):
            return refusal(f"{file_name!r} is no name: it has a mark that names cannot have")
        if self._text(file_name) is None:
            return refusal(f"there is no file {file_name} here to write to")
        # Only text is a content: everything that reads files counts on it.
        self._contents[file_name]["content"] = content if isinstance(content, str) else str(content)
        return None

    def _cat(self, file_name: Any) -> Json:
        text = self._text(file_name)
        return refusal(f"there is no file {file_name} here") if text is None else {"file_content": text}

    def _find(self, path: Any = ".", name: Any = None) -> Json:
        node: Node | None = self.state["root"] if path.startswith("/") else self._here
        for part in path.strip("/").split("/"):
            if part not in ("", "."):
                node = node["contents"].get(part) if node is not None and _is_directory(node) else None
        if node is None or not _is_directory(node):
            return refusal(f"there is no directory {path}")
        found = _below(node, path.rstrip("/"))
        return {"matches": [where for where, own in found if name is None or name in own]}

    def _wc(self, file_name: Any, mode: Any = "l") -> Json:
        text = self._text(file_name)
        if mode not in _COUNTED:
            return refusal(f"{mode!r} is no mode of wc")
        if text is None:
            return refusal(f"there is no file {file_name} here")
        kind, pieces = _COUNTED[mode]
        return {"count": len(pieces(text)), "type": kind}

    def _sort(self, file_name: Any) -> Json:
        text = self._text(file_name)
        if text is None:
            return refusal(f"there is no file {file_name} here")
        return {"sorted_content": "\n".join(sorted(text.splitlines()))}

    def _grep(self, file_name: Any, pattern: Any) -> Json:
        text = self._text(file_name)
        if text is None:
            return refusal(f"there is no file {file_name} here")
        return {"matching_lines": [line for line in text.splitlines() if pattern in line]}

    def _tail(self, file_name: Any, lines: Any = 10) -> Json:
        text = self._text(file_name)
        if text is None:
            return refusal(f"there is no file {file_name} here")
        every = text.splitlines()
        kept = max(0, min(lines, len(every)))
        return {"last_lines": "\n".join(every[len(every) - kept :])}

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
            return refusal(f"there is no file {file_name1} or no file {file_name2} here")
        # Line by line up to the end of the shorter one, as the gold answers quote it.
        pairs = zip(first.splitlines(), second.splitlines(), strict=False)
        return {"diff_lines": "\n".join(f"- {one}\n+ {other}" for one, other in pairs if one != other)}

    def _mv(self, source: Any, destination: Any) -> Json:
        return self._placed(source, destination, moved=True)

    def _cp(self, source: Any, destination: Any) -> Json:
        return self._placed(source, destination, moved=False)

    def _placed(self, source: Any, destination: Any, *, moved: bool) -> Json:
        node, target = self._contents.get(source), self._contents.get(destination)
        if node is None:
            return refusal(f"there is no {source} here")
        if "/" in destination:
            return refusal(f"{destination} is a path: only a name of the current directory can be given")
        if target is not None and not _is_directory(target):
            return refusal(f"{destination} exists already and is a file")
        if target is node and moved:
            return refusal(f"{source} cannot be moved into itself")
        where = self._contents if target is None else target["contents"]
        name = destination if target is None else source
        if name in where:
            raise InvalidAction(f"{destination} has {source} already")
        self._grown(node)
        # Copied before it is put in place: a directory may be copied into itself.
        where[name] = copy.deepcopy(node)
        if moved:
            del self._contents[source]
        shown = destination if target is None else f"{destination}/{source}"
        return {"result": f"{source} is {'moved' if moved else 'copied'} to {shown}"}

    def _rm(self, file_name: Any) -> Json:
        if file_name not in self._contents:
            return refusal(f"there is no {file_name} here")
        del self._contents[file_name]
        return {"result": f"{file_name} is removed"}

    def _rmdir(self, dir_name: Any) -> Json:
        node = self._contents.get(dir_name)
        if node is None or not _is_directory(node):
            return refusal(f"there is no directory {dir_name} here")
        if node["contents"]:
            return refusal(f"the directory {dir_name} is not empty")
        del self._contents[dir_name]
        return {"result": f"{dir_name} is removed"}

    operations = table(
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
