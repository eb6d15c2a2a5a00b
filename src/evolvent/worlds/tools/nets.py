"""Two generated graphs, drawn per task, and the tools that read them: papers and citations, authors and joint
papers.

A graph can be read once it is loaded. Every paper cites two others and has two or three authors; no two papers
share a year or a number of citations.
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
from evolvent.worlds.tools.engine import ToolSpec, build_tool
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
