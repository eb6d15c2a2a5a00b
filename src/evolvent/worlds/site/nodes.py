"""Pages as accessibility trees: nodes with roles and names, the links that they follow and the commands that they run.

[4] RootWebArea 'Projects' focused: True
    [12] link 'Issues'
    [63] textbox 'Search projects' required: False
    [97] StaticText '13 open issues'
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple
from urllib.parse import urlencode

from evolvent.worlds.site.records import Change

__all__ = ["WINDOW", "Builder", "Command", "Node", "Outcome", "Page", "build_url"]

WINDOW = 40
"""Most nodes in view: a page is scrolled by as many, and the root is always shown."""
Command = tuple[str | int, ...]


class Node(NamedTuple):
    """A node of a page.

    Attributes:
        role, name: as the accessibility tree has them.
        depth: its depth in the tree; the root has 0.
        properties: further properties as text, for example `required: False`.
        href: the address that a click follows.
        command: the command that a click, or Enter in a field, runs.
        field: the name of a field that takes text, or the group of a radio button.
        key: by which evaluators and experts find nodes with the same meaning.
    """

    role: str
    name: str
    depth: int = 1
    properties: str = ""
    href: str = ""
    command: Command = ()
    field: str = ""
    key: str = ""


class Outcome(NamedTuple):
    """The outcome of a command.

    Attributes:
        url: the address to load; "" loads the same page again.
        change: the change that it makes; () for none.
        notice: a message on the loaded page.
    """

    url: str = ""
    change: Change = ()
    notice: str = ""


@dataclass(frozen=True)
class Page:
    """A page: its address, title and nodes; the first node is the root."""

    url: str
    title: str
    nodes: tuple[Node, ...]

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        """Returns the id of each node, counted from that of the root; a field keeps one id for its text."""
        offsets, offset = [], 0
        for node in self.nodes:
            offsets.append(offset)
            offset += 2 if node.field else 1
        return tuple(offsets)

    @cached_property
    def by_offset(self) -> dict[int, int]:
        """Returns the position of the node with each offset."""
        return {offset: position for position, offset in enumerate(self.offsets)}

    @property
    def num_ids(self) -> int:
        """Returns how many ids the page takes."""
        return self.offsets[-1] + 2

    @cached_property
    def heads(self) -> tuple[str, ...]:
        """Returns the line of each node without indent and id."""
        return tuple(
            f"{node.role} {node.name!r}{' ' if node.properties else ''}{node.properties}" for node in self.nodes
        )

    def get_window(self, scroll: int) -> range:
        """Returns the positions of the nodes in view after so many scrolls, without the root."""
        return range(1 + WINDOW * scroll, min(len(self.nodes), 1 + WINDOW * (scroll + 1)))

    @property
    def max_scroll(self) -> int:
        """Returns how often the page can be scrolled down."""
        return max(0, (len(self.nodes) - 2) // WINDOW)

    def list_names(self, key: str) -> list[str]:
        """Returns the names of all nodes with a key; of all nodes for ""."""
        return [node.name for node in self.nodes if not key or node.key == key]


def build_url(host: str, path: str = "", **query: str | int) -> str:
    """Returns an address; parts of the query that are empty are left out.

    >>> build_url("market.com", "search", q="red hat", p="")
    'http://market.com/search?q=red+hat'
    """
    pairs = {name: value for name, value in query.items() if value != ""}
    return f"http://{host}{'/' if path else ''}{path}{'?' if pairs else ''}{urlencode(pairs)}"


class Builder:
    """Collects the nodes of a page.

    Args:
        url: address of the page.
        title: its title.
    """

    def __init__(self, url: str, title: str) -> None:
        self._url, self._title = url, title
        self._nodes = [Node("RootWebArea", title, 0)]

    def text(self, name: str, *, key: str = "", depth: int = 1) -> None:
        """Adds a text."""
        self._nodes.append(Node("StaticText", name, depth, key=key))

    def heading(self, name: str, *, key: str = "") -> None:
        """Adds a heading."""
        self._nodes.append(Node("heading", name, key=key))

    def link(self, name: str, href: str, *, key: str = "", depth: int = 1) -> None:
        """Adds a link."""
        self._nodes.append(Node("link", name, depth, href=href, key=key))

    def button(self, name: str, command: Command, *, depth: int = 1) -> None:
        """Adds a button that runs a command with the fields of the page."""
        self._nodes.append(Node("button", name, depth, command=command))

    def textbox(self, name: str, field: str, command: Command = ()) -> None:
        """Adds a text field; Enter in it runs the command where there is one."""
        self._nodes.append(Node("textbox", name, properties="required: False", command=command, field=field))

    def combobox(self, name: str, field: str, options: Iterable[str]) -> None:
        """Adds a field that takes one of some options, which are listed below it."""
        properties = "autocomplete: list hasPopup: listbox required: False expanded: False"
        self._nodes.append(Node("combobox", name, properties=properties, field=field))
        self._nodes.append(Node("StaticText", f"Options: {', '.join(options)}", 2))

    def radio(self, name: str, field: str) -> None:
        """Adds a radio button of a group."""
        self._nodes.append(Node("radio", name, 2, field=field))

    def build(self) -> Page:
        """Returns the page."""
        return Page(self._url, self._title, tuple(self._nodes))
