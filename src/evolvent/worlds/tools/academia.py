"""Academia: questions over papers and authors, one relation after another, over two graphs generated per task.

    what is the organisation of the first author of the older paper cited by maple
    loadPaperNet  ->  PaperNet is loaded    neighbourCheck PaperNet maple  ->  opal , fern
    paperNodeCheck opal  ->  authors anna , hugo year 1993 ...  ...  loadAuthorNet  ...  finish college

A kind is the start of the question and the relations in the order in which they are followed.
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
from evolvent.worlds.tools.expert import Quest, Solution, ToolExpert
from evolvent.worlds.tools.kinds import MAX_ATTEMPTS, Draw, Kind, digest_task
from evolvent.worlds.tools.nets import KEYWORDS, ORGS, PAPERS, TOOLS, TYPES, VENUES, Library, draw_nets
from evolvent.worlds.tools.world import ToolWorld

__all__ = ["Academia"]

_CITED_RELATIONS: Mapping[str, tuple[str, bool, str]] = {  # the field that is compared, whether the larger one is meant
    "older": ("year", False, "the older paper cited by"),
    "newer": ("year", True, "the newer paper cited by"),
    "more": ("n_citation", True, "the more cited paper cited by"),
    "less": ("n_citation", False, "the less cited paper cited by"),
}
_AUTHOR_RELATIONS: Mapping[str, tuple[int, str]] = {
    "first": (0, "the first author of"),
    "last": (-1, "the last author of"),
}
_COLLABORATOR_RELATIONS: Mapping[str, tuple[bool, str]] = {
    "closest": (True, "the most frequent collaborator of"),
    "loosest": (False, "the least frequent collaborator of"),
}
_JOINT = "joint"  # the only paper of an author and a named collaborator
_PAPER_FIELDS: Mapping[str, tuple[str, str]] = {
    "year": ("year", "year"),
    "venue": ("venue", "venue"),
    "citations": ("n_citation", "number of citations"),
    "keyword": ("keywords", "keyword"),
}
_AUTHOR_FIELD = "org"
_CALLS_PER_RELATION = {
    **dict.fromkeys(_CITED_RELATIONS, 3),
    **dict.fromkeys(_AUTHOR_RELATIONS, 1),
    **dict.fromkeys(_COLLABORATOR_RELATIONS, 4),
    _JOINT: 1,
}


@dataclass(frozen=True, slots=True)
class _QuestionParts:
    """The parts of a question: its start, and for each relation the collaborator that it names, if any."""

    start: str
    collaborators: tuple[str | None, ...]


class Academia(ToolWorld):
    """The academia world. Expected intermediate results count; see `ToolWorld` for the options."""

    name = "academia"
    horizon = 12
    specs = TOOLS
    trained_length = 4
    counts_subgoals = True
    example = Call("neighbourCheck", {"graph": "PaperNet", "node": PAPERS[0]})

    def kinds(self) -> Iterator[Kind]:
        """Yields a start and one to four relations that can be followed within the horizon."""
        for start in ("paper", "author"):
            yield from _iterate_kinds((start,), author=start == "author", remaining=4)

    def draw_quest(self, kind: Kind, seed: int) -> Quest:
        for attempt in range(MAX_ATTEMPTS):
            draw = Draw("evolvent academia 1", *kind, seed, attempt)
            nets = draw_nets(draw)
            pool = nets.library.papers if kind[0] == "paper" else nets.library.authors
            start_index = draw.below(len(pool))
            collaborators = _draw_path(draw, nets.library, kind, start_index)
            if collaborators is not None:
                break
        else:
            raise ConfigError("no graphs answer a question of this kind", value=kind)
        start = nets.library.papers[start_index].title if kind[0] == "paper" else nets.library.authors[start_index].name
        key = _digest_quest(kind, nets.library, (start, collaborators))
        return Quest(_render_question(kind, start, collaborators), nets, key, _QuestionParts(start, collaborators))

    def solve(self, kind: Kind, quest: Quest, expert: ToolExpert) -> Solution:
        parts: _QuestionParts = quest.notes
        name = parts.start
        for relation, collaborator in zip(kind[1:], parts.collaborators, strict=True):
            if relation == _AUTHOR_FIELD:
                expert.query("loadAuthorNet")
                return expert.build_solution(expert.query("authorNodeCheck", node=name)["org"])
            if relation in _PAPER_FIELDS:
                expert.query("loadPaperNet")
                value = expert.query("paperNodeCheck", node=name)[_PAPER_FIELDS[relation][0]]
                return expert.build_solution(value[0] if isinstance(value, list) else value)
            name = _follow(expert, relation, name, collaborator=collaborator)
        return expert.build_solution(name)

    def candidate_calls(self, quest: Quest, solution: Solution) -> Iterator[Call]:
        library: Library = quest.start.library
        yield from (Call("loadPaperNet"), Call("loadAuthorNet"))
        for paper in library.papers:
            yield Call("neighbourCheck", {"graph": "PaperNet", "node": paper.title})
            yield Call("paperNodeCheck", {"node": paper.title})
            yield Call("paperEdgeCheck", {"node1": paper.title, "node2": library.papers[paper.cites[0]].title})
        for author in library.authors:
            yield Call("neighbourCheck", {"graph": "AuthorNet", "node": author.name})
            yield Call("authorNodeCheck", {"node": author.name})
            for collaborator in author.joint_papers:
                yield Call("authorEdgeCheck", {"node1": author.name, "node2": library.authors[collaborator].name})
        yield from (Call(FINISH, {"answer": guess}) for guess in _list_guesses(library, solution.answer))

    def vocabulary_texts(self) -> Iterator[str]:
        yield from (*PAPERS, *PEOPLE, *VENUES, *ORGS, *KEYWORDS, *TYPES)
        yield from map(str, [*range(100), *range(1990, 2020)])
        yield from (phrase for _, _, phrase in _CITED_RELATIONS.values())
        yield from (
            phrase
            for _, phrase in (*_AUTHOR_RELATIONS.values(), *_COLLABORATOR_RELATIONS.values(), *_PAPER_FIELDS.values())
        )
        yield "what is the organisation of who is which is the joint paper of and"
        yield "authors year venue n_citation keywords doc_type name org papers weight PaperNet AuthorNet is loaded"
        yield "please load the first there is no node of that name in the expected or as graph edge between two nodes"


def _iterate_kinds(prefix: Kind, *, author: bool, remaining: int) -> Iterator[Kind]:
    """Yields the kinds that begin with `prefix` and end with an author, a paper or a field; they fit in the horizon."""
    followers: tuple[str, ...] = (
        (*_COLLABORATOR_RELATIONS, _JOINT) if author else (*_CITED_RELATIONS, *_AUTHOR_RELATIONS)
    )
    for relation in followers:
        kind = (*prefix, relation)
        if sum(_CALLS_PER_RELATION[step] for step in kind[1:]) > 8:
            continue
        yield kind
        if remaining > 1:
            yield from _iterate_kinds(
                kind,
                author=relation in _AUTHOR_RELATIONS or relation in _COLLABORATOR_RELATIONS,
                remaining=remaining - 1,
            )
    yield from ((*prefix, value) for value in ((_AUTHOR_FIELD,) if author else _PAPER_FIELDS))


def _follow_in_library(draw: Draw, library: Library, relation: str, index: int) -> tuple[int, str | None] | None:
    """Returns the target of a relation and the collaborator that it names, or None if the target is not unique."""
    if relation in _CITED_RELATIONS:
        field, larger, _ = _CITED_RELATIONS[relation]
        cited = library.papers[index].cites
        best = (max if larger else min)(
            cited, key=lambda paper_index: getattr(library.papers[paper_index], _ATTRIBUTE[field])
        )
        return best, None
    if relation in _AUTHOR_RELATIONS:
        return library.papers[index].authors[_AUTHOR_RELATIONS[relation][0]], None
    joint = library.authors[index].joint_papers
    if relation == _JOINT:
        single = [collaborator for collaborator, papers in joint.items() if len(papers) == 1]
        collaborator = draw.choice(single) if single else None
        return None if collaborator is None else (joint[collaborator][0], library.authors[collaborator].name)
    if not 2 <= len(joint) <= 3:
        return None
    best_count = (max if _COLLABORATOR_RELATIONS[relation][0] else min)(map(len, joint.values()))
    tied = [collaborator for collaborator, papers in joint.items() if len(papers) == best_count]
    return (tied[0], None) if len(tied) == 1 else None


_ATTRIBUTE = {"year": "year", "n_citation": "citations"}


def _draw_path(draw: Draw, library: Library, kind: Kind, index: int) -> tuple[str | None, ...] | None:
    """Draws the collaborator that each relation names; None if the path is ambiguous or visits a node twice."""
    net = kind[0]
    visited = {(net, index)}
    collaborators: list[str | None] = []
    for relation in kind[1:]:
        if relation in _PAPER_FIELDS or relation == _AUTHOR_FIELD:
            collaborators.append(None)
            break
        target = _follow_in_library(draw, library, relation, index)
        net = "author" if relation in _AUTHOR_RELATIONS or relation in _COLLABORATOR_RELATIONS else "paper"
        if target is None or (net, target[0]) in visited:
            return None
        index, name = target
        visited.add((net, index))
        collaborators.append(name)
    return tuple(collaborators)


def _render_question(kind: Kind, start: str, collaborators: tuple[str | None, ...]) -> str:
    description = start
    for relation, collaborator in zip(kind[1:], collaborators, strict=True):
        if relation in _PAPER_FIELDS:
            return f"what is the {_PAPER_FIELDS[relation][1]} of {description}"
        if relation == _AUTHOR_FIELD:
            return f"what is the organisation of {description}"
        phrase = (
            f"the joint paper of {collaborator} and"
            if relation == _JOINT
            else {**_AUTHOR_RELATIONS, **_COLLABORATOR_RELATIONS, **_CITED_RELATIONS}[relation][-1]
        )
        description = f"{phrase} {description}"
    return (
        f"{'who' if kind[-1] in _AUTHOR_RELATIONS or kind[-1] in _COLLABORATOR_RELATIONS else 'which'} is {description}"
    )


def _digest_quest(kind: Kind, library: Library, question_names: tuple[str, tuple[str | None, ...]]) -> str:
    """Returns the canonical form: the graphs as reached from the names in the question; words are names too."""
    entities: dict[str, tuple[Json, list[str]]] = {}
    for paper in library.papers:
        links = [f"author {library.authors[index].name}" for index in paper.authors]
        links += [f"paper {library.papers[index].title}" for index in paper.cites]
        facts: list[Json] = [paper.year, paper.citations, len(paper.authors)]
        entities[f"paper {paper.title}"] = facts, [*links, f"venue {paper.venue}", f"keyword {paper.keyword}"]
    for author in library.authors:
        links = [f"author {library.authors[index].name}" for index in author.joint_papers]
        links += [f"paper {library.papers[index].title}" for papers in author.joint_papers.values() for index in papers]
        facts = [len(papers) for papers in author.joint_papers.values()]
        entities[f"author {author.name}"] = facts, [*links, f"org {author.org}"]
    roots = [f"{kind[0]} {question_names[0]}", *(f"author {name}" for name in question_names[1] if name)]
    return digest_task(kind, roots, entities)


def _follow(expert: ToolExpert, relation: str, name: str, *, collaborator: str | None) -> str:
    """Returns the name of the paper or author that a relation leads to."""
    expert.query("loadAuthorNet" if relation in _COLLABORATOR_RELATIONS or relation == _JOINT else "loadPaperNet")
    if relation in _AUTHOR_RELATIONS:
        return str(expert.query("paperNodeCheck", node=name)["authors"][_AUTHOR_RELATIONS[relation][0]])
    if relation == _JOINT:
        return str(expert.query("authorEdgeCheck", node1=name, node2=collaborator)["papers"][0])
    if relation in _CITED_RELATIONS:
        field, larger, _ = _CITED_RELATIONS[relation]
        cited = expert.query("neighbourCheck", graph="PaperNet", node=name)
        sizes: dict[str, Any] = {neighbor: expert.query("paperNodeCheck", node=neighbor)[field] for neighbor in cited}
    else:
        larger = _COLLABORATOR_RELATIONS[relation][0]
        neighbors = expert.query("neighbourCheck", graph="AuthorNet", node=name)
        sizes = {
            neighbor: len(expert.query("authorEdgeCheck", node1=name, node2=neighbor)["papers"])
            for neighbor in neighbors
        }
    return (max if larger else min)(sizes, key=lambda neighbor: sizes[neighbor])


def _list_guesses(library: Library, answer: Json) -> list[Json]:
    """Returns answers of the same type as the right answer, from the same graphs."""
    answer_groups: list[list[Json]] = [
        [paper.title for paper in library.papers],
        [author.name for author in library.authors],
        [paper.year for paper in library.papers],
        [paper.citations for paper in library.papers],
        [paper.venue for paper in library.papers],
        [paper.keyword for paper in library.papers],
        [*ORGS],
    ]
    return next(group for group in answer_groups if answer in group)
