"""Pages: HTML parsing, pruning to the surroundings of some elements, and rendering as text.

The text of a page follows Mind2Web (arXiv 2306.06070): candidates with their ancestors, their descendants and
the adjacent siblings; ids on candidates only; attributes merged into one list of words.

HTML is parsed by two regular expressions of linear time. The pages of the data are written by a serializer and
need none of the repairs of a browser, while `html.parser` takes quadratic time on tags that never end (10 s for
12 kB of `<a `, Python 3.11). Nothing is expanded except character references.

Sources of recorded tasks: a folder of Mind2Web's files, or the generator; dealt to splits and tiers.

In a folder the names determine the split: `train` is the training split; `test_task`, `test_website` and
`test_domain` are the three official tests, as tiers `seen`, `website` and `domain`. Pages are large: only the
position of each task is retained, and one file at a time is in memory.
"""

from __future__ import annotations

import hashlib
import html
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from evolvent.data.jsonl import get_row, row_files
from evolvent.errors import ConfigError, Problem, SampleInvalid, VersionMismatch
from evolvent.trajectory import Json, Task, canonical_json
from evolvent.worlds.base import SPLITS
from evolvent.worlds.crafting import words_of
from evolvent.worlds.panel import Sizes, check_names
from evolvent.worlds.web_replay import generated
from evolvent.worlds.web_replay.records import Ranks, WebTask, parse_task, read_ranks, read_rows

__all__ = ["ATTRIBUTES", "Element", "Folder", "Generated", "Library", "parse_page", "prune", "render"]


_TIERS: Mapping[str, str] = {"test_task": "seen", "test_website": "website", "test_domain": "domain"}
_MAX_LISTED_PROBLEMS = 5  # problems that a message names


class Library(Protocol):
    """Recorded tasks.

    Attributes:
        name, version: of their world.
        tiers: the tiers of the tasks.
        max_steps: steps of the longest task.
        ranks: of the candidates; None: a step without its own ranks shows all of them.
        invalid: the unusable rows, with the reasons.
    """

    name: str
    version: str
    tiers: tuple[str, ...]
    max_steps: int
    ranks: Ranks | None
    invalid: tuple[Problem, ...]

    def tasks(self, split: str, tier: str) -> Sequence[Task]:
        """Returns the tasks of a split and tier; raises ConfigError for an unknown name."""
        ...

    def get_record(self, task: Task) -> WebTask:
        """Returns the record of a task; raises ConfigError or VersionMismatch for a spec without a record."""
        ...

    def vocabulary_source(self) -> Sequence[str] | None:
        """Returns texts that contain every word of pages, tasks and thoughts, or None if they are unknown."""
        ...


@dataclass(frozen=True, slots=True)
class _Entry:
    """The position and properties of a task, without its pages."""

    file: str
    row: int
    digest: str
    website: str
    split: str
    tier: str
    steps: int

    @property
    def where(self) -> str:
        """Returns the position of the row, for messages."""
        return f"{self.file}, row {self.row}"


class Folder:
    """The tasks of a folder of official files, or of one file.

    Args:
        path: contains `.json` files at any depth; files whose names begin with `ranks` or `scores` are not tasks.
        ranks: a file of ranks (see `read_ranks`); None: none, or those in the rows.
        max_candidates: maximum number of candidates on a page.
        ranker: name of what ranks in place of a file, part of every task's id.
        sizes: maximum number of tasks of each split in a tier (None: all).
    Raises:
        ConfigError: no file, a file that is not a JSON array, or no usable task. UnsafeFile: pickled ranks.
    """

    name, version = "mind2web", "1"

    def __init__(
        self,
        path: str | Path,
        ranks: str | Path | None = None,
        *,
        max_candidates: int,
        sizes: Sizes | None = None,
        ranker: str = "",
    ) -> None:
        self.path, self._sizes, self._ranker = Path(path), sizes, ranker
        files = [
            (file, name)
            for file, name in row_files(self.path, "**/*")
            if name.endswith(".json") and not file.name.startswith(("ranks", "scores"))
        ]
        if not files:
            raise ConfigError("no recorded tasks found", value=str(path), expected="a folder of Mind2Web's .json files")
        self._files = {name: file for file, name in files}
        self._last: tuple[str, list[object]] = ("", [])
        entries, problems = self._build_index()
        if not entries:
            raise ConfigError(problems[:_MAX_LISTED_PROBLEMS] or f"no tasks in {path}")
        self.invalid: tuple[Problem, ...] = tuple(problems)
        self.max_steps = max(entry.steps for entry in entries)
        self._entries = {(entry.file, entry.row): entry for entry in entries}
        tier_names = {entry.tier for entry in entries}
        self.tiers: tuple[str, ...] = tuple(
            tier for tier in ("seen", "website", "domain") if tier == "seen" or tier in tier_names
        )
        self.ranks: Ranks | None = None if ranks is None else read_ranks(ranks, max_rank=max_candidates)

    def _build_index(self) -> tuple[list[_Entry], list[Problem]]:
        entries, problems, ids = [], [], set()
        for name in self._files:
            split, tier = _split_and_tier(f"{self.path.name}/{name}")
            for row_index, row in enumerate(self._load_rows(name)):
                try:
                    task = parse_task(row)
                except SampleInvalid as error:
                    problems.append(Problem(f"{name}, row {row_index}", str(error), "the row is skipped"))
                    continue
                if task.id in ids:
                    problems.append(
                        Problem(f"{name}, row {row_index}", f"{task.id} occurs twice", "the row is skipped")
                    )
                    continue
                ids.add(task.id)
                entries.append(_Entry(name, row_index, task.digest, task.website, split, tier, len(task.steps)))
        self._last = ("", [])
        return entries, problems

    def _load_rows(self, name: str) -> list[object]:
        if self._last[0] != name:
            self._last = (name, read_rows(self._files[name]))
        return self._last[1]

    def tasks(self, split: str, tier: str) -> Sequence[Task]:
        """Returns the tasks of a split and tier, in the order of the files."""
        check_names(split, tier, self.tiers)
        entries = [entry for entry in self._entries.values() if (entry.split, entry.tier) == (split, tier)]
        limit = None if self._sizes is None else self._sizes.of(split)
        return tuple(map(self._build_task, entries[:limit]))

    def _build_task(self, entry: _Entry) -> Task:
        spec: dict[str, Json] = {"file": entry.file, "row": entry.row, "digest": entry.digest}
        if (ranks_digest := self._ranks_digest) is not None:
            spec["ranks"] = ranks_digest
        return Task(self.name, self.version, spec, entry.website, entry.tier, entry.split)

    @property
    def _ranks_digest(self) -> str | None:
        """Returns what identifies the ranks; None: there are none, or those of the rows."""
        return self._ranker or (None if self.ranks is None else self.ranks.digest)

    def get_record(self, task: Task) -> WebTask:
        """Returns the task, read from its file again.

        Raises:
            ConfigError: a missing row. VersionMismatch: the content of the row, or of the file of ranks, has changed.
        """
        entry = get_row(self._entries, task)
        ranks_digest = self._ranks_digest
        if task.spec.get("ranks") != ranks_digest:
            raise VersionMismatch(
                "the task was made with other ranks", value=task.spec.get("ranks"), expected=ranks_digest
            )
        rows = self._load_rows(entry.file)
        record = parse_task(rows[entry.row]) if entry.row < len(rows) else None
        if record is None or record.digest != entry.digest:
            raise VersionMismatch(f"{entry.where} was changed", value=record and record.digest, expected=entry.digest)
        return record

    def vocabulary_source(self) -> Sequence[str] | None:
        """Returns None: the vocabulary of the web is open."""
        return None


def _split_and_tier(name: str) -> tuple[str, str]:
    """Returns split and tier by a path: the last part that names one; without any, the official test of known sites."""
    for part in reversed(Path(name).parts):
        for prefix, tier in _TIERS.items():
            if part.startswith(prefix):
                return "test", tier
        if part.startswith(("train", "dev")):
            return ("train", "seen") if part.startswith("train") else ("dev", "seen")
    return "test", "seen"


class Generated:
    """Generated tasks; of every five, one is dev and one is test.

    Args:
        pages: number of pages of all tasks together.
        seed: determines the tasks.
        sizes: maximum number of tasks of each split (None: all).
    """

    name, version = "web_replay", "1"
    tiers: tuple[str, ...] = ("seen",)
    invalid: tuple[Problem, ...] = ()

    def __init__(self, pages: int, seed: int, *, sizes: Sizes | None = None) -> None:
        self.pages, self.seed = pages, seed
        rows, ranks = generated.generate_rows(pages, seed)
        digest = hashlib.sha256(canonical_json(ranks).encode()).hexdigest()
        self.ranks: Ranks | None = Ranks(ranks, "generated", digest)
        self._recorded = [parse_task(row) for row in rows]
        self.max_steps = max(len(task.steps) for task in self._recorded)
        tasks_by_split = {split: [*self._deal_tasks(split)] for split in SPLITS}
        self._panels = {
            split: tuple(split_tasks[: None if sizes is None else sizes.of(split)])
            for split, split_tasks in tasks_by_split.items()
        }

    def _deal_tasks(self, split: str) -> Iterator[Task]:
        for number, record in enumerate(self._recorded):
            if {3: "dev", 4: "test"}.get((number + number // 5) % 5, "train") == split:
                spec: dict[str, Json] = {"seed": self.seed, "number": number, "steps": len(record.steps)}
                yield Task(self.name, self.version, spec, record.subdomain, "seen", split)

    def tasks(self, split: str, tier: str) -> Sequence[Task]:
        """Returns the tasks of a split."""
        check_names(split, tier, self.tiers)
        return self._panels[split]

    def get_record(self, task: Task) -> WebTask:
        """Returns the record of a generated task; raises ConfigError for a task that this library does not have."""
        number = task.spec.get("number")
        record = self._recorded[number] if type(number) is int and 0 <= number < len(self._recorded) else None
        if record is None or dict(task.spec) != {"seed": self.seed, "number": number, "steps": len(record.steps)}:
            raise ConfigError(
                "generated task out of range",
                value=dict(task.spec),
                expected=f"seed {self.seed}, a number below {len(self._recorded)}",
            )
        return record

    def vocabulary_source(self) -> Sequence[str] | None:
        """Returns every word of the pages as written, of tasks and of thoughts."""
        texts = [text for row in self._recorded for text in (row.instruction, *(step.thought for step in row.steps))]
        pages = [word for row in self._recorded for step in row.steps for word in words_of(step.html)]
        return sorted({*pages, *(word for text in texts for word in words_of(text))})


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
        raise SampleInvalid("page size out of range", value=len(source), expected=f"1 to {MAX_CHARACTERS}")
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
                "the page is too large",
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
