"""Generated recorded tasks in the official format: pages of five kinds of sites, and the actions on them.

A task leads from a start page over a search form to a list of results. The pages have menus, banners, footers
and forms; every page numbers its elements anew. A tenth of the right elements is ranked behind the first five,
and some steps have two right elements, so that misses and impossible exact successes occur, as they do in the
data.
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
_LATE_RANK_PERIOD = 10  # one right element in so many is ranked behind the first five
_NUM_TOP_RANKS = 5


@dataclass(frozen=True, slots=True)
class Site:
    """A kind of site.

    Args:
        domain, subdomain, names: the site of a recorded task.
        section: the link on the start page that leads to the form.
        field_label, texts: the label of the text field, and the possible entries.
        choice_label, options: the label of the choice, and its options.
        submit_label: the button that sends the form.
        listed_items, item_button: the listed items, and the button beside each.
        task_template: the task, with {text}, {option} and {thing}.
    """

    domain: str
    subdomain: str
    names: tuple[str, ...]
    section: str
    field_label: str
    texts: tuple[str, ...]
    choice_label: str
    options: tuple[str, ...]
    submit_label: str
    listed_items: tuple[str, ...]
    item_button: str
    task_template: str


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
    """An element of a page under construction.

    Args:
        mark: "target" or "also" for right elements.
    """

    tag: str
    attributes: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    children: tuple[_Node | str, ...] = ()
    mark: str = ""


def _make_node(tag: str, *children: _Node | str, mark: str = "", **attributes: str) -> _Node:
    return _Node(tag, {name.rstrip("_").replace("_", "-"): value for name, value in attributes.items()}, children, mark)


@dataclass(frozen=True, slots=True)
class _Action:
    """An action before its page is built: the operation on the marked element, and its description."""

    operation: str
    value: str
    description: str
    thought: str
    body: tuple[_Node, ...]


def _make_link(text: str, mark: str = "") -> _Node:
    return _make_node("li", _make_node("a", text, href="#", mark=mark))


def _build_start(draw: Draw, site: Site) -> _Action:
    other_sections = [
        other_site.section for other_site in draw.sample(2, [candidate for candidate in SITES if candidate is not site])
    ]
    links = [*map(_make_link, other_sections)]
    links.insert(draw.below(3), _make_link(site.section, "target"))
    body = (
        _make_node(
            "main", _make_node("h1", f"welcome to our {site.domain} pages"), _make_node("ul", *links, class_="tiles")
        ),
    )
    thought = f"this is the start page . next i have to open {site.section}"
    return _Action("CLICK", "", f"[link] {site.section} -> CLICK", thought, body)


def _build_form(site: Site, text: str, option: str, *, form_step: int) -> _Action:
    """Builds the search form, with the entries made before the step `form_step`: 0 type, 1 choose, 2 send."""
    typed = {"value": text} if form_step > 0 else {}
    options = [
        _make_node(
            "option", option_text, **({"option_selected": "true"} if form_step > 1 and option_text == option else {})
        )
        for option_text in site.options
    ]
    button_mark = "target" if form_step == 2 else ""
    button = _make_node(
        "button",
        _make_node("span", site.submit_label, mark="also" if button_mark else ""),
        type="submit",
        mark=button_mark,
    )
    form = _make_node(
        "form",
        _make_node("label", site.field_label),
        _make_node("input", type="text", placeholder=site.field_label, mark="" if form_step else "target", **typed),
        _make_node("label", site.choice_label),
        _make_node("select", *options, name=site.choice_label, mark="target" if form_step == 1 else ""),
        button,
        role="search",
    )
    body = (
        _make_node(
            "main",
            _make_node("h1", site.section),
            form,
            _make_node("p", f"tell us {site.field_label} and {site.choice_label}"),
        ),
    )
    if form_step == 0:
        thought = f"{site.field_label} is still empty . next i have to type {text}"
        return _Action("TYPE", text, f"[textbox] {site.field_label} -> TYPE: {text}", thought, body)
    if form_step == 1:
        thought = f"{site.choice_label} is not chosen yet . next i have to select {option}"
        return _Action("SELECT", option, f"[combobox] {site.choice_label} -> SELECT: {option}", thought, body)
    thought = f"the form is filled in . next i have to press {site.submit_label}"
    return _Action("CLICK", "", f"[button] {site.submit_label} -> CLICK", thought, body)


def _build_results(draw: Draw, site: Site, target_item: str) -> _Action:
    rows = [
        _make_node(
            "article",
            _make_node("h2", listed_item),
            _make_node("p", f"{draw.between(5, 99)} euro"),
            _make_node(
                "button", site.item_button, title=listed_item, mark="target" if listed_item == target_item else ""
            ),
        )
        for listed_item in draw.sample(len(site.listed_items), site.listed_items)
    ]
    body = (
        _make_node("main", _make_node("h1", f"{len(rows)} results"), _make_node("section", *rows, class_="results")),
    )
    thought = (
        f"the results are shown and {target_item} is one of them . next i have to press {site.item_button} beside it"
    )
    return _Action("CLICK", "", f"[button] {site.item_button} -> CLICK", thought, body)


def _build_page(draw: Draw, site: str, body: Sequence[_Node]) -> _Node:
    """Builds the whole page: a menu, a banner, the body and a footer."""
    banner = draw.choice(_BANNERS)
    return _make_node(
        "html",
        _make_node("head", _make_node("title", site)),
        _make_node(
            "body",
            _make_node(
                "header",
                _make_node("a", site, href="#"),
                _make_node("ul", *map(_make_link, draw.sample(4, _MENU)), role="menu"),
            ),
            _make_node(
                "div",
                _make_node("div", _make_node("p", banner), _make_node("button", "close", aria_label=f"close {banner}")),
            ),
            *body,
            _make_node("footer", _make_node("ul", *map(_make_link, draw.sample(3, _FOOTER)))),
        ),
    )


_ACTIVE_TAGS = frozenset({"a", "button", "input", "select"})
_VOID_TAGS = frozenset({"input"})


def _draw_ids(draw: Draw, page: _Node) -> dict[int, int]:
    """Draws index of an element in the page -> its id; the ids grow by 1 to 3."""
    number, ids = draw.between(2, 40), {}
    for index, _ in enumerate(_walk(page)):
        ids[index] = number
        number += draw.between(1, 3)
    return ids


def _walk(node: _Node) -> Iterator[_Node]:
    yield node
    for inner in node.children:
        if isinstance(inner, _Node):
            yield from _walk(inner)


def _render_html(page: _Node, ids: Mapping[int, int], *, uid: str) -> str:
    """Renders the page as HTML. With a `uid`, as in a browser: the target is marked; else cleaned."""
    indices = iter(range(len(ids)))

    def render_node(node: _Node) -> str:
        attributes = {**node.attributes, "backend_node_id": str(ids[next(indices)])}
        if uid and node.mark == "target":
            attributes["data_pw_testid_buckeye"] = uid
        attributes_text = "".join(f' {name}="{html.escape(value)}"' for name, value in attributes.items())
        if node.tag in _VOID_TAGS:
            return f"<{node.tag}{attributes_text}/>"
        children_html = "".join(
            render_node(child) if isinstance(child, _Node) else render_text(child) for child in node.children
        )
        return f"<{node.tag}{attributes_text}>{children_html}</{node.tag}>"

    def render_text(text: str) -> str:
        return html.escape(text) if uid else f"<text>{html.escape(text)}</text>"

    return render_node(page)


def _draw_ranks(draw: Draw, ids: Sequence[str], target: str) -> dict[str, int]:
    """Draws a ranking in which the target is among the first five, except one time in ten."""
    other_ids = draw.sample(len(ids) - 1, [element_id for element_id in ids if element_id != target])
    is_late = len(other_ids) >= _NUM_TOP_RANKS and not draw.below(_LATE_RANK_PERIOD)
    target_rank = draw.between(_NUM_TOP_RANKS, len(other_ids)) if is_late else draw.below(min(_NUM_TOP_RANKS, len(ids)))
    return {
        element_id: rank for rank, element_id in enumerate([*other_ids[:target_rank], target, *other_ids[target_rank:]])
    }


def _record_action(draw: Draw, action: _Action, *, site: str, uid: str) -> tuple[dict[str, Json], dict[str, int]]:
    """Returns an action in the official format, and the ranks of its candidates."""
    page = _build_page(draw, site, action.body)
    ids = _draw_ids(draw, page)
    nodes = list(enumerate(_walk(page)))
    rows: dict[str, list[dict[str, Json]]] = {"pos": [], "neg": []}
    for mark in ("target", "also", ""):
        for index, node in nodes:
            if node.mark == mark and (mark or node.tag in _ACTIVE_TAGS):
                attributes: dict[str, Any] = {**node.attributes, "backend_node_id": str(ids[index])}
                rows["pos" if mark else "neg"].append(
                    {
                        "tag": node.tag,
                        "attributes": json.dumps(attributes),
                        "backend_node_id": str(ids[index]),
                        **(
                            dict.fromkeys(("is_original_target", "is_top_level_target"), mark == "target")
                            if mark
                            else {}
                        ),
                    }
                )
    ranks = _draw_ranks(
        draw,
        [str(row["backend_node_id"]) for row in (*rows["pos"], *rows["neg"])],
        str(rows["pos"][0]["backend_node_id"]),
    )
    return {
        "action_uid": uid,
        "raw_html": _render_html(page, ids, uid=uid),
        "cleaned_html": _render_html(page, ids, uid=""),
        "operation": {"original_op": action.operation, "op": action.operation, "value": action.value},
        "pos_candidates": [*rows["pos"]],
        "neg_candidates": [*rows["neg"]],
        "thought": action.thought,
    }, ranks


def generate_row(seed: int, number: int) -> tuple[dict[str, Json], dict[str, dict[str, int]]]:
    """Generates a task of three to five pages in the official format, and the ranks of its steps.

    Args:
        seed, number: identify the task, which depends on nothing else.
    """
    draw = Draw("evolvent web replay 1", seed, number)
    site = SITES[number % len(SITES)]
    name, text, option, target_item = (
        draw.choice(pool) for pool in (site.names, site.texts, site.options, site.listed_items)
    )
    form_actions = [_build_form(site, text, option, form_step=form_step) for form_step in range(3)]
    length = draw.between(3, 5)
    actions = [
        *([_build_start(draw, site)] if length == 5 else []),
        *form_actions,
        *([_build_results(draw, site, target_item)] if length > 3 else []),
    ]
    annotation = f"{seed}-{number}"
    rows, ranks = [], {}
    for index, action in enumerate(actions):
        uid = f"{annotation}-{index}"
        row, ranks[f"{annotation}_{uid}"] = _record_action(draw, action, site=name, uid=uid)
        rows.append(row)
    task_template = (
        site.task_template
        if length > 3
        else "look for " + f"{site.field_label} {{text}} and {site.choice_label} {{option}}"
    )
    return {
        "annotation_id": annotation,
        "website": name,
        "domain": site.domain,
        "subdomain": site.subdomain,
        "confirmed_task": task_template.format(text=text, option=option, thing=target_item),
        "action_reprs": [action.description for action in actions],
        "actions": [*rows],
    }, ranks


def generate_rows(pages: int, seed: int) -> tuple[list[dict[str, Json]], dict[str, dict[str, int]]]:
    """Generates tasks with `pages` pages together (the last task is cut short if necessary), and all their ranks."""
    rows: list[dict[str, Json]] = []
    ranks: dict[str, dict[str, int]] = {}
    while pages > 0:
        row, row_ranks = generate_row(seed, len(rows))
        row["actions"], row["action_reprs"] = row["actions"][:pages], row["action_reprs"][:pages]  # type: ignore[index]
        pages -= len(row["actions"])  # type: ignore[arg-type]
        ranks |= {step: row_ranks[step] for step in list(row_ranks)[: len(row["actions"])]}  # type: ignore[arg-type]
        rows.append(row)
    return rows, ranks


def write_rows(folder: str | Path, *, pages: int = 50, seed: int = 0) -> Path:
    """Writes generated tasks in the layout of the data: `train/train_0.json`, `test_task/test_task_0.json`; and their
    ranks.

    Args:
        pages: number of pages of all tasks together.
    Returns:
        The path of `ranks.json`, in the folder.
    """
    rows, ranks = generate_rows(pages, seed)
    root = Path(folder)
    for name, split_rows in (("train", rows[: -(-len(rows) * 2 // 3)]), ("test_task", rows[-(-len(rows) * 2 // 3) :])):
        (root / name).mkdir(parents=True, exist_ok=True)
        (root / name / f"{name}_0.json").write_text(json.dumps(split_rows), encoding="utf-8")
    path = root / "ranks.json"
    path.write_text(json.dumps({"ranks": ranks}), encoding="utf-8")
    return path
