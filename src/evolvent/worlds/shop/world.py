"""The shop world: find and buy the product that an instruction describes, in the form of WebShop.

    WebShop [SEP] Instruction: [SEP] Find me quick drying, tag free rain jacket with color: teal, and price lower than
    60.00 dollars [SEP] Search
        search[quick drying tag free rain jacket]  ->  ... Page 1 (Total results: 50) [SEP] Next > [SEP] 0747817257 ...
        click[0747817257]  ->  ... size [SEP] small [SEP] ... [SEP] Buy Now        click[Features]  ->  ...
        click[< Prev]      ->  ...         click[teal]  ->  ...         click[Buy Now]  ->  Thank you ... [SEP] 1.0 ...

Task, actions, pages and reward are those of Yao et al. 2022 (https://arxiv.org/abs/2207.01206); the products are
generated. A kind of tasks is a kind of products with a form, which says how many attributes and which options are
wanted. Trained forms want two or three attributes; `evo` has other kinds of products than `seen`, `combo` the forms
that a kind is never trained with, `longer` four attributes.

The expert searches with words of the instruction, and reads prices, options and features before it buys.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import count
from typing import Any, NamedTuple

import numpy as np

from evolvent.errors import ConfigError, Problem, unknown_name_problem
from evolvent.trajectory import Score, Task, Value, canonical_json, sample_rng
from evolvent.worlds.base import TIERS, Grammar, Info, Plain, Reply, StateEnv, check_task, score_episode
from evolvent.worlds.crafting import words_of
from evolvent.worlds.panel import Candidate, DealtOnce, Panels, Sizes
from evolvent.worlds.shop.pages import (
    BACK_TO_SEARCH,
    BUY_NOW,
    NEXT_PAGE,
    PREVIOUS_PAGE,
    SEPARATOR,
    SUB_PAGES,
    Body,
    collect_page_texts,
    render_item,
    render_receipt,
    render_results,
    render_start,
    render_sub_page,
)
from evolvent.worlds.shop.products import (
    KINDS,
    Catalogue,
    Kind,
    Product,
    collect_texts,
    list_options,
    load_catalogue,
)
from evolvent.worlds.shop.rewards import Goal, compute_reward

__all__ = ["Scene", "Shop", "ShopEnv", "State", "list_kinds_by_tier", "solve"]

_ACTION = re.compile(r"\s*(search|click)\[(.+)\]", re.IGNORECASE | re.DOTALL)
_MAX_CACHED_PAGES, _MAX_CACHED_SCENES = 4096, 2048
_MAX_ATTRIBUTES = 4
_HORIZON = 15


class State(NamedTuple):
    """The state of an episode.

    Attributes:
        page: "search", "results", "item", "sub" or "done".
        query: of the last search.
        number: of the page of results.
        product: position of the opened product, -1 without one.
        options: the chosen options (key, value), in the order of their keys.
        sub_page: name of the opened sub page.
    """

    page: str = "search"
    query: str = ""
    number: int = 1
    product: int = -1
    options: tuple[tuple[str, str], ...] = ()
    sub_page: str = ""


class _Pages:
    """The pages of a catalogue, which all its tasks share."""

    def __init__(self, catalogue: Catalogue) -> None:
        self.catalogue = catalogue
        self.get_results = lru_cache(maxsize=_MAX_CACHED_PAGES)(self._render_results)
        self.get_item = lru_cache(maxsize=_MAX_CACHED_PAGES)(self._render_item)
        self.get_sub_page = lru_cache(maxsize=_MAX_CACHED_PAGES)(self._render_sub_page)

    def _render_results(self, query: str, number: int) -> Body:
        return render_results(self.catalogue.search(query), number)

    def _render_item(self, position: int) -> Body:
        return render_item(self.catalogue.products[position])

    def _render_sub_page(self, position: int, name: str) -> Body:
        return render_sub_page(self.catalogue.products[position], name)


class Scene:
    """The parts that all episodes of one task share.

    Args:
        kind: the wanted kind of products.
        goal: the goal.
        wording: number of the instruction's wording.
        pages: the pages of the catalogue.
    """

    def __init__(self, kind: Kind, goal: Goal, wording: int, *, pages: _Pages) -> None:
        self.goal, self.pages, self.catalogue = goal, pages, pages.catalogue
        self.instruction = _render_instruction(kind, goal, wording)
        self.start = render_start(self.instruction)
        self.prefix = f"Instruction:{SEPARATOR}{self.instruction}{SEPARATOR}"
        attributes = list(goal.attributes)
        queries = [" ".join((*attributes, kind.name)), kind.name, *attributes]
        self.searches = tuple(f"search[{query}]" for query in dict.fromkeys(queries))

    def get_body(self, state: State) -> Body | None:
        """Returns the page of a state without its instruction; None for the page with the search bar."""
        if state.page == "results":
            return self.pages.get_results(state.query, state.number)
        if state.page == "item":
            return self.pages.get_item(state.product)
        return self.pages.get_sub_page(state.product, state.sub_page) if state.page == "sub" else None

    def get_product(self, state: State) -> Product:
        """Returns the opened product."""
        return self.catalogue.products[state.product]


class ShopEnv(StateEnv[State]):
    """The environment of one instruction. It forks by keeping the state, a small tuple.

    `info` holds `admissible`, where searches are those with words of the instruction, and `instruction_text`; after a
    purchase also `details`, the parts of the reward. As in WebShop, any page takes a search, and what cannot be clicked
    leaves the page as it is.
    """

    def __init__(self, task: Task, scene: Scene) -> None:
        super().__init__(task, State())
        self._scene = scene

    def _observe_start(self) -> tuple[Value, Info]:
        return self._show(self._start)

    def _show(self, state: State) -> tuple[str, dict[str, object]]:
        scene, body = self._scene, self._scene.get_body(state)
        text = f"Instruction: {scene.instruction}"
        if body is None:
            return scene.start, {"admissible": scene.searches, "instruction_text": text}
        return scene.prefix + body.text, {"admissible": body.admissible, "instruction_text": text}

    def _transition(self, state: State, action: Value) -> tuple[State, Reply]:
        match = _ACTION.match(str(action))
        next_state = None
        if match is not None:
            argument = match[2].lower()
            if match[1].lower() == "click":
                next_state = self._click(state, argument)
            elif argument.strip():
                next_state = State("results", argument)
        if next_state is None:
            observation, info = self._show(state)
            return state, (observation, 0.0, False, False, {**info, "invalid": True})
        if next_state.page == "done":
            return next_state, self._buy(state)
        observation, info = self._show(next_state)
        return next_state, (observation, 0.0, False, False, info)

    def _click(self, state: State, target: str) -> State | None:
        """Returns the state after a click, or None if the page has no such button, link or option."""
        body = self._scene.get_body(state)
        if body is None or target not in body.targets:
            return None
        clicked = body.targets[target]
        if clicked == BACK_TO_SEARCH:
            return State()
        if clicked == PREVIOUS_PAGE:
            return _go_back(state)
        if state.page == "results":
            if clicked == NEXT_PAGE:
                return state._replace(number=state.number + 1)
            return state._replace(page="item", product=self._scene.catalogue.by_asin[clicked].number)
        if clicked == BUY_NOW:
            return state._replace(page="done")
        if clicked in SUB_PAGES:
            return state._replace(page="sub", sub_page=clicked)
        key = next(key for key, values in self._scene.get_product(state).options.items() if clicked in values)
        return state._replace(options=tuple(sorted({**dict(state.options), key: clicked}.items())))

    def _buy(self, state: State) -> Reply:
        scene, bought, options = self._scene, self._scene.get_product(state), dict(state.options)
        parts = compute_reward(bought, scene.goal, price=bought.price / 100, options=options)
        details = {
            "r_type": parts.type_reward,
            "num_attributes": parts.num_attributes,
            "num_options": parts.num_options,
            "is_price_ok": parts.is_price_ok,
        }
        info = {"admissible": (), "instruction_text": f"Instruction: {scene.instruction}", "details": details}
        return render_receipt(bought, options, parts), parts.total, True, False, info


def _go_back(state: State) -> State:
    if state.page == "sub":
        return state._replace(page="item", sub_page="")
    if state.page == "item":
        return State("results", state.query, state.number)
    return state._replace(number=state.number - 1)


_WORDINGS = (
    ("Find me {attributes} {kind}{options}", ", ", " with {0}: {1}", ", and {0}: {1}"),
    ("i am looking for {kind} that should be {attributes}{options}", " and ", ", in {0} {1}", " and {0} {1}"),
    ("i need {attributes} {kind}{options}", " and ", " in {0} {1}", " and {0} {1}"),
    ("i want to buy {kind}{options}, and it should be {attributes}", " and ", " of {0} {1}", " and {0} {1}"),
)


def _render_instruction(kind: Kind, goal: Goal, wording: int) -> str:
    """Returns an instruction, which ends as WebShop's do: `, and price lower than 60.00 dollars`."""
    template, separator, first_form, later_form = _WORDINGS[wording]
    forms = [first_form, *[later_form] * (len(goal.options) - 1)]
    options = "".join(form.format(*option) for form, option in zip(forms, goal.options.items(), strict=False))
    text = template.format(attributes=separator.join(goal.attributes), kind=kind.name, options=options)
    return f"{text}, and price lower than {goal.max_price:.2f} dollars"


def solve(task: Task, scene: Scene, horizon: int) -> tuple[tuple[str, ...], float]:
    """Returns actions that buy what the instruction asks for, chosen by what the pages show, and their reward."""
    shopper = _Shopper(task, scene, horizon)
    return shopper.shop(), shopper.reward


class _Shopper:
    """A buyer who plays an episode by its listed actions and reads its pages.

    Args:
        horizon: most steps; when they run out, the buyer takes the best product seen.
    """

    def __init__(self, task: Task, scene: Scene, horizon: int) -> None:
        self._env, self._goal, self._searches = ShopEnv(task, scene), scene.goal, scene.searches
        self._horizon = horizon
        self._actions: list[str] = []
        self._texts: list[str] = []
        self._legal: Sequence[str] = ()
        self._num_fits: dict[str, int] = {}
        self.reward = 0.0
        self._env.reset()

    @property
    def _steps_left(self) -> int:
        return self._horizon - len(self._actions)

    def _act(self, action: str) -> None:
        observation, self.reward, _, _, info = self._env.step(action)
        self._actions.append(action)
        self._legal = info["admissible"]
        self._texts = str(observation).split(SEPARATOR)
        if BACK_TO_SEARCH in self._texts:
            self._texts = self._texts[self._texts.index(BACK_TO_SEARCH) + 1 :]

    def shop(self) -> tuple[str, ...]:
        """Plays the episode; returns its actions."""
        num_last_steps = len(self._goal.options) + 1  # options and the purchase
        self._act(self._searches[0])
        while True:
            listed, offers = self._read_results()
            for asin in offers:
                if self._steps_left >= num_last_steps + 3 and self._examine(asin):
                    self._buy()
                    return tuple(self._actions)
            if self._steps_left < num_last_steps + 4 or f"click[{NEXT_PAGE}]" not in self._legal:
                break
            self._act(f"click[{NEXT_PAGE}]")
        best = max(offers or listed, key=lambda asin: self._num_fits.get(asin, 0), default="")
        if best:
            self._act(f"click[{best}]")
            self._buy()
        return tuple(self._actions)

    def _read_results(self) -> tuple[list[str], list[str]]:
        """Returns the numbers of the listed products, and of those that are of the kind and not too dear."""
        listed, offers = [], []
        for position, text in enumerate(self._texts):
            if f"click[{text}]" in self._legal and text not in (PREVIOUS_PAGE, NEXT_PAGE):
                title, price = self._texts[position + 1].lower(), float(self._texts[position + 2].removeprefix("$"))
                listed.append(text)
                if f" {self._goal.query}, " in title and price <= self._goal.max_price:
                    offers.append(text)
        return listed, offers

    def _examine(self, asin: str) -> bool:
        """Opens a product of a page of results and returns whether it fits; if it does not, goes back where it can."""
        goal = self._goal
        self._act(f"click[{asin}]")
        num_options = sum(f"click[{value}]" in self._legal for value in goal.options.values())
        page = " ".join(self._texts).lower()
        missing = [wish for wish in goal.attributes if wish not in page]
        if missing and num_options == len(goal.options):
            self._act("click[Features]")
            page = " ".join(self._texts).lower()
            self._act(f"click[{PREVIOUS_PAGE}]")
            missing = [wish for wish in missing if wish not in page]
            if missing and self._steps_left < len(goal.options) + 3:
                return True  # too late for another one
        if not missing and num_options == len(goal.options):
            return True
        self._num_fits[asin] = num_options + len(goal.attributes) - len(missing)
        self._act(f"click[{PREVIOUS_PAGE}]")
        return False

    def _buy(self) -> None:
        for value in self._goal.options.values():
            if f"click[{value}]" in self._legal:
                self._act(f"click[{value}]")
        self._act(f"click[{BUY_NOW}]")


class Form(NamedTuple):
    """The form of a task: how many attributes it asks for, and which of the two options of its kind."""

    num_attributes: int
    options: tuple[int, ...]


_FORMS = tuple(Form(number, options) for number in (2, 3) for options in ((0,), (1,), (0, 1)))
_LONG_FORMS = tuple(Form(_MAX_ATTRIBUTES, options) for options in ((0,), (1,), (0, 1)))


def list_kinds_by_tier() -> Mapping[str, tuple[tuple[str, Form], ...]]:
    """Returns the kinds of tasks of each tier: the name of a kind of products, and a form.

    Half of the kinds of products are `seen`, the others `evo`, every second one of a section. Two of the six trained
    forms are kept for `combo`, other ones for each kind, so that every form is trained.
    """
    kinds: dict[str, list[tuple[str, Form]]] = {tier: [] for tier in TIERS}
    for position, name in enumerate(KINDS):
        for number, form in enumerate(_FORMS):
            is_kept = (number + position // 2) % len(_FORMS) < 2
            kinds["combo" if is_kept else "evo" if position % 2 else "seen"].append((name, form))
        kinds["longer"] += [(name, form) for form in _LONG_FORMS]
    return {tier: tuple(pairs) for tier, pairs in kinds.items()}


def _draw_spec(products: Sequence[Product], form: Form, *, rng: np.random.Generator) -> dict[str, Any]:
    """Draws a task: wishes that one of the products meets, and a price limit above the price of that product."""
    target = products[int(rng.integers(len(products)))]
    attribute_positions = sorted(rng.permutation(len(target.attributes))[: form.num_attributes].tolist())
    keys = list(target.options)
    options = {
        keys[position]: target.options[keys[position]][int(rng.integers(len(target.options[keys[position]])))]
        for position in form.options
    }
    dollars, step = target.price // 100, 5 if target.price < _LOW_PRICE else 10
    max_price = step * (dollars // step + int(rng.integers(1, 3)))
    return {
        "kind": target.kind.name,
        "attributes": [target.attributes[position] for position in attribute_positions],
        "options": options,
        "max_price": max_price,
        "wording": int(rng.integers(len(_WORDINGS))),
    }


_LOW_PRICE = 3000  # cents; below it, limits are multiples of 5 dollars, above of 10


class Shop(DealtOnce):
    """The shop world.

    Args:
        sizes: the panel sizes.
        horizon: most actions of an episode. The published agents had 15 (ReAct) or 10 (AgentGym).
        seed: seed of the products. Another seed is another shop, and its name says so.

    Raises:
        ConfigError: a horizon below 1, or a seed below 0.
    """

    version = "1"
    grammar: Grammar = Plain()
    run_in_thread = False
    reward_range = (0.0, 1.0)
    tiers = TIERS
    instructions = (
        "You are web shopping. Buy the product that the instruction describes: with all attributes and options that it "
        "asks for, and for no more than its price. Actions: search[keywords], where a page has a search bar; "
        "click[value], with a button, a product number or an option of the page. Options must be clicked before Buy "
        "Now. An action that is not possible does nothing."
    )

    def __init__(self, *, sizes: Sizes | None = None, horizon: int = _HORIZON, seed: int = 0) -> None:
        problems = [] if horizon >= 1 else [Problem("horizon", f"got {horizon} steps, expected at least 1")]
        if seed < 0:
            problems.append(Problem("seed", f"got {seed}, expected at least 0"))
        if problems:
            raise ConfigError(problems)
        self.horizon, self.seed = horizon, seed
        self.name = f"shop-{seed}" if seed else "shop"
        self._get_scene = lru_cache(maxsize=_MAX_CACHED_SCENES)(self._build_scene)
        self._panels = Panels(
            self.name, self.version, self.tiers, sizes=sizes or Sizes(), draw=self._draw, recipe=self.recipe
        )

    @cached_property
    def _pages(self) -> _Pages:
        return _Pages(load_catalogue(self.seed))

    def _draw(self, tier: str) -> Iterator[Candidate]:
        """Yields tasks without end, of all kinds of the tier in turn: those that the expert solves in 15 steps."""
        kinds = list_kinds_by_tier()[tier]
        for number in count():
            rng = sample_rng("shop tasks", tier, number)
            for position in rng.permutation(len(kinds)).tolist():
                name, form = kinds[position]
                spec = _draw_spec(self._pages.catalogue.by_kind[name], form, rng=rng)
                keys = list(spec["options"])
                kind = f"{name}, {form.num_attributes} attributes, {' and '.join(keys)}"
                task = Task(self.name, self.version, spec, kind, tier)
                if solve(task, self._build_scene(task), _HORIZON)[1] == 1.0:
                    yield Candidate(spec, kind, tier, _spec_key(spec))

    def tasks(self, split: str, tier: str) -> Sequence[Task]:
        """Returns the task panel of a split and tier; raises ConfigError for an unknown name."""
        return self._panels.tasks(split, tier)

    def key(self, task: Task) -> str:
        """Returns a key that is equal for tasks that differ only in their wording."""
        return _spec_key(task.spec)

    def make(self, task: Task) -> ShopEnv:
        """Creates an Env for a task of this world.

        Raises:
            ConfigError: the task belongs to another world, or its spec is invalid.
            VersionMismatch: the task belongs to another version.
        """
        return ShopEnv(task, self._get_scene(task))

    def score(self, rewards: Sequence[float | None], info: Info) -> Score:
        """Scores an episode: raw = unit = the reward of the purchase, success = a reward of 1.

        Any reward of None makes the whole episode unscored.
        """
        return score_episode(rewards, self.reward_range)

    def expert(self, task: Task) -> Sequence[str]:
        """Returns the actions of a buyer who reads the pages.

        They solve every task of the panels where the horizon is 15 or more, and may buy something else under a shorter
        one.
        """
        return solve(task, self._get_scene(task), self.horizon)[0]

    def vocabulary(self) -> Sequence[str]:
        """Returns every word and mark of pages, instructions and listed actions, sorted."""
        catalogue = self._pages.catalogue
        shares = {f"{matches / wishes}" for wishes in range(2, _MAX_ATTRIBUTES + 4) for matches in range(wishes + 1)}
        template_texts = (text.replace("{0}", "").replace("{1}", "") for wording in _WORDINGS for text in wording)
        texts = (
            *collect_page_texts(),
            *collect_texts(),
            *(re.sub(r"{\w+}", "", text) for text in template_texts),
            *(product.asin for product in catalogue.products),
            *(product.price_tag for product in catalogue.products),
            *shares,
            self.instructions,
            "search[] click[] price lower than dollars and 00",
        )
        numbers = map(str, range(1000))
        return sorted({*numbers, *(word for text in texts for word in words_of(text))})

    def _build_scene(self, task: Task) -> Scene:
        kind, goal, wording = self._parse_spec(task)
        return Scene(kind, goal, wording, pages=self._pages)

    def _parse_spec(self, task: Task) -> tuple[Kind, Goal, int]:
        """Parses a task's spec; raises ConfigError with all its problems."""
        check_task(self, task)
        kind = KINDS.get(str(task.spec.get("kind")))
        if kind is None:
            raise ConfigError([unknown_name_problem("kind", str(task.spec.get("kind")), KINDS)])
        attributes: Any = task.spec.get("attributes")
        options: Any = task.spec.get("options")
        max_price: Any = task.spec.get("max_price")
        wording: Any = task.spec.get("wording")
        known_options = list_options(kind)
        problems = []
        is_list = isinstance(attributes, list | tuple) and all(wish in kind.attributes for wish in attributes)
        if not is_list or not attributes or len(set(attributes)) < len(attributes):
            problems.append(Problem("attributes", f"got {attributes!r}", f"give some of {', '.join(kind.attributes)}"))
        is_table = isinstance(options, Mapping) and set(options) <= set(known_options)
        if not is_table or any(value not in known_options[key] for key, value in options.items()):
            problems.append(Problem("options", f"got {options!r}", f"give values of {', '.join(known_options)}"))
        if type(max_price) not in (int, float) or not 0 < max_price < math.inf:
            problems.append(Problem("max_price", f"got {max_price!r}, expected dollars above 0"))
        if type(wording) is not int or not 0 <= wording < len(_WORDINGS):
            problems.append(Problem("wording", f"got {wording!r}, expected 0 to {len(_WORDINGS) - 1}"))
        if problems:
            raise ConfigError(problems)
        wishes = {key: options[key] for key in known_options if key in options}
        return kind, Goal(kind.name, kind.path, kind.nouns, tuple(attributes), wishes, float(max_price)), wording


def _spec_key(spec: Mapping[str, object]) -> str:
    return canonical_json({key: wish for key, wish in spec.items() if key != "wording"})
