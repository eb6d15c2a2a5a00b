"""The database behind the three sites, generated from a seed: people, a shop, a forum and a project tracker.

The same people review products, write posts and work on issues. The products are those of the world `shop`, three of
each kind. Within a category all prices differ, within a board all days, votes and numbers of comments, so that "the
cheapest one" or "the newest one" names one row. Rows are frozen; what an episode changes is kept apart (`records`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import lru_cache

import numpy as np

from evolvent.trajectory import sample_rng
from evolvent.worlds.shop.products import load_catalogue

__all__ = [
    "SHIPPING",
    "TODAY",
    "USER",
    "Comment",
    "Database",
    "Issue",
    "MergeRequest",
    "Order",
    "Person",
    "Post",
    "Product",
    "Project",
    "Review",
    "format_day",
    "format_price",
    "load_database",
]

TODAY = date(2025, 6, 30).toordinal()
SHIPPING = 500  # cents of every order
_NUM_PRODUCTS = 3  # of a kind
_NUM_POSTS, _NUM_ISSUES, _NUM_MERGE_REQUESTS, _NUM_ORDERS = 12, 16, 8, 40


def _split_words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


_MONTHS = _split_words("January February March April May June July August September October November December")
"""The months in English, whatever the locale."""


@dataclass(frozen=True, slots=True)
class Person:
    """A person with an account on all sites."""

    username: str
    name: str


@dataclass(frozen=True, slots=True)
class Review:
    """A review of a product; `day` counts as `date.toordinal` does."""

    author: str
    stars: int
    title: str
    text: str
    day: int


@dataclass(frozen=True, slots=True)
class Product:
    """A product; its price is in cents, its reviews are in the order of their days."""

    sku: str
    title: str
    category: str
    section: str
    price: int
    reviews: tuple[Review, ...]


@dataclass(frozen=True, slots=True)
class Order:
    """An order of the user: its lines are (sku, quantity)."""

    number: int
    day: int
    status: str
    lines: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Comment:
    """A comment on a post, an issue or a merge request; the author is a username."""

    author: str
    text: str


@dataclass(frozen=True, slots=True)
class Post:
    """A post on a board of the forum."""

    number: int
    board: str
    title: str
    author: str
    body: str
    day: int
    votes: int
    comments: tuple[Comment, ...]


@dataclass(frozen=True, slots=True)
class Project:
    """A project of the tracker; members are usernames."""

    path: str
    description: str
    stars: int
    labels: tuple[str, ...]
    members: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Issue:
    """An issue of a project; the assignee is "" where there is none."""

    project: str
    number: int
    title: str
    author: str
    description: str
    day: int
    state: str
    assignee: str
    labels: tuple[str, ...]
    comments: tuple[Comment, ...]


@dataclass(frozen=True, slots=True)
class MergeRequest:
    """A merge request of a project; the reviewer is "" where there is none."""

    project: str
    number: int
    title: str
    author: str
    day: int
    state: str
    branch: str
    reviewer: str
    comments: tuple[Comment, ...]


USER = Person("mara_quint", "Mara Quint")
_FIRST = _split_words(
    "Ada Bruno Clara Dario Edith Felix Greta Hugo Iris Jonas Kira Leon Mila Nils Olga Pavel Rosa Sven Tilda Umar "
    "Vera Wanda Yara Zeno Alma Boris Celia Dora Emil Fiona"
)
_LAST = _split_words(
    "Abbott Becker Castell Dorn Eklund Farrow Grant Holm Ibarra Jansen Kovac Lindt Moreau Novak Osman Price Quist "
    "Rossi Stone Thorne Ulrich Vance Weber Young Zeller Archer Bloom Curtis Drake Ellis"
)
_REVIEW_TITLES = (
    "Does the job",
    "Better than expected",
    "Not for me",
    "A good gift",
    "Broke within a week",
    "Great value",
    "Looks as in the picture",
    "Would buy again",
)
_REVIEW_TEXTS = (
    "It arrived on time and we use it every day.",
    "The color is a little darker than I thought.",
    "My sister asked me where I found it.",
    "It feels cheap and I sent it back.",
    "Three months later it still works as on the first day.",
    "The size runs small, so choose a larger one.",
)
_BOARDS: Mapping[str, tuple[str, ...]] = {
    "gardening": ("tomato seedlings", "a raised bed", "rain barrels", "pruning shears", "indoor herbs", "compost bins"),
    "cooking": ("a cast iron pan", "sourdough bread", "pickled onions", "a rice cooker", "bone broth", "fresh pasta"),
    "cycling": ("winter tires", "a cargo bike", "hydraulic brakes", "long climbs", "bike lights", "a new saddle"),
    "astronomy": ("a first telescope", "the lunar eclipse", "star charts", "dark sky sites", "binoculars", "comets"),
    "boardgames": ("cooperative games", "a travel edition", "worn cards", "solo rules", "party games", "wooden pieces"),
    "photography": ("prime lenses", "night portraits", "film scans", "a light tripod", "street scenes", "raw files"),
    "running": ("trail shoes", "a first marathon", "hill repeats", "knee pain", "early mornings", "race nutrition"),
    "diy": ("a workbench", "drywall repair", "a table saw", "leaking taps", "old floorboards", "paint stripping"),
    "books": ("long novels", "a reading journal", "audiobooks", "used bookshops", "translated poetry", "book clubs"),
    "travel": ("night trains", "a small backpack", "island ferries", "slow travel", "house swaps", "travel insurance"),
    "music": ("a home studio", "vinyl storage", "open tunings", "a used piano", "choir rehearsals", "stage fright"),
    "houseplants": ("yellow leaves", "grow lights", "root rot", "hanging pots", "a tall monstera", "fungus gnats"),
}
_POST_TITLES = (
    "Any advice on {}?",
    "How I got started with {}",
    "What nobody tells you about {}",
    "A beginner's guide to {}",
    "My year with {}",
    "Is there a cheap way into {}?",
    "Photos: {} this weekend",
    "Unpopular opinion about {}",
)
_POST_BODIES = (
    "I have read a lot and still cannot decide. What worked for you?",
    "It took me longer than I thought, but here is what I learned.",
    "Please tell me what you would do differently.",
    "Sharing this because it would have saved me a month.",
)
_COMMENTS = (
    "This helped me a lot, thank you.",
    "I tried that and it did not work for me.",
    "Do you have a link to more about this?",
    "Same here, since last spring.",
    "Start small and see how it goes.",
    "I would wait for a sale.",
)
_NOTES = (
    "I can reproduce this on the main branch.",
    "Could you attach the log, please?",
    "This may have the same cause as the last report.",
    "Let us discuss this on Monday.",
    "I have started to work on it.",
)
_PROJECTS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "lumen/reader": ("Reads feeds offline", ("sync", "font picker", "feed list", "night mode", "offline cache")),
    "lumen/notes": ("Notes in plain text", ("editor", "tag search", "export dialog", "backup job", "sidebar")),
    "harbor/ledger": ("Bookkeeping for clubs", ("tax report", "invoice form", "bank import", "year end", "receipts")),
    "harbor/roster": ("Shift plans for volunteers", ("calendar view", "reminders", "swap form", "login", "print view")),
    "atlas/tiles": ("Renders map tiles", ("tile cache", "road layer", "zoom control", "label placement", "renderer")),
    "atlas/router": (
        "Finds routes for bikes",
        ("turn costs", "route export", "elevation data", "search box", "ferries"),
    ),
    "kestrel/bench": ("Runs benchmarks nightly", ("scheduler", "result table", "plot page", "mail report", "worker")),
    "kestrel/cli": ("A command line for Kestrel", ("config file", "help text", "progress bar", "installer", "shell")),
}
_ISSUE_TITLES = (
    "The {} fails after an update",
    "The {} is slow with large files",
    "Document the {}",
    "Add tests for the {}",
    "Make the {} easier to reach",
    "The {} shows the wrong date",
    "Translate the {}",
    "The {} loses its settings",
)
_BRANCHES = ("fix", "docs", "tests", "perf", "ui")
_LABELS = ("bug", "feature", "documentation", "performance", "design", "security", "help wanted", "wontfix")
_DESCRIPTIONS = (
    "It happens in the released version and on the main branch.",
    "Several users have asked for this.",
    "See the discussion of last week.",
)
_STATUSES = ("Complete", "Complete", "Complete", "Pending", "Processing", "Canceled", "On Hold")


def format_day(day: int) -> str:
    """Returns a day as the pages show it.

    >>> format_day(TODAY)
    'June 30, 2025'
    """
    moment = date.fromordinal(day)
    return f"{_MONTHS[moment.month - 1]} {moment.day}, {moment.year}"


def format_price(cents: int) -> str:
    """Returns a price as the pages show it.

    >>> format_price(123456)
    '$1,234.56'
    """
    return f"${cents // 100:,}.{cents % 100:02}"


class Database:
    """All rows of one seed.

    Args:
        seed: seed of the rows.
    """

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed
        self.people = {person.username: person for person in _draw_people(seed)}
        others = tuple(username for username in self.people if username != USER.username)
        self.products = {product.sku: product for product in _draw_products(seed, self.people)}
        self.by_category: dict[str, list[Product]] = {}
        for product in self.products.values():
            self.by_category.setdefault(product.category, []).append(product)
        self.orders = {order.number: order for order in _draw_orders(seed, tuple(self.products))}
        rng = sample_rng("site", seed, "wishes")
        skus = tuple(self.products)
        self.wishes = tuple(skus[position] for position in rng.permutation(len(skus))[:3].tolist())
        self.posts = {post.number: post for post in _draw_posts(seed, others)}
        self.boards: dict[str, list[Post]] = {name: [] for name in _BOARDS}
        for post in self.posts.values():
            self.boards[post.board].append(post)
        self.projects = {project.path: project for project in _draw_projects(seed, others)}
        self.issues = {path: tuple(_draw_issues(seed, project)) for path, project in self.projects.items()}
        self.merge_requests = {
            path: tuple(_draw_merge_requests(seed, project)) for path, project in self.projects.items()
        }


@lru_cache(maxsize=4)
def load_database(seed: int = 0) -> Database:
    """Returns the database of a seed, which all episodes of a process share."""
    return Database(seed)


def _pick(rng: np.random.Generator, values: Sequence[str]) -> str:
    return values[int(rng.integers(len(values)))]


def _draw_people(seed: int) -> Iterator[Person]:
    rng = sample_rng("site", seed, "people")
    yield USER
    for first, position in zip(_FIRST, rng.permutation(len(_LAST)).tolist(), strict=True):
        yield Person(f"{first}_{_LAST[position]}".lower(), f"{first} {_LAST[position]}")


def _draw_products(seed: int, people: Mapping[str, Person]) -> Iterator[Product]:
    """Yields three products of each kind; all prices of a category and all titles differ."""
    rng = sample_rng("site", seed, "reviews")
    names = tuple(person.name for person in people.values() if person != USER)
    taken: set[tuple[str, int] | str] = set()
    for candidates in load_catalogue(seed).by_kind.values():
        num_products = 0
        for candidate in candidates:
            category = candidate.path[0]
            if candidate.title in taken or (category, candidate.price) in taken:
                continue
            taken |= {candidate.title, (category, candidate.price)}
            reviews = tuple(_draw_reviews(rng, names))
            yield Product(
                f"B{candidate.asin[1:]}", candidate.title, category, candidate.path[1], candidate.price, reviews
            )
            num_products += 1
            if num_products == _NUM_PRODUCTS:
                break


def _draw_reviews(rng: np.random.Generator, names: Sequence[str]) -> Iterator[Review]:
    number = int(rng.integers(5))
    days = np.sort(rng.choice(np.arange(10, 700), number, replace=False))[::-1].tolist()
    authors = rng.permutation(len(names))[:number].tolist()
    for author, days_ago in zip(authors, days, strict=True):
        title, text = _pick(rng, _REVIEW_TITLES), _pick(rng, _REVIEW_TEXTS)
        yield Review(names[author], int(rng.integers(1, 6)), title, text, TODAY - days_ago)


def _draw_orders(seed: int, skus: Sequence[str]) -> Iterator[Order]:
    """Yields the orders of the user, oldest first; every second one has a single line."""
    rng = sample_rng("site", seed, "orders")
    days = np.sort(rng.choice(np.arange(20, 900), _NUM_ORDERS, replace=False))[::-1].tolist()
    picks = rng.permutation(len(skus)).tolist()
    for position, days_ago in enumerate(days):
        size = 1 if position % 2 else 2 + int(rng.integers(2))
        lines = tuple((skus[picks.pop()], int(rng.integers(1, 3))) for _ in range(size))
        number = 101 + 7 * position + int(rng.integers(7))
        yield Order(number, TODAY - days_ago, _pick(rng, _STATUSES), lines)


def _draw_comments(
    rng: np.random.Generator, authors: Sequence[str], texts: Sequence[str], number: int
) -> list[Comment]:
    return [Comment(_pick(rng, authors), _pick(rng, texts)) for _ in range(number)]


def _draw_posts(seed: int, authors: Sequence[str]) -> Iterator[Post]:
    number = 0
    for board, topics in _BOARDS.items():
        rng = sample_rng("site", seed, "posts", board)
        titles = [template.format(topic) for template in _POST_TITLES for topic in topics]
        picks = rng.permutation(len(titles))[:_NUM_POSTS].tolist()
        days = rng.choice(np.arange(2, 400), _NUM_POSTS, replace=False).tolist()
        votes = rng.choice(np.arange(-5, 90), _NUM_POSTS, replace=False).tolist()
        counts = rng.permutation(_NUM_POSTS).tolist()
        for pick, days_ago, score, count in zip(picks, days, votes, counts, strict=True):
            number += 1 + int(rng.integers(9))
            author, body = _pick(rng, authors), _pick(rng, _POST_BODIES)
            comments = tuple(_draw_comments(rng, authors, _COMMENTS, count))
            yield Post(number, board, titles[pick], author, body, TODAY - days_ago, score, comments)


def _draw_projects(seed: int, others: Sequence[str]) -> Iterator[Project]:
    for path, (description, _) in _PROJECTS.items():
        rng = sample_rng("site", seed, "project", path)
        labels = tuple(sorted(_LABELS[position] for position in rng.permutation(len(_LABELS))[:5].tolist()))
        members = sorted(others[position] for position in rng.permutation(len(others))[:6].tolist())
        yield Project(path, description, int(rng.integers(300)), labels, (USER.username, *members))


def _draw_titles(rng: np.random.Generator, path: str, number: int) -> list[str]:
    titles = [template.format(part) for template in _ISSUE_TITLES for part in _PROJECTS[path][1]]
    return [titles[position] for position in rng.permutation(len(titles))[:number].tolist()]


def _draw_issues(seed: int, project: Project) -> Iterator[Issue]:
    """Yields the issues of a project, oldest first, numbered from 1 with gaps."""
    rng = sample_rng("site", seed, "issues", project.path)
    days = np.sort(rng.choice(np.arange(3, 500), _NUM_ISSUES, replace=False))[::-1].tolist()
    number = 0
    for title, days_ago in zip(_draw_titles(rng, project.path, _NUM_ISSUES), days, strict=True):
        number += 1 + int(rng.integers(4))
        labels = tuple(sorted(project.labels[label] for label in rng.permutation(5)[: int(rng.integers(3))].tolist()))
        comments = tuple(_draw_comments(rng, project.members[1:], _NOTES, int(rng.integers(4))))
        yield Issue(
            project.path,
            number,
            title,
            author=_pick(rng, project.members[1:]),
            description=_pick(rng, _DESCRIPTIONS),
            day=TODAY - days_ago,
            state="closed" if rng.random() < 0.3 else "open",
            assignee=_pick(rng, project.members) if rng.random() < 0.75 else "",
            labels=labels,
            comments=comments,
        )


def _draw_merge_requests(seed: int, project: Project) -> Iterator[MergeRequest]:
    rng = sample_rng("site", seed, "merge requests", project.path)
    days = np.sort(rng.choice(np.arange(3, 500), _NUM_MERGE_REQUESTS, replace=False))[::-1].tolist()
    number = 0
    for title, days_ago in zip(_draw_titles(rng, project.path, _NUM_MERGE_REQUESTS), days, strict=True):
        number += 1 + int(rng.integers(3))
        yield MergeRequest(
            project.path,
            number,
            f"Resolve: {title}",
            author=_pick(rng, project.members[1:]),
            day=TODAY - days_ago,
            state=_pick(rng, ("open", "open", "merged", "closed")),
            branch=f"{_pick(rng, _BRANCHES)}-{title.split('the ')[-1].split(' ')[0].lower()}-{number + 20}",
            reviewer=_pick(rng, project.members) if rng.random() < 0.75 else "",
            comments=tuple(_draw_comments(rng, project.members[1:], _NOTES, int(rng.integers(3)))),
        )
