"""The database as an episode sees it: the shared rows, and the few changes that the episode has made.

A change is a small tuple such as `("vote", 17, 1)`; an episode keeps the tuple of its changes and nothing else, so a
snapshot is small and the shared rows are never copied. A `View` folds the changes into tables of what differs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from evolvent.worlds.site.database import (
    SHIPPING,
    TODAY,
    USER,
    Comment,
    Database,
    Issue,
    MergeRequest,
    Order,
    Post,
    Product,
    Review,
)

__all__ = ["Change", "View", "load_view"]

Change = tuple[str | int, ...]
_MAX_CACHED_VIEWS = 2048


class View:
    """The rows of a database after some changes. It is not changed any more.

    Args:
        database: the shared rows.
        changes: the changes of an episode, oldest first.
    """

    def __init__(self, database: Database, changes: Sequence[Change] = ()) -> None:
        self.database = database
        self.cart: dict[str, int] = {}
        self.wishes: list[str] = list(database.wishes)
        self.votes: dict[int, int] = {}
        self.subscriptions: set[str] = set()
        self.starred: set[str] = set()
        self.biography = "I like long walks and short reviews."
        self._reviews: dict[str, tuple[Review, ...]] = {}
        self._orders: dict[int, Order] = {}
        self._posts: dict[int, Post] = {}
        self._issues: dict[tuple[str, int], Issue] = {}
        self._merge_requests: dict[tuple[str, int], MergeRequest] = {}
        for change in changes:
            self._apply(change)

    def _apply(self, change: Change) -> None:
        name, *parts = change
        getattr(self, f"_apply_{name}")(*parts)

    # ---------------------------------------------------------------- the shop

    def _apply_cart(self, sku: str, quantity: int) -> None:
        if quantity:
            self.cart[sku] = quantity
        else:
            self.cart.pop(sku, None)

    def _apply_wish(self, sku: str, is_wished: int) -> None:
        self.wishes = [wish for wish in self.wishes if wish != sku] + [sku] * is_wished

    def _apply_review(self, sku: str, stars: int, title: str, text: str) -> None:
        self._reviews[sku] = (*self._reviews.get(sku, ()), Review(USER.name, stars, title, text, TODAY))

    def _apply_order(self) -> None:
        number = self.list_orders()[0].number + 1
        self._orders[number] = Order(number, TODAY, "Pending", tuple(self.cart.items()))
        self.cart = {}

    def _apply_reorder(self, number: int) -> None:
        order = self.get_order(number)
        for sku, quantity in order.lines if order is not None else ():
            self.cart[sku] = self.cart.get(sku, 0) + quantity

    def list_products(self, category: str) -> list[Product]:
        """Returns the products of a category, in the order of the shop."""
        return self.database.by_category.get(category, [])

    def list_reviews(self, product: Product) -> tuple[Review, ...]:
        """Returns the reviews of a product, oldest first."""
        return product.reviews + self._reviews.get(product.sku, ())

    def list_orders(self) -> list[Order]:
        """Returns the orders of the user, newest first."""
        return [*reversed(self._orders.values()), *reversed(self.database.orders.values())]

    def get_order(self, number: int) -> Order | None:
        """Returns an order of the user by its number."""
        return self._orders.get(number) or self.database.orders.get(number)

    def compute_total(self, order: Order) -> int:
        """Returns the total of an order with its shipping, in cents."""
        return SHIPPING + sum(self.database.products[sku].price * quantity for sku, quantity in order.lines)

    # --------------------------------------------------------------- the forum

    def _apply_vote(self, number: int, vote: int) -> None:
        self.votes[number] = vote

    def _apply_comment(self, number: int, text: str) -> None:
        post = self.get_post(number)
        if post is not None:
            self._posts[number] = replace(post, comments=(*post.comments, Comment(USER.username, text)))

    def _apply_post(self, board: str, title: str, body: str) -> None:
        number = max((*self.database.posts, *self._posts)) + 1
        self._posts[number] = Post(number, board, title, USER.username, body, TODAY, 1, ())

    def _apply_subscribe(self, board: str, is_subscribed: int) -> None:
        (self.subscriptions.add if is_subscribed else self.subscriptions.discard)(board)

    def _apply_biography(self, text: str) -> None:
        self.biography = text

    def get_post(self, number: int) -> Post | None:
        """Returns a post by its number."""
        return self._posts.get(number) or self.database.posts.get(number)

    def count_votes(self, post: Post) -> int:
        """Returns the score of a post with the user's vote."""
        return post.votes + self.votes.get(post.number, 0)

    def list_posts(self, board: str = "", *, author: str = "") -> list[Post]:
        """Returns posts, newest first; of all boards and authors where none is named."""
        changed = self._posts
        posts = self.database.boards.get(board, []) if board else list(self.database.posts.values())
        rows = [changed.get(post.number, post) for post in posts]
        rows += [post for number, post in changed.items() if number not in self.database.posts]
        selected = [
            post for post in rows if (not board or post.board == board) and (not author or post.author == author)
        ]
        return sorted(selected, key=lambda post: (-post.day, -post.number))

    # ------------------------------------------------------------- the tracker

    def _apply_issue(self, project: str, title: str, description: str, assignee: str, label: str) -> None:
        number = self.list_issues(project)[0].number + 1
        labels = (label,) if label else ()
        self._issues[project, number] = Issue(
            project, number, title, USER.username, description, TODAY, "open", assignee, labels, ()
        )

    def _change_issue(self, project: str, number: int, **fields: object) -> None:
        issue = self.get_issue(project, number)
        if issue is not None:
            self._issues[project, number] = replace(issue, **fields)  # type: ignore[arg-type]

    def _apply_state(self, project: str, number: int, state: str) -> None:
        self._change_issue(project, number, state=state)

    def _apply_assign(self, project: str, number: int, assignee: str) -> None:
        self._change_issue(project, number, assignee=assignee)

    def _apply_label(self, project: str, number: int, label: str) -> None:
        issue = self.get_issue(project, number)
        if issue is not None:
            self._change_issue(project, number, labels=tuple(sorted({*issue.labels, label})))

    def _apply_note(self, project: str, number: int, text: str) -> None:
        issue = self.get_issue(project, number)
        if issue is not None:
            self._change_issue(project, number, comments=(*issue.comments, Comment(USER.username, text)))

    def _apply_merge_note(self, project: str, number: int, text: str) -> None:
        request = self.get_merge_request(project, number)
        if request is not None:
            comments = (*request.comments, Comment(USER.username, text))
            self._merge_requests[project, number] = replace(request, comments=comments)

    def _apply_star(self, project: str, is_starred: int) -> None:
        (self.starred.add if is_starred else self.starred.discard)(project)

    def list_issues(self, project: str) -> list[Issue]:
        """Returns the issues of a project, newest first."""
        rows = {issue.number: issue for issue in self.database.issues[project]}
        rows |= {number: issue for (path, number), issue in self._issues.items() if path == project}
        return sorted(rows.values(), key=lambda issue: -issue.number)

    def get_issue(self, project: str, number: int) -> Issue | None:
        """Returns an issue by its project and number."""
        return next((issue for issue in self.list_issues(project) if issue.number == number), None)

    def list_merge_requests(self, project: str) -> list[MergeRequest]:
        """Returns the merge requests of a project, newest first."""
        rows = self.database.merge_requests[project]
        return [self._merge_requests.get((project, request.number), request) for request in reversed(rows)]

    def get_merge_request(self, project: str, number: int) -> MergeRequest | None:
        """Returns a merge request by its project and number."""
        return next((request for request in self.list_merge_requests(project) if request.number == number), None)


@lru_cache(maxsize=_MAX_CACHED_VIEWS)
def load_view(database: Database, changes: tuple[Change, ...]) -> View:
    """Returns the view of a database after some changes; episodes with the same changes share it."""
    return View(database, changes)
