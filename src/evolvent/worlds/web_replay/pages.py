"""Pages: HTML parsing, pruning to the surroundings of some elements, and rendering as text.

The text of a page follows Mind2Web (arXiv 2306.06070): candidates with their ancestors, their descendants and
the adjacent siblings; ids on candidates only; attributes merged into one list of words.

HTML is parsed by two regular expressions of linear time. The pages of the data are written by a serializer and
need none of the repairs of a browser, while `html.parser` takes quadratic time on tags that never end (10 s for
12 kB of `<a `, Python 3.11). Nothing is expanded except character references.
"""

from __future__ import annotations

import html
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from evolvent.errors import SampleInvalid

__all__ = ["ATTRIBUTES", "Element", "parse_page", "prune", "render"]

MAX_CHARACTERS, MAX_ELEMENTS, MAX_DEPTH = 20_000_000, 200_000, 500
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
_SKIPPED_VALUES = frozenset({"hidden", "none", "presentation", "null", "undefined"})
_MAX_ATTRIBUTE_WORDS, _MAX_ELEMENT_WORDS, _MAX_WORD_LENGTH, _MAX_TEXT_WORDS = (
    5,
    20,
    15,
    20,
)  # words of an attribute, of all of them, letters of a word, words of a text
_ID = "backend_node_id"
_VOID_TAGS = frozenset(
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
        parent: the enclosing element; None at the top.
        id: the node's id; after `prune` only candidates have one.
    """

    tag: str
    attributes: Mapping[str, str] = field(default_factory=dict)
    text: str = ""
    children: list[Element] = field(default_factory=list)
    parent: Element | None = None
    id: str = ""

    def walk(self) -> Iterator[Element]:
        """Yields the element and all its descendants, each before its own descendants."""
        stack = [self]
        while stack:
            element = stack.pop()
            yield element
            stack += reversed(element.children)

    def add(self, child: Element) -> Element:
        """Appends an element to the children of this one, and returns it."""
        child.parent = self
        self.children.append(child)
        return child


def parse_page(source: str) -> Element:
    """Parses the elements of a page, inside one element `page` that represents the whole page.

    An end tag without a start is ignored; unclosed elements end with the elements around them. The data wraps
    each text in an element `text`; only its words are retained.

    Raises:
        SampleInvalid: an empty page, or one of more than 20 million characters, 200,000 elements or a depth of 500.
    """
    if not source.strip() or len(source) > MAX_CHARACTERS:
        raise SampleInvalid("a page of no size that is read", value=len(source), expected=f"1 to {MAX_CHARACTERS}")
    page = Element("page")
    open_elements, open_counts, count, offset = [("", page)], Counter[str](), 0, 0
    for tag_match in _TAG.finditer(source):
        current = open_elements[-1][1]
        _add_text(current, source[offset : tag_match.start()])
        offset = tag_match.end()
        tag = (tag_match["tag"] or "").lower()
        if not tag:
            continue
        if tag_match["end"]:
            while open_counts[tag]:  # with all that is open in it
                closed_tag, _ = open_elements.pop()
                open_counts[closed_tag] -= 1
                if closed_tag == tag:
                    break
            continue
        count += 1
        if tag != "text":
            attributes = _parse_attributes(tag_match["attributes"])
            current = current.add(Element(tag, attributes, id=attributes.get(_ID, "")))
        if tag not in _VOID_TAGS and not tag_match["attributes"].endswith("/"):
            open_elements.append((tag, current))
            open_counts[tag] += 1
        if count > MAX_ELEMENTS or len(open_elements) > MAX_DEPTH:
            raise SampleInvalid(
                "a page that is too large",
                value=(count, len(open_elements)),
                expected=f"{MAX_ELEMENTS} elements, a depth of {MAX_DEPTH}",
            )
    _add_text(open_elements[-1][1], source[offset:])
    return page


def _add_text(parent: Element, source: str) -> None:
    text = " ".join(html.unescape(source).split())
    if text:
        parent.add(Element("", text=text))


def _parse_attributes(source: str) -> dict[str, str]:
    """Parses the first occurrence of each attribute; an attribute without a value is empty."""
    attributes: dict[str, str] = {}
    for name, double, single, bare in _ATTRIBUTE.findall(source):
        attributes.setdefault(name.lower().replace("-", "_"), html.unescape(double or single or bare))
    return attributes


def prune(tree: Element, ids: Collection[str], *, depth: int = 5, descendants: int = 50, siblings: int = 3) -> Element:
    """Returns a copy of the page with the given elements and their surroundings: ancestors, descendants and
    siblings.

    Only the given elements retain their ids in the copy. Elements without words around at most one other element
    are dissolved, unless they are among the given ones.

    Args:
        ids: of the candidates; ids that the page does not have are ignored.
        depth, descendants: depth to which elements inside a candidate are retained, and their maximum number.
        siblings: number of elements on each side of a candidate.
    """
    candidate_ids = frozenset(ids)
    retained: set[int] = {id(tree)}
    for element in tree.walk():
        if element.id and element.id in candidate_ids:
            retained.add(id(element))
            retained.update(map(id, _ancestors(element)))
            retained.update(map(id, _descendants(element, depth, max_count=descendants)))
            retained.update(map(id, _adjacent_siblings(element, siblings)))
    return _copy_retained(tree, retained, candidate_ids) if len(retained) > 1 else Element(tree.tag)


def _ancestors(element: Element) -> Iterator[Element]:
    while element.parent is not None:
        element = element.parent
        yield element


def _descendants(element: Element, depth: int, *, max_count: int) -> list[Element]:
    """Returns the elements inside, in page order."""
    descendants: list[Element] = []
    stack = [(child, 1) for child in reversed(element.children) if child.tag and depth > 0]
    while stack and len(descendants) < max_count:
        child, level = stack.pop()
        descendants.append(child)
        if level < depth:
            stack += [(inner, level + 1) for inner in reversed(child.children) if inner.tag]
    return descendants


def _adjacent_siblings(element: Element, siblings: int) -> list[Element]:
    all_siblings = [] if element.parent is None else [child for child in element.parent.children if child.tag]
    position = next((index for index, child in enumerate(all_siblings) if child is element), 0)
    return all_siblings[max(0, position - siblings) : position + siblings + 1]


def _copy_retained(tree: Element, retained: set[int], candidate_ids: frozenset[str]) -> Element:
    """Returns the retained elements with their texts; copies from the inside out, so that no depth is too large."""
    copies: dict[int, list[Element]] = {}
    for element in reversed([element for element in tree.walk() if id(element) in retained]):
        children: list[Element] = []
        for child in element.children:
            children += [Element("", text=child.text)] if not child.tag else copies.get(id(child), [])
        is_candidate = element.id in candidate_ids and bool(element.id)
        is_dissolvable = element is not tree and not is_candidate and not _attribute_words(element)
        if is_dissolvable and len(children) <= 1 and all(child.tag for child in children):
            copies[id(element)] = children
            continue
        copy = Element(element.tag, element.attributes, id=element.id if is_candidate else "")
        for child in children:
            copy.add(child)
        copies[id(element)] = [copy]
    return copies[id(tree)][0]


def _attribute_words(element: Element) -> list[str]:
    """Returns the words of an element's attributes: 5 of each, 20 in all, without duplicates, addresses and long
    words.
    """
    phrases: dict[str, None] = {}
    for name in ATTRIBUTES:
        value = element.attributes.get(name, "").lower()
        if not value or value in _SKIPPED_VALUES or value.startswith("http"):
            continue
        value_words = [word for word in value.split() if len(word) < _MAX_WORD_LENGTH][:_MAX_ATTRIBUTE_WORDS]
        if value_words:
            phrases.setdefault(" ".join(value_words))
    return " ".join(phrases).split()[:_MAX_ELEMENT_WORDS]


def render(tree: Element) -> str:
    """Renders a page as text on one line: `<button id=7 submit>find a car</button>`; texts are cut to 20 words."""
    parts: list[str] = []
    stack: list[Element | str] = [*reversed(tree.children)] if tree.tag == "page" else [tree]
    while stack:
        node = stack.pop()
        if isinstance(node, str):
            parts.append(node)
        elif not node.tag:
            parts.append(" ".join(node.text.split()[:_MAX_TEXT_WORDS]))
        else:
            tag_parts = [node.tag, *([f"id={node.id}"] if node.id else []), *_attribute_words(node)]
            parts.append(f"<{' '.join(tag_parts)}>")
            stack.append(f"</{node.tag}>")
            stack += reversed(node.children)
    return " ".join(parts)
