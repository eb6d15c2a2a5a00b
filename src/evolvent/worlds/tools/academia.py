"""Academia: questions over papers and authors, one relation after another, over two graphs invented per task.

    what is the organisation of the first author of the older paper cited by maple
    loadPaperNet  ->  PaperNet is loaded    neighbourCheck PaperNet maple  ->  opal , fern
    paperNodeCheck opal  ->  authors anna , hugo year 1993 ...  ...  loadAuthorNet  ...  finish college

A kind is what the question begins with and the relations in the order in which they are followed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from evolvent.errors import ConfigError
from evolvent.messages import Call
from evolvent.trajectory import Json
from evolvent.worlds.facts import PEOPLE
from evolvent.worlds.tools.engine import FINISH
from evolvent.worlds.tools.expert import Asker, Quest, Solution
from evolvent.worlds.tools.kinds import ATTEMPTS, Draw, Kind, canonical
from evolvent.worlds.tools.nets import KEYWORDS, ORGS, PAPERS, TOOLS, TYPES, VENUES, Library, draw_nets
from evolvent.worlds.tools.world import ToolWorld

__all__ = ["Academia"]

_CITED: Mapping[str, tuple[str, bool, str]] = {  # the field that is compared, whether the larger one is meant
    "older": ("year", False, "the older paper cited by"),
    "newer": ("year", True, "the newer paper cited by"),
    "more": ("n_citation", True, "the more cited paper cited by"),
    "less": ("n_citation", False, "the less cited paper cited by"),
}
_WRITER: Mapping[str, tuple[int, str]] = {"first": (0, "the first author of"), "last": (-1, "the last author of")}
_FRIEND: Mapping[str, tuple[bool, str]] = {
    "closest": (True, "the most frequent collaborator of"),
    "loosest": (False, "the least frequent collaborator of"),
}
_JOINT = "joint"  # the only paper of an author and a named collaborator
_OF_PAPER: Mapping[str, tuple[str, str]] = {
    "year": ("year", "year"),
    "venue": ("venue", "venue"),
    "citations": ("n_citation", "number of citations"),
    "keyword": ("keywords", "keyword"),
}
_OF_AUTHOR = "org"
_CALLS = {**dict.fromkeys(_CITED, 3), **dict.fromkeys(_WRITER, 1), **dict.fromkeys(_FRIEND, 4), _JOINT: 1}


@dataclass(frozen=True, slots=True)
class _Way:
    """What a question asks: what it begins with, and per relation the collaborator that it names, if any."""

    start: str
    named: tuple[str | None, ...]


class Academia(ToolWorld):
    """The academia world. Expected results on the way count; see `ToolWorld` for the options."""

    name = "academia"
    horizon = 12
    specs = TOOLS
    trained = 4
    counted = True
    example = Call("neighbourCheck", {"graph": "PaperNet", "node": PAPERS[0]})

    def kinds(self) -> Iterator[Kind]:
        """What a question begins with and one to four relations that can be followed within the horizon."""
        for start in ("paper", "author"):
            yield from _chains((start,), author=start == "author", left=4)

    def quest(self, kind: Kind, seed: int) -> Quest:
        for attempt in range(ATTEMPTS):
            draw = Draw("evolvent academia 1", *kind, seed, attempt)
            nets = draw_nets(draw)
            pool = nets.library.papers if kind[0] == "paper" else nets.library.authors
            place = draw.below(len(pool))
            named = _walk(draw, nets.library, kind, place)
            if named is not None:
                break
        else:
            raise ConfigError("no graphs answer a question of this kind", value=kind)
        start = nets.library.papers[place].title if kind[0] == "paper" else nets.library.authors[place].name
        key = _key(kind, nets.library, (start, named))
        return Quest(_question(kind, start, named), nets, key, _Way(start, named))

    def solve(self, kind: Kind, quest: Quest, asker: Asker) -> Solution:
        way: _Way = quest.notes
        name = way.start
        for relation, other in zip(kind[1:], way.named, strict=True):
            if relation == _OF_AUTHOR:
                asker.ask("loadAuthorNet")
                return asker.solution(asker.ask("authorNodeCheck", node=name)["org"])
            if relation in _OF_PAPER:
                asker.ask("loadPaperNet")
                value = asker.ask("paperNodeCheck", node=name)[_OF_PAPER[relation][0]]
                return asker.solution(value[0] if isinstance(value, list) else value)
            name = _follow(asker, relation, name, other=other)
        return asker.solution(name)

    def around(self, quest: Quest, solution: Solution) -> Iterator[Call]:
        library: Library = quest.start.library
        yield from (Call("loadPaperNet"), Call("loadAuthorNet"))
        for paper in library.papers:
            yield Call("neighbourCheck", {"graph": "PaperNet", "node": paper.title})
            yield Call("paperNodeCheck", {"node": paper.title})
            yield Call("paperEdgeCheck", {"node1": paper.title, "node2": library.papers[paper.cites[0]].title})
        for author in library.authors:
            yield Call("neighbourCheck", {"graph": "AuthorNet", "node": author.name})
            yield Call("authorNodeCheck", {"node": author.name})
            for other in author.joint:
                yield Call("authorEdgeCheck", {"node1": author.name, "node2": library.authors[other].name})
        yield from (Call(FINISH, {"answer": guess}) for guess in _guesses(library, solution.answer))

    def texts(self) -> Iterator[str]:
        yield from (*PAPERS, *PEOPLE, *VENUES, *ORGS, *KEYWORDS, *TYPES)
        yield from map(str, [*range(100), *range(1990, 2020)])
        yield from (words for _, _, words in _CITED.values())
        yield from (words for _, words in (*_WRITER.values(), *_FRIEND.values(), *_OF_PAPER.values()))
        yield "what is the organisation of who is which is the joint paper of and"
        yield "authors year venue n_citation keywords doc_type name org papers weight PaperNet AuthorNet is loaded"
        yield "please load the first there is no node of that name in the expected or as graph edge between two nodes"


def _chains(head: Kind, *, author: bool, left: int) -> Iterator[Kind]:
    """The kinds that begin with `head`, of which the last leads to an author or a paper; with room to spare."""
    followers: tuple[str, ...] = (*_FRIEND, _JOINT) if author else (*_CITED, *_WRITER)
    for relation in followers:
        kind = (*head, relation)
        if sum(_CALLS[one] for one in kind[1:]) > 8:
            continue
        yield kind
        if left > 1:
            yield from _chains(kind, author=relation in _WRITER or relation in _FRIEND, left=left - 1)
    yield from ((*head, value) for value in ((_OF_AUTHOR,) if author else _OF_PAPER))


def _step(draw: Draw, library: Library, relation: str, here: int) -> tuple[int, str | None] | None:
    """Where a relation leads and whom it names, or None where that is not one."""
    if relation in _CITED:
        field, larger, _ = _CITED[relation]
        cited = library.papers[here].cites
        best = (max if larger else min)(cited, key=lambda at: getattr(library.papers[at], _ATTRIBUTE[field]))
        return best, None
    if relation in _WRITER:
        return library.papers[here].authors[_WRITER[relation][0]], None
    joint = library.authors[here].joint
    if relation == _JOINT:
        single = [other for other, papers in joint.items() if len(papers) == 1]
        other = draw.choice(single) if single else None
        return None if other is None else (joint[other][0], library.authors[other].name)
    if not 2 <= len(joint) <= 3:
        return None
    most = (max if _FRIEND[relation][0] else min)(map(len, joint.values()))
    best_ones = [other for other, papers in joint.items() if len(papers) == most]
    return (best_ones[0], None) if len(best_ones) == 1 else None


_ATTRIBUTE = {"year": "year", "n_citation": "citations"}


def _walk(draw: Draw, library: Library, kind: Kind, place: int) -> tuple[str | None, ...] | None:
    """Whom each relation names, or None where the way is not one or meets a paper or an author twice."""
    net = kind[0]
    met = {(net, place)}
    named: list[str | None] = []
    for relation in kind[1:]:
        if relation in _OF_PAPER or relation == _OF_AUTHOR:
            named.append(None)
            break
        found = _step(draw, library, relation, place)
        net = "author" if relation in _WRITER or relation in _FRIEND else "paper"
        if found is None or (net, found[0]) in met:
            return None
        place, name = found
        met.add((net, place))
        named.append(name)
    return tuple(named)


def _question(kind: Kind, start: str, named: tuple[str | None, ...]) -> str:
    said = start
    for relation, other in zip(kind[1:], named, strict=True):
        if relation in _OF_PAPER:
            return f"what is the {_OF_PAPER[relation][1]} of {said}"
        if relation == _OF_AUTHOR:
            return f"what is the organisation of {said}"
        words = (
            f"the joint paper of {other} and" if relation == _JOINT else {**_WRITER, **_FRIEND, **_CITED}[relation][-1]
        )
        said = f"{words} {said}"
    return f"{'who' if kind[-1] in _WRITER or kind[-1] in _FRIEND else 'which'} is {said}"


def _key(kind: Kind, library: Library, asked: tuple[str, tuple[str | None, ...]]) -> str:
    """The canonical form: the graphs as they are reached from what the question names; words are names too."""
    entities: dict[str, tuple[Json, list[str]]] = {}
    for paper in library.papers:
        links = [f"author {library.authors[at].name}" for at in paper.authors]
        links += [f"paper {library.papers[at].title}" for at in paper.cites]
        facts: list[Json] = [paper.year, paper.citations, len(paper.authors)]
        entities[f"paper {paper.title}"] = facts, [*links, f"venue {paper.venue}", f"keyword {paper.keyword}"]
    for author in library.authors:
        links = [f"author {library.authors[at].name}" for at in author.joint]
        links += [f"paper {library.papers[at].title}" for papers in author.joint.values() for at in papers]
        facts = [len(papers) for papers in author.joint.values()]
        entities[f"author {author.name}"] = facts, [*links, f"org {author.org}"]
    roots = [f"{kind[0]} {asked[0]}", *(f"author {name}" for name in asked[1] if name)]
    return canonical(kind, roots, entities)


def _follow(asker: Asker, relation: str, name: str, *, other: str | None) -> str:
    """The name of the paper or author that a relation leads to."""
    asker.ask("loadAuthorNet" if relation in _FRIEND or relation == _JOINT else "loadPaperNet")
    if relation in _WRITER:
        return str(asker.ask("paperNodeCheck", node=name)["authors"][_WRITER[relation][0]])
    if relation == _JOINT:
        return str(asker.ask("authorEdgeCheck", node1=name, node2=other)["papers"][0])
    if relation in _CITED:
        field, larger, _ = _CITED[relation]
        cited = asker.ask("neighbourCheck", graph="PaperNet", node=name)
        sizes: dict[str, Any] = {one: asker.ask("paperNodeCheck", node=one)[field] for one in cited}
    else:
        larger = _FRIEND[relation][0]
        others = asker.ask("neighbourCheck", graph="AuthorNet", node=name)
        sizes = {one: len(asker.ask("authorEdgeCheck", node1=name, node2=one)["papers"]) for one in others}
    return (max if larger else min)(sizes, key=lambda one: sizes[one])


def _guesses(library: Library, answer: Json) -> list[Json]:
    """Answers of the same sort as the right one, from the same graphs."""
    sorts: list[list[Json]] = [
        [paper.title for paper in library.papers],
        [author.name for author in library.authors],
        [paper.year for paper in library.papers],
        [paper.citations for paper in library.papers],
        [paper.venue for paper in library.papers],
        [paper.keyword for paper in library.papers],
        [*ORGS],
    ]
    return next(sort for sort in sorts if answer in sort)
