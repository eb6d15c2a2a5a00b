"""A browser of text over the sites: tabs, history, fields, scrolling, WebArena's actions, and the environment.

    OBSERVATION:
    Tab 0 (current): Search results - One Market | Tab 1: Open Forum

    [211] RootWebArea 'Search results - One Market' focused: True
        [212] link 'My Account'
        ...
    URL: http://market.com/search?q=rain+jacket
    OBJECTIVE: What is the price of ...?
    PREVIOUS ACTION: click [57] where [57] is button 'Search'

The actions are those of WebArena's id grammar. Each load of a page gives new ids; they stay as long as the page stays.
Only the part of a page in view is shown, and only what is shown can be acted on.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from evolvent.errors import InvalidAction
from evolvent.trajectory import Task, Value, sample_seed
from evolvent.worlds.base import Info, Reply, StateEnv
from evolvent.worlds.site.database import Database
from evolvent.worlds.site.evaluators import NOT_AVAILABLE, Evaluation, is_accepted
from evolvent.worlds.site.nodes import Node, Outcome, Page
from evolvent.worlds.site.records import Change, View, load_view
from evolvent.worlds.site.router import BLANK, HOMEPAGE, normalize_url, render_page, run_command

__all__ = ["Action", "Scene", "SiteEnv", "State", "Tab", "parse_action"]

_MAX_TABS, _MAX_TEXT, _MAX_FIRST_ID = 10, 2000, 900
_PATTERNS = {
    "click": re.compile(r"click ?\[(\d{1,9})\]"),
    "hover": re.compile(r"hover ?\[(\d{1,9})\]"),
    "type": re.compile(r"type ?\[(\d{1,9})\] ?\[(.+)\] ?\[([01])\]", re.DOTALL),
    "press": re.compile(r"press ?\[(.+)\]"),
    "scroll": re.compile(r"scroll ?\[?(?:direction=)?(up|down)\]?"),
    "goto": re.compile(r"goto ?\[(.+)\]"),
    "tab_focus": re.compile(r"tab_focus ?\[(\d{1,9})\]"),
    "new_tab": re.compile(r"new_tab"),
    "close_tab": re.compile(r"close_tab"),
    "go_back": re.compile(r"go_back"),
    "go_forward": re.compile(r"go_forward"),
    "stop": re.compile(r"stop(?: ?\[(.*)\])?", re.DOTALL),
}
"""The actions; as in WebArena, text around an action's arguments is not read."""


class Action(NamedTuple):
    """A parsed action: its name and arguments, all as texts."""

    name: str
    arguments: tuple[str, ...]


def parse_action(text: str) -> Action:
    """Parses an action of WebArena's id grammar.

    >>> parse_action("type [12] [red hat]")
    Action(name='type', arguments=('12', 'red hat', '1'))

    Raises:
        InvalidAction: the text is not an action.
    """
    action_text = text.strip()
    name = action_text.split("[")[0].strip() if "[" in action_text else (action_text.split() or [""])[0]
    pattern = _PATTERNS.get(name)
    if name == "type" and not action_text.endswith(("[0]", "[1]")):
        action_text += " [1]"
    match = pattern.match(action_text) if pattern is not None else None
    if match is None:
        raise InvalidAction(f"invalid action {text[:80]!r}", value=text, expected="click [id], stop [answer], ...")
    return Action(name, tuple(group or "" for group in match.groups()))


class Tab(NamedTuple):
    """A tab.

    Attributes:
        history: the addresses, oldest first.
        position: of the address that is open.
        first_id: id of the root of the page.
        fields: the texts of fields (name, text), in the order of their names.
        focus: the position of the node with the focus, 0 for the root.
        scroll: how often the page is scrolled down.
        notice: message of the last command.
    """

    history: tuple[str, ...]
    position: int = 0
    first_id: int = 1
    fields: tuple[tuple[str, str], ...] = ()
    focus: int = 0
    scroll: int = 0
    notice: str = ""

    @property
    def url(self) -> str:
        """Returns the address that is open."""
        return self.history[self.position]


class State(NamedTuple):
    """The state of an episode.

    Attributes:
        tabs: the tabs.
        current: position of the tab that is shown.
        next_id: the id that the next loaded page begins with.
        changes: the changes to the database.
        previous: description of the last action.
    """

    tabs: tuple[Tab, ...]
    current: int = 0
    next_id: int = 1
    changes: tuple[Change, ...] = ()
    previous: str = "None"

    @property
    def tab(self) -> Tab:
        """Returns the tab that is shown."""
        return self.tabs[self.current]

    def with_tab(self, tab: Tab) -> State:
        """Returns the state with another tab in place of the shown one."""
        return self._replace(tabs=(*self.tabs[: self.current], tab, *self.tabs[self.current + 1 :]))


@dataclass(frozen=True)
class Scene:
    """The parts that all episodes of one task share.

    Args:
        objective: the task in words.
        evaluation: its evaluators.
        start_url: the page where it begins.
        database: the shared rows.
        texts: texts that the listed actions type.
        sites: WebArena's names of the sites that the task needs.
    """

    objective: str
    evaluation: Evaluation
    start_url: str
    database: Database
    texts: tuple[str, ...] = ()
    sites: tuple[str, ...] = ()


class _Impossible(Exception):
    """An action that cannot be carried out here; the text tells the agent so."""


class SiteEnv(StateEnv[State]):
    """The environment of one task. It forks by keeping the state: tabs and the changes made, not the rows.

    `info` holds `admissible`: clicks on what is in view, the task's texts for each field in view (with Enter where it
    sends the field), the actions of the browser, and answers with a text in view.
    The reward is 1 for `stop` if the evaluators accept, else 0.
    """

    def __init__(self, task: Task, scene: Scene) -> None:
        first_id = 1 + sample_seed("site ids", task.id) % _MAX_FIRST_ID
        start = State((Tab((scene.start_url,), first_id=first_id),), next_id=first_id)
        self._scene = scene
        super().__init__(task, self._load(start, start.tab))

    # --------------------------------------------------------------- reading

    @property
    def view(self) -> View:
        """Returns the rows as they are now."""
        return load_view(self._scene.database, self._state.changes)

    @property
    def tab(self) -> Tab:
        """Returns the tab that is shown."""
        return self._state.tab

    @property
    def page(self) -> Page:
        """Returns the page that is shown, all of it."""
        return self._get_page(self._state, self._state.tab)

    def _get_page(self, state: State, tab: Tab) -> Page:
        return render_page(load_view(self._scene.database, state.changes), tab.url)

    def _observe_start(self) -> tuple[Value, Info]:
        observation, info = self._show(self._start, self._start.previous)
        return observation, {**info, "sites": list(self._scene.sites)}

    def _show(self, state: State, previous: str) -> tuple[str, dict[str, object]]:
        """Returns the observation of a state, and the info with the listed actions."""
        tab, scene = state.tab, self._scene
        page = self._get_page(state, tab)
        titles = [
            f"Tab {position}{' (current)' if position == state.current else ''}: {self._get_page(state, one_tab).title}"
            for position, one_tab in enumerate(state.tabs)
        ]
        lines = [f"[{tab.first_id}] {page.heads[0]}{'' if tab.focus else ' focused: True'}"]
        if tab.notice:
            lines.append(f"\t[{tab.first_id + page.num_ids}] alert {tab.notice!r}")
        fields = dict(tab.fields)
        actions: list[str] = []
        texts = [notice for notice in (tab.notice,) if notice]
        for position in page.get_window(tab.scroll):
            node, node_id = page.nodes[position], tab.first_id + page.offsets[position]
            if node.field:
                lines.append(self._format_field(page, position, node_id=node_id, fields=fields, focus=tab.focus))
                actions.append(f"click [{node_id}]")
                if node.role == "radio":
                    continue
                if node.field in fields:
                    lines.append(f"{chr(9) * (node.depth + 1)}[{node_id + 1}] StaticText {fields[node.field]!r}")
                enter = int(bool(node.command))
                actions += [f"type [{node_id}] [{text}] [{enter}]" for text in scene.texts]
                continue
            lines.append(f"{chr(9) * node.depth}[{node_id}] {page.heads[position]}")
            if node.href or node.command:
                actions.append(f"click [{node_id}]")
            if node.role == "StaticText" or node.key:
                texts.append(node.name)
        actions += self._list_browser_actions(state, page)
        actions += [f"stop [{text}]" for text in dict.fromkeys(texts)]
        observation = (
            f"OBSERVATION:\n{' | '.join(titles)}\n\n" + "\n".join(lines) + f"\nURL: {tab.url}\n"
            f"OBJECTIVE: {scene.objective}\nPREVIOUS ACTION: {previous}"
        )
        return observation, {"admissible": tuple(actions)}

    @staticmethod
    def _format_field(page: Page, position: int, *, node_id: int, fields: Mapping[str, str], focus: int) -> str:
        node = page.nodes[position]
        focused = " focused: True" if focus == position else ""
        properties = node.properties
        if node.role == "radio":
            properties = f"checked: {'true' if fields.get(node.field) == node.name else 'false'}"
        return f"{chr(9) * node.depth}[{node_id}] {node.role} {node.name!r}{focused} {properties}"

    @staticmethod
    def _list_browser_actions(state: State, page: Page) -> list[str]:
        tab = state.tab
        actions = ["scroll [down]"] if tab.scroll < page.max_scroll else []
        actions += ["scroll [up]"] if tab.scroll else []
        actions += ["go_back"] if tab.position else []
        actions += ["go_forward"] if tab.position + 1 < len(tab.history) else []
        actions += ["new_tab"] if len(state.tabs) < _MAX_TABS else []
        if len(state.tabs) > 1:
            actions.append("close_tab")
            actions += [f"tab_focus [{other}]" for other in range(len(state.tabs)) if other != state.current]
        return [*actions, f"goto [http://{HOMEPAGE}]", "stop []", f"stop [{NOT_AVAILABLE}]"]

    # ---------------------------------------------------------------- acting

    def _transition(self, state: State, action: Value) -> tuple[State, Reply]:
        try:
            parsed = parse_action(str(action))
            if parsed.name == "stop":
                return self._stop(state, parsed.arguments[0])
            next_state = self._act(state, parsed)
        except InvalidAction:
            message = (
                f'The previous prediction you issued was "{str(action)[:_MAX_TEXT]}". However, the format was '
                "incorrect. Ensure that the arguments are enclosed within [] as follows: action [arg] ..."
            )
            return state, self._refuse(state, message)
        except _Impossible as problem:
            return state, self._refuse(state, str(problem))
        observation, info = self._show(next_state, next_state.previous)
        return next_state, (observation, 0.0, False, False, info)

    def _refuse(self, state: State, message: str) -> Reply:
        observation, info = self._show(state, message)
        return observation, 0.0, False, False, {**info, "invalid": True}

    def _stop(self, state: State, answer: str) -> tuple[State, Reply]:
        view = load_view(self._scene.database, state.changes)
        is_solved = is_accepted(self._scene.evaluation, answer=answer, url=state.tab.url, view=view)
        last_state = state._replace(previous=f"stop [{answer[:_MAX_TEXT]}]")
        observation, _ = self._show(last_state, last_state.previous)
        return last_state, (observation, float(is_solved), True, False, {"admissible": ()})

    def _act(self, state: State, action: Action) -> State:
        """Returns the state after an action; raises _Impossible if it cannot be carried out."""
        name, arguments = action
        if name in ("click", "hover", "type"):
            return self._act_on_node(state, action)
        handler: Callable[[State, str], State] = getattr(self, f"_{name}")
        argument = arguments[0][:_MAX_TEXT] if arguments else ""
        shown = f"page_focus [{argument}]" if name == "tab_focus" else f"{name} [{argument}]" if arguments else name
        return handler(state, argument)._replace(previous=shown)

    def _act_on_node(self, state: State, action: Action) -> State:
        tab, node_id = state.tab, int(action.arguments[0])
        page = self._get_page(state, tab)
        position = page.by_offset.get(node_id - tab.first_id, -1)
        if position != 0 and position not in page.get_window(tab.scroll):
            raise _Impossible(
                f'Attempt to perform "{action.name}" on element "[{node_id}]" but no matching element found. Please '
                "check the observation more carefully."
            )
        node = page.nodes[position]
        where = f"where [{node_id}] is {page.heads[position]}"
        if action.name == "hover":
            return state._replace(previous=f"hover [{node_id}] {where}")
        if action.name == "type":
            text, has_enter = action.arguments[1][:_MAX_TEXT], action.arguments[2] == "1"
            if not node.field or node.role == "radio":
                raise _Impossible(
                    f'Attempt to perform "type" on element "[{node_id}]", which takes no text. Please check the '
                    "observation more carefully."
                )
            next_state = self._type(state, node, position, text=text)
            next_state = self._press_enter(next_state, page) if has_enter else next_state
            return next_state._replace(previous=f"type [{node_id}] [{text}{' ' if has_enter else ''}] {where}")
        return self._click(state, node, position)._replace(previous=f"click [{node_id}] {where}")

    def _click(self, state: State, node: Node, position: int) -> State:
        if node.href:
            return self._visit(state, node.href)
        if node.role == "button":
            return self._run(state, node)
        if node.role == "radio":
            return self._type(state, node, position, text=node.name)
        return state.with_tab(state.tab._replace(focus=position)) if node.field else state

    @staticmethod
    def _type(state: State, node: Node, position: int, *, text: str) -> State:
        """Returns the state with a text in a field; it replaces the text that was there."""
        fields = {**dict(state.tab.fields), node.field: text}
        return state.with_tab(state.tab._replace(fields=tuple(sorted(fields.items())), focus=position))

    def _press_enter(self, state: State, page: Page) -> State:
        node = page.nodes[state.tab.focus]
        return self._run(state, node) if node.command and node.field else state

    def _run(self, state: State, node: Node) -> State:
        tab, view = state.tab, load_view(self._scene.database, state.changes)
        outcome: Outcome = run_command(view, tab.url, node.command, tab.fields)
        if not outcome.url and not outcome.change:
            return state.with_tab(tab._replace(notice=outcome.notice)) if outcome.notice else state
        changes = (*state.changes, outcome.change) if outcome.change else state.changes
        return self._visit(state._replace(changes=changes), outcome.url or tab.url, notice=outcome.notice)

    def _visit(self, state: State, url: str, *, notice: str = "") -> State:
        """Returns the state after an address was loaded in the shown tab."""
        tab = state.tab
        history = tab.history[: tab.position + 1]
        if url != tab.url:
            history = (*history, url)
        return self._load(state, Tab(history, len(history) - 1, notice=notice))

    def _load(self, state: State, tab: Tab) -> State:
        """Returns the state with a tab whose page is loaded and has new ids."""
        num_ids = self._get_page(state, tab).num_ids
        return state.with_tab(tab._replace(first_id=state.next_id))._replace(next_id=state.next_id + num_ids + 1)

    def _press(self, state: State, keys: str) -> State:
        if keys.strip().lower() == "enter":
            return self._press_enter(state, self._get_page(state, state.tab))
        return state

    def _scroll(self, state: State, direction: str) -> State:
        tab, max_scroll = state.tab, self._get_page(state, state.tab).max_scroll
        scroll = min(max_scroll, tab.scroll + 1) if direction == "down" else max(0, tab.scroll - 1)
        return state.with_tab(tab._replace(scroll=scroll))

    def _goto(self, state: State, url: str) -> State:
        return self._visit(state, normalize_url(url))

    def _go_back(self, state: State, _: str) -> State:
        tab = state.tab
        return self._load(state, Tab(tab.history, tab.position - 1)) if tab.position else state

    def _go_forward(self, state: State, _: str) -> State:
        tab = state.tab
        is_last = tab.position + 1 == len(tab.history)
        return state if is_last else self._load(state, Tab(tab.history, tab.position + 1))

    def _new_tab(self, state: State, _: str) -> State:
        if len(state.tabs) >= _MAX_TABS:
            raise _Impossible(f"There are {_MAX_TABS} tabs already. Close one of them first.")
        opened = state._replace(tabs=(*state.tabs, Tab((BLANK,))), current=len(state.tabs))
        return self._load(opened, opened.tab)

    def _tab_focus(self, state: State, number: str) -> State:
        if int(number) >= len(state.tabs):
            raise _Impossible(f"Tab {number} does not exist. Please check the observation more carefully.")
        return state._replace(current=int(number))

    def _close_tab(self, state: State, _: str) -> State:
        rest = (*state.tabs[: state.current], *state.tabs[state.current + 1 :])
        if rest:
            return state._replace(tabs=rest, current=len(rest) - 1)
        blank = state._replace(tabs=(Tab((BLANK,)),), current=0)
        return self._load(blank, blank.tab)
