"""Two invented graphs, drawn per task, and the tools that read them: papers and citations, authors and joint papers.

A graph can be read once it is loaded. Every paper cites two others and has two or three authors; two papers have
neither year nor number of citations in common.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

from evolvent.errors import InvalidAction
from evolvent.trajectory import Json
from evolvent.worlds.facts import PEOPLE
from evolvent.worlds.shapes import NAMES
from evolvent.worlds.tools.engine import ToolSpec, tool
from evolvent.worlds.tools.kinds import Draw

__all__ = ["KEYWORDS", "ORGS", "PAPERS", "TOOLS", "TYPES", "VENUES", "Author", "Library", "Nets", "Paper", "draw_nets"]

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
_PAPERS, _AUTHORS = 9, 6


@dataclass(frozen=True, slots=True, eq=False)
class Paper:
    """One paper: who wrote it and what it cites, as places in the library."""

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
    """One author; collaborators as places in the library, each with the joint papers."""

    name: str
    org: str
    joint: Mapping[int, tuple[int, ...]]


@dataclass(frozen=True, slots=True, eq=False)
class Library:
    """All papers and authors of one task, and where they stand by name."""

    papers: tuple[Paper, ...]
    authors: tuple[Author, ...]
    places: Mapping[tuple[str, str], int]


@dataclass(frozen=True, slots=True)
class Nets:
    """The state of the tools: what can be read, and which of the two graphs are loaded."""

    library: Library
    loaded: frozenset[str] = frozenset()


def draw_nets(draw: Draw) -> Nets:
    """Nine papers by six authors; authors are joined by the papers that they wrote together."""
    titles, names = draw.some(_PAPERS, PAPERS), draw.some(_AUTHORS, PEOPLE)
    years, counts = draw.some(_PAPERS, range(1990, 2020)), draw.some(_PAPERS, range(1, 100))
    groups = [tuple(draw.some(draw.between(2, 3), range(_AUTHORS))) for _ in range(_PAPERS)]
    papers = tuple(
        Paper(
            titles[at],
            groups[at],
            years[at],
            draw.choice(VENUES),
            counts[at],
            draw.choice(KEYWORDS),
            draw.choice(TYPES),
            tuple(draw.some(2, [other for other in range(_PAPERS) if other != at])),
        )
        for at in range(_PAPERS)
    )
    joint: list[dict[int, tuple[int, ...]]] = [{} for _ in names]
    for place, group in enumerate(groups):
        for one, other in combinations(group, 2):
            joint[one][other] = joint[other][one] = (*joint[one].get(other, ()), place)
    authors = tuple(Author(name, draw.choice(ORGS), dict(_shuffled(draw, joint[at]))) for at, name in enumerate(names))
    places = {("PaperNet", title): at for at, title in enumerate(titles)}
    return Nets(Library(papers, authors, {**places, **{("AuthorNet", name): at for at, name in enumerate(names)}}))


def _shuffled(draw: Draw, joint: Mapping[int, tuple[int, ...]]) -> list[tuple[int, tuple[int, ...]]]:
    return draw.some(len(joint), sorted(joint.items()))


def _node(nets: Nets, graph: str, name: str) -> int:
    """The place of a node; raises InvalidAction where the graph is not loaded or has no such node."""
    if graph not in nets.loaded:
        raise InvalidAction(f"please load the {graph} first", value=name)
    place = nets.library.places.get((graph, name.strip().lower()))
    if place is None:
        raise InvalidAction(f"there is no node of that name in the {graph}", value=name)
    return place


def _load(graph: str) -> ToolSpec:
    def run(nets: Nets, given: Mapping[str, Any]) -> tuple[Nets, Json]:
        return replace(nets, loaded=nets.loaded | {graph}), f"{graph} is loaded"

    nodes = "papers, joined by citations" if graph == "PaperNet" else "authors, joined by collaboration"
    return tool(run, f"load{graph}()", f"Load the {graph}: {nodes}.")


def _neighbours(nets: Nets, given: Mapping[str, Any]) -> tuple[Nets, Json]:
    graph = given["graph"].strip()
    if graph not in ("PaperNet", "AuthorNet"):
        raise InvalidAction("expected PaperNet or AuthorNet as graph", value=graph)
    place, library = _node(nets, graph, given["node"]), nets.library
    if graph == "PaperNet":
        return nets, [library.papers[cited].title for cited in library.papers[place].cites]
    return nets, [library.authors[other].name for other in library.authors[place].joint]


def _paper(nets: Nets, given: Mapping[str, Any]) -> tuple[Nets, Json]:
    paper = nets.library.papers[_node(nets, "PaperNet", given["node"])]
    return nets, {
        "authors": [nets.library.authors[author].name for author in paper.authors],
        "year": paper.year,
        "venue": paper.venue,
        "n_citation": paper.citations,
        "keywords": [paper.keyword],
        "doc_type": paper.type,
    }


def _author(nets: Nets, given: Mapping[str, Any]) -> tuple[Nets, Json]:
    author = nets.library.authors[_node(nets, "AuthorNet", given["node"])]
    return nets, {"name": author.name, "org": author.org}


def _ends(nets: Nets, graph: str, given: Mapping[str, Any]) -> tuple[int, int]:
    return _node(nets, graph, given["node1"]), _node(nets, graph, given["node2"])


def _paper_edge(nets: Nets, given: Mapping[str, Any]) -> tuple[Nets, Json]:
    one, other = _ends(nets, "PaperNet", given)
    if other not in nets.library.papers[one].cites:
        raise InvalidAction("there is no edge between the two nodes", value=given)
    return nets, {"weight": 1}


def _author_edge(nets: Nets, given: Mapping[str, Any]) -> tuple[Nets, Json]:
    one, other = _ends(nets, "AuthorNet", given)
    papers: Sequence[int] = nets.library.authors[one].joint.get(other, ())
    if not papers:
        raise InvalidAction("there is no edge between the two nodes", value=given)
    return nets, {"papers": [nets.library.papers[place].title for place in papers]}


TOOLS: tuple[ToolSpec, ...] = (
    _load("PaperNet"),
    _load("AuthorNet"),
    tool(
        _neighbours,
        "neighbourCheck(graph: string, node: string)",
        "The papers that a paper cites (PaperNet) or the collaborators of an author (AuthorNet).",
    ),
    tool(_paper, "paperNodeCheck(node: string)", "What is known of a paper."),
    tool(_author, "authorNodeCheck(node: string)", "What is known of an author."),
    tool(_paper_edge, "paperEdgeCheck(node1: string, node2: string)", "What is known of a citation."),
    tool(_author_edge, "authorEdgeCheck(node1: string, node2: string)", "The papers that two authors wrote together."),
)
"""The tools of the academia world under their original names."""
