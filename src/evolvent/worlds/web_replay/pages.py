"""Pages: reading HTML, cutting it down to what surrounds some elements, and writing that as text.

The text of a page is Mind2Web's (arXiv 2306.06070): candidates with their ancestors, their descendants and the siblings
next to them; ids on candidates only; attributes folded into one list of words.

HTML is read by two regular expressions of linear time. The pages of the data are written by a serialiser and need none
of the repairs of a browser, while `html.parser` takes time in the square of the length on tags that never end (10 s for
12 kB of `<a `, Python 3.11). Nothing is expanded but character references.
"""

from __future__ import annotations

import html
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from evolvent.errors import SampleInvalid

__all__ = ["ATTRIBUTES", "Element", "parse_page", "prune", "render"]

MOST_CHARACTERS, MOST_ELEMENTS, MOST_DEPTH = 20_000_000, 200_000, 500
ATTRIBUTES: tuple[str, ...] = (
    "role",
    "aria_role",
    "type",
    "alt",
    "aria_description",
    "aria_label",
    "label",
    "title",
    "name",
    "text_value",
    "value",
    "placeholder",
    "input_checked",
    "input_value",
    "option_selected",
    "class",
)
"""The attributes that are told, in this order; `aria-label` counts as `aria_label`."""
_SILENT = frozenset({"hidden", "none", "presentation", "null", "undefined"})
_EACH, _ALL, _LONG, _TEXT = 5, 20, 15, 20  # words of an attribute, of all of them, letters of a word, words of a text
_ID = "backend_node_id"
_VOID = frozenset(
    ["area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "param", "source", "track", "wbr"]
)
_TAG = re.compile(
    r"<!--(?:.*?-->|.*\Z)|<[!?][^<>]*>|<(?P<end>/)?(?P<tag>[a-zA-Z][^\s<>/]*+)"
    r"(?P<attributes>(?:[^<>\"']|\"[^<\"]*+\"|'[^<']*+')*+)>",
    re.DOTALL,
)
_ATTRIBUTE = re.compile(r"([^\s=/\"'<>]++)(?:\s*+=\s*+(?:\"([^\"]*)\"|'([^']*)'|([^\s\"'<>]++)))?")


@dataclass(eq=False, slots=True)
class Element:
    """An element of a page, or a piece of text in it.

    Args:
        tag: the tag in lower case; "" for a text.
        attributes: by name, in lower case.
        text: of a text, with single spaces.
        children: elements and texts in order.
        parent: the element that it is in; None at the top.
        id: the node's id; after `prune` only candidates have one.
    """

    tag: str
    attributes: Mapping[str, str] = field(default_factory=dict)
    text: str = ""
    children: list[Element] = field(default_factory=list)
    parent: Element | None = None
    id: str = ""

    def walk(self) -> Iterator[Element]:
        """The element and all that is in it, each before what is in it."""
        waiting = [self]
        while waiting:
            one = waiting.pop()
            yield one
            waiting += reversed(one.children)

    def add(self, child: Element) -> Element:
        """Put an element at the end of this one; returns it."""
        child.parent = self
        self.children.append(child)
        return child


def parse_page(source: str) -> Element:
    """The elements of a page, in one element `page` that stands for all of it.

    An end tag without a start is left out; elements that are never closed end with those around them. The data wraps
    each text in an element `text`; only its words are kept.

    Raises:
        SampleInvalid: an empty page, or one of more than 20 million characters, 200,000 elements or a depth of 500.
    """
    if not source.strip() or len(source) > MOST_CHARACTERS:
        raise SampleInvalid("a page of no size that is read", value=len(source), expected=f"1 to {MOST_CHARACTERS}")
    page = Element("page")
    open_ones, known, count, at = [("", page)], Counter[str](), 0, 0
    for found in _TAG.finditer(source):
        inner = open_ones[-1][1]
        _add_text(inner, source[at : found.start()])
        at = found.end()
        tag = (found["tag"] or "").lower()
        if not tag:
            continue
        if found["end"]:
            while known[tag]:  # with all that is open in it
                ended, _ = open_ones.pop()
                known[ended] -= 1
                if ended == tag:
                    break
            continue
        count += 1
        if tag != "text":
            attributes = _attributes(found["attributes"])
            inner = inner.add(Element(tag, attributes, id=attributes.get(_ID, "")))
        if tag not in _VOID and not found["attributes"].endswith("/"):
            open_ones.append((tag, inner))
            known[tag] += 1
        if count > MOST_ELEMENTS or len(open_ones) > MOST_DEPTH:
            raise SampleInvalid(
                "a page that is too large",
                value=(count, len(open_ones)),
                expected=f"{MOST_ELEMENTS} elements, a depth of {MOST_DEPTH}",
            )
    _add_text(open_ones[-1][1], source[at:])
    return page


def _add_text(parent: Element, source: str) -> None:
    words = " ".join(html.unescape(source).split())
    if words:
        parent.add(Element("", text=words))


def _attributes(source: str) -> dict[str, str]:
    """The first of each attribute; an attribute without value is empty."""
    found: dict[str, str] = {}
    for name, double, single, bare in _ATTRIBUTE.findall(source):
        found.setdefault(name.lower().replace("-", "_"), html.unescape(double or single or bare))
    return found


def prune(tree: Element, ids: Collection[str], *, depth: int = 5, descendants: int = 50, siblings: int = 3) -> Element:
    """A copy of the page with these elements and what surrounds them: ancestors, descendants and siblings.

    Of the copy only the given elements keep their ids. Elements of no words around at most one other element are
    dissolved, unless they are among the given ones.

    Args:
        ids: of the candidates; one that the page does not have is left out.
        depth, descendants: how deep in a candidate elements are kept, and how many of them.
        siblings: how many elements on each side of a candidate.
    """
    wanted = frozenset(ids)
    kept: set[int] = {id(tree)}
    for one in tree.walk():
        if one.id and one.id in wanted:
            kept.add(id(one))
            kept.update(map(id, _above(one)))
            kept.update(map(id, _below(one, depth, most=descendants)))
            kept.update(map(id, _beside(one, siblings)))
    return _copied(tree, kept, wanted) if len(kept) > 1 else Element(tree.tag)


def _above(one: Element) -> Iterator[Element]:
    while one.parent is not None:
        one = one.parent
        yield one


def _below(one: Element, depth: int, *, most: int) -> list[Element]:
    """Elements inside, the first of a page first."""
    found: list[Element] = []
    waiting = [(child, 1) for child in reversed(one.children) if child.tag and depth > 0]
    while waiting and len(found) < most:
        child, level = waiting.pop()
        found.append(child)
        if level < depth:
            waiting += [(inner, level + 1) for inner in reversed(child.children) if inner.tag]
    return found


def _beside(one: Element, siblings: int) -> list[Element]:
    every = [] if one.parent is None else [child for child in one.parent.children if child.tag]
    at = next((place for place, child in enumerate(every) if child is one), 0)
    return every[max(0, at - siblings) : at + siblings + 1]


def _copied(tree: Element, kept: set[int], wanted: frozenset[str]) -> Element:
    """What is kept, with texts of kept elements; from the inside out, so that no depth is too deep."""
    copies: dict[int, list[Element]] = {}
    for one in reversed([one for one in tree.walk() if id(one) in kept]):
        children: list[Element] = []
        for child in one.children:
            children += [Element("", text=child.text)] if not child.tag else copies.get(id(child), [])
        is_candidate = one.id in wanted and bool(one.id)
        idle = one is not tree and not is_candidate and not _words(one)
        if idle and len(children) <= 1 and all(child.tag for child in children):
            copies[id(one)] = children
            continue
        copy = Element(one.tag, one.attributes, id=one.id if is_candidate else "")
        for child in children:
            copy.add(child)
        copies[id(one)] = [copy]
    return copies[id(tree)][0]


def _words(one: Element) -> list[str]:
    """The words of an element's attributes: 5 of each, 20 in all, nothing twice, no addresses and no long words."""
    told: dict[str, None] = {}
    for name in ATTRIBUTES:
        value = one.attributes.get(name, "").lower()
        if not value or value in _SILENT or value.startswith("http"):
            continue
        words = [word for word in value.split() if len(word) < _LONG][:_EACH]
        if words:
            told.setdefault(" ".join(words))
    return " ".join(told).split()[:_ALL]


def render(tree: Element) -> str:
    """A page as text on one line: `<button id=7 submit>find a car</button>`; texts are cut to 20 words."""
    parts: list[str] = []
    waiting: list[Element | str] = [*reversed(tree.children)] if tree.tag == "page" else [tree]
    while waiting:
        one = waiting.pop()
        if isinstance(one, str):
            parts.append(one)
        elif not one.tag:
            parts.append(" ".join(one.text.split()[:_TEXT]))
        else:
            inside = [one.tag, *([f"id={one.id}"] if one.id else []), *_words(one)]
            parts.append(f"<{' '.join(inside)}>")
            waiting.append(f"</{one.tag}>")
            waiting += reversed(one.children)
    return " ".join(parts)
