"""Academia: questions over papers and authors, one relation after another, over two graphs generated per task.

    what is the organisation of the first author of the older paper cited by maple
    loadPaperNet  ->  PaperNet is loaded    neighbourCheck PaperNet maple  ->  opal , fern
    paperNodeCheck opal  ->  authors anna , hugo year 1993 ...  ...  loadAuthorNet  ...  finish college

A kind is the start of the question and the relations in the order in which they are followed.

Two generated graphs, drawn per task, and the tools that read them: papers and citations, authors and joint
papers.

A graph can be read once it is loaded. Every paper cites two others and has two or three authors; no two papers
share a year or a number of citations.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations
from typing import Any

from evolvent.errors import ConfigError, InvalidAction
from evolvent.messages import Call
from evolvent.trajectory import Json
from evolvent.worlds.facts import PEOPLE
from evolvent.worlds.shapes import NAMES
from evolvent.worlds.tools.engine import FINISH, ToolSpec, build_tool
from evolvent.worlds.tools.expert import Quest, Solution, ToolExpert
from evolvent.worlds.tools.kinds import MAX_ATTEMPTS, Draw, Kind, digest_task
from evolvent.worlds.tools.world import ToolWorld

__all__ = [
    "KEYWORDS",
    "ORGS",
    "PAPERS",
    "TOOLS",
    "TYPES",
    "VENUES",
    "Academia",
    "Author",
    "Library",
    "Nets",
    "Paper",
    "draw_nets",
]


PAPERS = NAMES
VENUES: tuple[str, ...] = (
    "acta",
    "annals",
    "archive",
    "bulletin",
    "forum",
    "gazette",
    "journal",
    "letters",
    "notes",
    "proceedings",
    "quarterly",
    "record",
    "review",
    "symposium",
    "transactions",
    "workshop",
)
ORGS: tuple[str, ...] = (
    "academy",
    "agency",
    "bureau",
    "centre",
    "clinic",
    "college",
    "foundation",
    "hospital",
    "institute",
    "laboratory",
    "ministry",
    "museum",
    "observatory",
    "school",
    "society",
    "university",
)
KEYWORDS: tuple[str, ...] = (
    "algebra",
    "climate",
    "clouds",
    "crystals",
    "energy",
    "enzymes",
    "fluids",
    "galaxies",
    "genes",
    "graphs",
    "language",
    "lasers",
    "logic",
    "magnets",
    "markets",
    "memory",
    "motion",
    "neurons",
    "optics",
    "plants",
    "plasma",
    "polymers",
    "proteins",
    "robots",
    "soil",
    "sound",
    "traffic",
    "vaccines",
    "vision",
    "waves",
)
TYPES = ("Conference", "Journal")
_NUM_PAPERS, _NUM_AUTHORS = 9, 6


@dataclass(frozen=True, slots=True, eq=False)
class Paper:
    """One paper: its authors and the papers it cites, as indices in the library."""

    title: str
    authors: tuple[int, ...]
    year: int
    venue: str
    citations: int
    keyword: str
    type: str
    cites: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Author:
    """One author; collaborators as indices in the library, each with the joint papers."""

    name: str
    org: str
    joint_papers: Mapping[int, tuple[int, ...]]


@dataclass(frozen=True, slots=True, eq=False)
class Library:
    """All papers and authors of one task, and their indices by name."""

    papers: tuple[Paper, ...]
    authors: tuple[Author, ...]
    index_by_name: Mapping[tuple[str, str], int]


@dataclass(frozen=True, slots=True)
class Nets:
    """The state of the tools: the readable data, and the loaded graphs."""

    library: Library
    loaded: frozenset[str] = frozenset()


def draw_nets(draw: Draw) -> Nets:
    """Draws nine papers by six authors; authors are linked by the papers that they wrote together."""
    titles, names = draw.sample(_NUM_PAPERS, PAPERS), draw.sample(_NUM_AUTHORS, PEOPLE)
    years, counts = draw.sample(_NUM_PAPERS, range(1990, 2020)), draw.sample(_NUM_PAPERS, range(1, 100))
    groups = [tuple(draw.sample(draw.between(2, 3), range(_NUM_AUTHORS))) for _ in range(_NUM_PAPERS)]
    papers = tuple(
        Paper(
            titles[index],
            groups[index],
            years[index],
            draw.choice(VENUES),
            counts[index],
            draw.choice(KEYWORDS),
            draw.choice(TYPES),
            tuple(draw.sample(2, [second for second in range(_NUM_PAPERS) if second != index])),
        )
        for index in range(_NUM_PAPERS)
    )
    joint_papers: list[dict[int, tuple[int, ...]]] = [{} for _ in names]
    for paper_index, group in enumerate(groups):
        for first, second in combinations(group, 2):
            joint_papers[first][second] = joint_papers[second][first] = (
                *joint_papers[first].get(second, ()),
                paper_index,
            )
    authors = tuple(
        Author(name, draw.choice(ORGS), dict(_shuffle(draw, joint_papers[index]))) for index, name in enumerate(names)
    )
    paper_indices = {("PaperNet", title): index for index, title in enumerate(titles)}
    return Nets(
        Library(papers, authors, {**paper_indices, **{("AuthorNet", name): index for index, name in enumerate(names)}})
    )


def _shuffle(draw: Draw, joint_papers: Mapping[int, tuple[int, ...]]) -> list[tuple[int, tuple[int, ...]]]:
    return draw.sample(len(joint_papers), sorted(joint_papers.items()))


def _find_node(nets: Nets, graph: str, name: str) -> int:
    """Returns the index of a node; raises InvalidAction if the graph is not loaded or has no such node."""
    if graph not in nets.loaded:
        raise InvalidAction(f"please load the {graph} first", value=name)
    index = nets.library.index_by_name.get((graph, name.strip().lower()))
    if index is None:
        raise InvalidAction(f"there is no node of that name in the {graph}", value=name)
    return index


def _make_loader(graph: str) -> ToolSpec:
    def run(nets: Nets, arguments: Mapping[str, Any]) -> tuple[Nets, Json]:
        return replace(nets, loaded=nets.loaded | {graph}), f"{graph} is loaded"

    nodes = "papers, joined by citations" if graph == "PaperNet" else "authors, joined by collaboration"
    return build_tool(run, f"load{graph}()", f"Load the {graph}: {nodes}.")


def _list_neighbors(nets: Nets, arguments: Mapping[str, Any]) -> tuple[Nets, Json]:
    graph = arguments["graph"].strip()
    if graph not in ("PaperNet", "AuthorNet"):
        raise InvalidAction("expected PaperNet or AuthorNet as graph", value=graph)
    index, library = _find_node(nets, graph, arguments["node"]), nets.library
    if graph == "PaperNet":
        return nets, [library.papers[cited].title for cited in library.papers[index].cites]
    return nets, [library.authors[collaborator].name for collaborator in library.authors[index].joint_papers]


def _describe_paper(nets: Nets, arguments: Mapping[str, Any]) -> tuple[Nets, Json]:
    paper = nets.library.papers[_find_node(nets, "PaperNet", arguments["node"])]
    return nets, {
        "authors": [nets.library.authors[author].name for author in paper.authors],
        "year": paper.year,
        "venue": paper.venue,
        "n_citation": paper.citations,
        "keywords": [paper.keyword],
        "doc_type": paper.type,
    }


def _describe_author(nets: Nets, arguments: Mapping[str, Any]) -> tuple[Nets, Json]:
    author = nets.library.authors[_find_node(nets, "AuthorNet", arguments["node"])]
    return nets, {"name": author.name, "org": author.org}


def _find_ends(nets: Nets, graph: str, arguments: Mapping[str, Any]) -> tuple[int, int]:
    return _find_node(nets, graph, arguments["node1"]), _find_node(nets, graph, arguments["node2"])


def _describe_paper_edge(nets: Nets, arguments: Mapping[str, Any]) -> tuple[Nets, Json]:
    source, target = _find_ends(nets, "PaperNet", arguments)
    if target not in nets.library.papers[source].cites:
        raise InvalidAction("there is no edge between the two nodes", value=arguments)
    return nets, {"weight": 1}


def _describe_author_edge(nets: Nets, arguments: Mapping[str, Any]) -> tuple[Nets, Json]:
    source, target = _find_ends(nets, "AuthorNet", arguments)
    papers: Sequence[int] = nets.library.authors[source].joint_papers.get(target, ())
    if not papers:
        raise InvalidAction("there is no edge between the two nodes", value=arguments)
    return nets, {"papers": [nets.library.papers[paper_index].title for paper_index in papers]}


TOOLS: tuple[ToolSpec, ...] = (
    _make_loader("PaperNet"),
    _make_loader("AuthorNet"),
    build_tool(
        _list_neighbors,
        "neighbourCheck(graph: string, node: string)",
        "The papers that a paper cites (PaperNet) or the collaborators of an author (AuthorNet).",
    ),
    build_tool(_describe_paper, "paperNodeCheck(node: string)", "What is known of a paper."),
    build_tool(_describe_author, "authorNodeCheck(node: string)", "What is known of an author."),
    build_tool(_describe_paper_edge, "paperEdgeCheck(node1: string, node2: string)", "What is known of a citation."),
    build_tool(
        _describe_author_edge,
        "authorEdgeCheck(node1: string, node2: string)",
        "The papers that two authors wrote together.",
    ),
)
"""The tools of the academia world under their original names."""


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
            raise ConfigError("no graph answers questions of this kind", value=kind)
        start = nets.library.papers[start_index].title if kind[0] == "paper" else nets.library.authors[start_index].name
        digest = partial(_digest_quest, kind, nets.library, (start, collaborators))
        return Quest(_render_question(kind, start, collaborators), nets, digest, _QuestionParts(start, collaborators))

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
