"""Recorded tasks of our own making, in the official format: pages of five sorts of sites and what is done there.

A task leads from a start page over a search form to a list of results. The pages have menus, banners, footers and
forms; every page numbers its elements anew. A tenth of the right elements is ranked behind the first five, and some
steps have two right elements, so that misses and impossible exact successes occur, as they do in the data.
"""

from __future__ import annotations

import html
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from evolvent.trajectory import Json
from evolvent.worlds.tools.kinds import Draw

__all__ = ["SITES", "Site", "generate_row", "generate_rows", "write_rows"]

_MENU = ("home", "offers", "help", "about us", "sign in", "contact", "jobs", "news")
_BANNERS = ("we use cookies", "summer sale", "get the app", "free delivery this week", "join our club")
_FOOTER = ("privacy", "terms", "press", "site map", "cookies")
_CITIES = ("berlin", "cairo", "dublin", "geneva", "lima", "madrid", "oslo", "paris", "prague", "rome", "tokyo")
_HIDDEN = 10  # one right element in so many is ranked behind the first five
_FIRST = 5


@dataclass(frozen=True, slots=True)
class Site:
    """A sort of sites.

    Args:
        domain, subdomain, names: where a task is recorded.
        section: the link on the start page that leads to the form.
        typed, texts: the label of the text field, and what is typed there.
        chosen, options: the label of the choice, and its options.
        search: the button that sends the form.
        things, take: what is listed, and the button beside each.
        told: the task, with {text}, {option} and {thing}.
    """

    domain: str
    subdomain: str
    names: tuple[str, ...]
    section: str
    typed: str
    texts: tuple[str, ...]
    chosen: str
    options: tuple[str, ...]
    search: str
    things: tuple[str, ...]
    take: str
    told: str


SITES: tuple[Site, ...] = (
    Site(
        "travel",
        "car rental",
        ("wheelbase", "roadside", "motorway"),
        "rent a car",
        "pick up city",
        _CITIES,
        "car type",
        ("compact", "van", "estate", "sports car"),
        "find a car",
        ("blue arrow", "red comet", "green fox", "white swan", "black bear"),
        "reserve",
        "reserve the {thing} , a {option} in {text}",
    ),
    Site(
        "shopping",
        "furniture",
        ("oakroom", "homeward", "fourlegs"),
        "furniture",
        "what are you looking for",
        ("desk [oak]", "chair", "lamp [led]", "shelf", "sofa", "table [round]"),
        "colour",
        ("white", "black", "brown", "grey"),
        "search",
        ("nordic", "classic", "studio", "garden", "compact plus"),
        "add to basket",
        "put the {thing} {text} in {option} into the basket",
    ),
    Site(
        "entertainment",
        "cinema",
        ("filmhouse", "bigscreen", "popcorn"),
        "tickets",
        "city or cinema",
        _CITIES,
        "day",
        ("monday", "tuesday", "friday", "sunday"),
        "show films",
        ("the lighthouse", "two rivers", "night train", "the last map", "silver rain"),
        "buy tickets",
        "buy tickets for {thing} in {text} on {option}",
    ),
    Site(
        "services",
        "clinics",
        ("wellpoint", "openhand", "citycare"),
        "book a visit",
        "your city",
        _CITIES,
        "speciality",
        ("dentist", "eye doctor", "skin doctor", "family doctor"),
        "find a doctor",
        ("dr adams", "dr baker", "dr clark", "dr davis", "dr evans"),
        "book",
        "book a visit with {thing} , {option} in {text}",
    ),
    Site(
        "education",
        "libraries",
        ("readwell", "stacks", "bookway"),
        "catalogue",
        "title or author",
        ("maps of the sea", "a short walk", "the clockmaker", "winter bread", "eleven doors"),
        "format",
        ("paper", "audio", "large print", "digital"),
        "look it up",
        ("main branch", "north branch", "harbour branch", "school branch", "park branch"),
        "place a hold",
        "place a hold on {text} as {option} at the {thing}",
    ),
)
"""The sorts of sites that tasks are made of."""


@dataclass(frozen=True)
class _Node:
    """An element of a page that is being made.

    Args:
        mark: "target" or "also" for right elements.
    """

    tag: str
    attributes: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    inside: tuple[_Node | str, ...] = ()
    mark: str = ""


def _node(tag: str, *inside: _Node | str, mark: str = "", **attributes: str) -> _Node:
    return _Node(tag, {name.rstrip("_").replace("_", "-"): value for name, value in attributes.items()}, inside, mark)


@dataclass(frozen=True, slots=True)
class _Action:
    """An action before its page is made: what is done with the marked element, in words too."""

    operation: str
    value: str
    said: str
    thought: str
    body: tuple[_Node, ...]


def _link(words: str, mark: str = "") -> _Node:
    return _node("li", _node("a", words, href="#", mark=mark))


def _start(draw: Draw, site: Site) -> _Action:
    others = [other.section for other in draw.some(2, [one for one in SITES if one is not site])]
    links = [*map(_link, others)]
    links.insert(draw.below(3), _link(site.section, "target"))
    body = (_node("main", _node("h1", f"welcome to our {site.domain} pages"), _node("ul", *links, class_="tiles")),)
    thought = f"this is the start page . next i have to open {site.section}"
    return _Action("CLICK", "", f"[link] {site.section} -> CLICK", thought, body)


def _form(site: Site, text: str, option: str, *, at: int) -> _Action:
    """The search form, with what was filled in before the step `at`: 0 type, 1 choose, 2 send."""
    typed = {"value": text} if at > 0 else {}
    options = [
        _node("option", one, **({"option_selected": "true"} if at > 1 and one == option else {}))
        for one in site.options
    ]
    words = "target" if at == 2 else ""
    button = _node("button", _node("span", site.search, mark="also" if words else ""), type="submit", mark=words)
    form = _node(
        "form",
        _node("label", site.typed),
        _node("input", type="text", placeholder=site.typed, mark="" if at else "target", **typed),
        _node("label", site.chosen),
        _node("select", *options, name=site.chosen, mark="target" if at == 1 else ""),
        button,
        role="search",
    )
    body = (_node("main", _node("h1", site.section), form, _node("p", f"tell us {site.typed} and {site.chosen}")),)
    if at == 0:
        thought = f"{site.typed} is still empty . next i have to type {text}"
        return _Action("TYPE", text, f"[textbox] {site.typed} -> TYPE: {text}", thought, body)
    if at == 1:
        thought = f"{site.chosen} is not chosen yet . next i have to select {option}"
        return _Action("SELECT", option, f"[combobox] {site.chosen} -> SELECT: {option}", thought, body)
    thought = f"the form is filled in . next i have to press {site.search}"
    return _Action("CLICK", "", f"[button] {site.search} -> CLICK", thought, body)


def _results(draw: Draw, site: Site, thing: str) -> _Action:
    rows = [
        _node(
            "article",
            _node("h2", one),
            _node("p", f"{draw.between(5, 99)} euro"),
            _node("button", site.take, title=one, mark="target" if one == thing else ""),
        )
        for one in draw.some(len(site.things), site.things)
    ]
    body = (_node("main", _node("h1", f"{len(rows)} results"), _node("section", *rows, class_="results")),)
    thought = f"the results are shown and {thing} is one of them . next i have to press {site.take} beside it"
    return _Action("CLICK", "", f"[button] {site.take} -> CLICK", thought, body)


def _page(draw: Draw, site: str, body: Sequence[_Node]) -> _Node:
    """The whole page: a menu, a banner, the body and a footer."""
    banner = draw.choice(_BANNERS)
    return _node(
        "html",
        _node("head", _node("title", site)),
        _node(
            "body",
            _node("header", _node("a", site, href="#"), _node("ul", *map(_link, draw.some(4, _MENU)), role="menu")),
            _node("div", _node("div", _node("p", banner), _node("button", "close", aria_label=f"close {banner}"))),
            *body,
            _node("footer", _node("ul", *map(_link, draw.some(3, _FOOTER)))),
        ),
    )


_ACTIVE = frozenset({"a", "button", "input", "select"})
_ALONE = frozenset({"input"})


def _numbered(draw: Draw, page: _Node) -> dict[int, int]:
    """Place of an element in the page -> its id; the ids grow by 1 to 3."""
    number, found = draw.between(2, 40), {}
    for place, _ in enumerate(_walk(page)):
        found[place] = number
        number += draw.between(1, 3)
    return found


def _walk(node: _Node) -> Iterator[_Node]:
    yield node
    for inner in node.inside:
        if isinstance(inner, _Node):
            yield from _walk(inner)


def _written(page: _Node, ids: Mapping[int, int], *, uid: str) -> str:
    """The page as HTML. With a `uid`, as a browser has it: the target is marked; else cleaned."""
    places = iter(range(len(ids)))

    def write(node: _Node) -> str:
        own = {**node.attributes, "backend_node_id": str(ids[next(places)])}
        if uid and node.mark == "target":
            own["data_pw_testid_buckeye"] = uid
        told = "".join(f' {name}="{html.escape(value)}"' for name, value in own.items())
        if node.tag in _ALONE:
            return f"<{node.tag}{told}/>"
        inside = "".join(write(one) if isinstance(one, _Node) else _piece(one) for one in node.inside)
        return f"<{node.tag}{told}>{inside}</{node.tag}>"

    def _piece(words: str) -> str:
        return html.escape(words) if uid else f"<text>{html.escape(words)}</text>"

    return write(page)


def _ranked(draw: Draw, ids: Sequence[str], target: str) -> dict[str, int]:
    """A ranking in which the target is among the first five but for one time in ten."""
    others = draw.some(len(ids) - 1, [one for one in ids if one != target])
    late = len(others) >= _FIRST and not draw.below(_HIDDEN)
    place = draw.between(_FIRST, len(others)) if late else draw.below(min(_FIRST, len(ids)))
    return {one: rank for rank, one in enumerate([*others[:place], target, *others[place:]])}


def _recorded(draw: Draw, action: _Action, *, site: str, uid: str) -> tuple[dict[str, Json], dict[str, int]]:
    """An action in the official format, and the ranks of its candidates."""
    page = _page(draw, site, action.body)
    ids = _numbered(draw, page)
    nodes = list(enumerate(_walk(page)))
    rows: dict[str, list[dict[str, Json]]] = {"pos": [], "neg": []}
    for mark in ("target", "also", ""):
        for place, node in nodes:
            if node.mark == mark and (mark or node.tag in _ACTIVE):
                attributes: dict[str, Any] = {**node.attributes, "backend_node_id": str(ids[place])}
                rows["pos" if mark else "neg"].append(
                    {
                        "tag": node.tag,
                        "attributes": json.dumps(attributes),
                        "backend_node_id": str(ids[place]),
                        **(
                            dict.fromkeys(("is_original_target", "is_top_level_target"), mark == "target")
                            if mark
                            else {}
                        ),
                    }
                )
    ranks = _ranked(
        draw,
        [str(row["backend_node_id"]) for row in (*rows["pos"], *rows["neg"])],
        str(rows["pos"][0]["backend_node_id"]),
    )
    return {
        "action_uid": uid,
        "raw_html": _written(page, ids, uid=uid),
        "cleaned_html": _written(page, ids, uid=""),
        "operation": {"original_op": action.operation, "op": action.operation, "value": action.value},
        "pos_candidates": [*rows["pos"]],
        "neg_candidates": [*rows["neg"]],
        "thought": action.thought,
    }, ranks


def generate_row(seed: int, number: int) -> tuple[dict[str, Json], dict[str, dict[str, int]]]:
    """A task of three to five pages in the official format, and the ranks of its steps.

    Args:
        seed, number: which; a task depends on nothing else.
    """
    draw = Draw("evolvent web replay 1", seed, number)
    site = SITES[number % len(SITES)]
    name, text, option, thing = (draw.choice(of) for of in (site.names, site.texts, site.options, site.things))
    typed = [_form(site, text, option, at=at) for at in range(3)]
    length = draw.between(3, 5)
    actions = [
        *([_start(draw, site)] if length == 5 else []),
        *typed,
        *([_results(draw, site, thing)] if length > 3 else []),
    ]
    annotation = f"{seed}-{number}"
    rows, ranks = [], {}
    for place, action in enumerate(actions):
        uid = f"{annotation}-{place}"
        row, ranks[f"{annotation}_{uid}"] = _recorded(draw, action, site=name, uid=uid)
        rows.append(row)
    told = site.told if length > 3 else "look for " + f"{site.typed} {{text}} and {site.chosen} {{option}}"
    return {
        "annotation_id": annotation,
        "website": name,
        "domain": site.domain,
        "subdomain": site.subdomain,
        "confirmed_task": told.format(text=text, option=option, thing=thing),
        "action_reprs": [action.said for action in actions],
        "actions": [*rows],
    }, ranks


def generate_rows(pages: int, seed: int) -> tuple[list[dict[str, Json]], dict[str, dict[str, int]]]:
    """Tasks of so many pages together (the last one is cut short where it must be), and all their ranks."""
    rows: list[dict[str, Json]] = []
    ranks: dict[str, dict[str, int]] = {}
    while pages > 0:
        row, own = generate_row(seed, len(rows))
        row["actions"], row["action_reprs"] = row["actions"][:pages], row["action_reprs"][:pages]  # type: ignore[index]
        pages -= len(row["actions"])  # type: ignore[arg-type]
        ranks |= {step: own[step] for step in list(own)[: len(row["actions"])]}  # type: ignore[arg-type]
        rows.append(row)
    return rows, ranks


def write_rows(folder: str | Path, *, pages: int = 50, seed: int = 0) -> Path:
    """Write generated tasks as the data comes: `train/train_0.json`, `test_task/test_task_0.json`; and their ranks.

    Args:
        pages: how many pages there are in all tasks together.
    Returns:
        The path of `ranks.json`, in the folder.
    """
    rows, ranks = generate_rows(pages, seed)
    root = Path(folder)
    for name, chosen in (("train", rows[: -(-len(rows) * 2 // 3)]), ("test_task", rows[-(-len(rows) * 2 // 3) :])):
        (root / name).mkdir(parents=True, exist_ok=True)
        (root / name / f"{name}_0.json").write_text(json.dumps(chosen), encoding="utf-8")
    path = root / "ranks.json"
    path.write_text(json.dumps({"ranks": ranks}), encoding="utf-8")
    return path
