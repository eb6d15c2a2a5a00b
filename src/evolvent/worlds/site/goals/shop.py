"""Tasks in the shop: products by name, price or order; orders by number, day or status."""

from __future__ import annotations

import numpy as np

from evolvent.worlds.shop.products import load_catalogue
from evolvent.worlds.site.database import Database, Order, Product, format_day, format_price
from evolvent.worlds.site.evaluators import Evaluation, ProgramCheck
from evolvent.worlds.site.goals.base import RANKS, Goal, Navigator, Slots, Source, pick
from evolvent.worlds.site.nodes import build_url
from evolvent.worlds.site.pages.shop import HOST, order_url, product_url
from evolvent.worlds.site.records import load_view

__all__ = ["ORDER_GOALS", "ORDER_SOURCES", "PRODUCT_GOALS", "PRODUCT_SOURCES"]

_STATUSES = ("Complete", "Pending", "Processing", "Canceled", "On Hold")
_REVIEWS = (
    ("Well made", "I use it every week and would choose it again."),
    ("Too small for me", "The measures on the page were not right."),
    ("Good but late", "The parcel took two weeks, the rest is fine."),
    ("A lovely present", "My brother was very happy with it."),
    ("Fair price", "It does what it should for this amount."),
)
_CART_URL, _WISHES_URL = build_url(HOST, "cart"), build_url(HOST, "wishlist")


# ------------------------------------------------------------------------------------------------- products by name


def _draw_title(database: Database, rng: np.random.Generator, is_missing: bool) -> Slots:
    titles = {product.title for product in database.products.values()}
    if is_missing:
        others = [product.title for product in load_catalogue(database.seed).products if product.title not in titles]
        return {"title": pick(rng, others)}
    return {"title": pick(rng, sorted(titles))}


def _resolve_title(database: Database, slots: Slots) -> Product | None:
    return next((product for product in database.products.values() if product.title == slots["title"]), None)


def _search_title(user: Navigator, slots: Slots) -> bool:
    user.type("Search", slots["title"], enter=True)
    return user.click(role="link", name=str(slots["title"]), key="product")


# ------------------------------------------------------------------------------------------------ products by price


def _draw_rank(database: Database, rng: np.random.Generator, is_missing: bool) -> Slots:
    product = pick(rng, list(database.products.values()))
    section = pick(rng, ("", product.section, product.section))
    return {"category": product.category, "section": section, "rank": pick(rng, RANKS)}


def _rank_products(database: Database, slots: Slots) -> list[Product]:
    products = database.by_category.get(str(slots["category"]), [])
    selected = [product for product in products if slots["section"] in ("", product.section)]
    return sorted(selected, key=lambda product: product.price)


def _get_cheap(database: Database, slots: Slots) -> Product | None:
    return _rank_products(database, slots)[RANKS.index(str(slots["rank"]))]


def _get_dear(database: Database, slots: Slots) -> Product | None:
    return _rank_products(database, slots)[-1 - RANKS.index(str(slots["rank"]))]


def _browse(user: Navigator, slots: Slots, order: str) -> bool:
    user.click(role="link", name=str(slots["category"]))
    if slots["section"]:
        user.click(role="link", name=f"{slots['category']}: {slots['section']}")
    user.click(role="link", name=order)
    return user.click(key="product", index=RANKS.index(str(slots["rank"])))


# ------------------------------------------------------------------------------------------------------- by orders


def _open_order(user: Navigator, number: object) -> bool:
    """Opens an order from the list of orders, page by page."""
    user.click(role="link", name="My Account")
    user.click(role="link", name="My Orders")
    while not user.click(role="link", name=f"Order {number}"):
        if not user.click(role="link", name="Next page"):
            return False
    return True


def _draw_single_order(database: Database, rng: np.random.Generator, is_missing: bool) -> Slots:
    if is_missing:
        return _draw_number(database, rng, is_missing)
    orders = [order for order in database.orders.values() if len(order.lines) == 1]
    return {"order": f"{pick(rng, orders).number:06}"}


def _resolve_ordered(database: Database, slots: Slots) -> Product | None:
    order = _resolve_number(database, slots)
    return database.products[order.lines[0][0]] if order is not None else None


def _open_ordered(user: Navigator, slots: Slots) -> bool:
    return _open_order(user, slots["order"]) and user.click(role="link", key="items")


def _draw_number(database: Database, rng: np.random.Generator, is_missing: bool) -> Slots:
    numbers = list(database.orders)
    if is_missing:
        numbers = [number for number in range(100, max(numbers)) if number not in database.orders]
    return {"order": f"{pick(rng, numbers):06}"}


def _resolve_number(database: Database, slots: Slots) -> Order | None:
    return database.orders.get(int(slots["order"]))


def _draw_date(database: Database, rng: np.random.Generator, is_missing: bool) -> Slots:
    days = [order.day for order in database.orders.values()]
    if is_missing:
        days = [day for day in range(min(days), max(days)) if day not in days]
    return {"date": format_day(pick(rng, days))}


def _resolve_date(database: Database, slots: Slots) -> Order | None:
    return next((order for order in database.orders.values() if format_day(order.day) == slots["date"]), None)


def _open_dated(user: Navigator, slots: Slots) -> bool:
    user.click(role="link", name="My Account")
    user.click(role="link", name="My Orders")
    while True:
        for position, node in enumerate(user.page.nodes):
            if node.name.startswith(f"{slots['date']},"):
                return user.click(role="link", name=user.page.nodes[position - 1].name)
        if not user.click(role="link", name="Next page"):
            return False


def _draw_status(database: Database, rng: np.random.Generator, is_missing: bool) -> Slots:
    used = {order.status for order in database.orders.values()}
    return {"status": pick(rng, [status for status in _STATUSES if (status in used) != is_missing] or _STATUSES)}


def _resolve_status(database: Database, slots: Slots) -> Order | None:
    orders = reversed(database.orders.values())
    return next((order for order in orders if order.status == slots["status"]), None)


def _open_status(user: Navigator, slots: Slots) -> bool:
    user.click(role="link", name="My Account")
    user.click(role="link", name="My Orders")
    user.click(role="link", name=f"Status: {slots['status']}")
    return user.click(role="link", key="order")


PRODUCT_SOURCES = (
    Source("named product", "product", HOST, "the product {title!r}", _draw_title, _resolve_title, _search_title),
    Source(
        "cheap product",
        "product",
        HOST,
        "the {rank}cheapest product of the category {path}",
        _draw_rank,
        _get_cheap,
        lambda user, slots: _browse(user, slots, "Sort by price, low to high"),
        can_miss=False,
    ),
    Source(
        "ordered product",
        "product",
        HOST,
        "the product that I bought with order {order}",
        _draw_single_order,
        _resolve_ordered,
        _open_ordered,
    ),
    Source(
        "dear product",
        "product",
        HOST,
        "the {rank}most expensive product of the category {path}",
        _draw_rank,
        _get_dear,
        lambda user, slots: _browse(user, slots, "Sort by price, high to low"),
        can_miss=False,
    ),
)
ORDER_SOURCES = (
    Source(
        "numbered order",
        "order",
        HOST,
        "my order {order}",
        _draw_number,
        _resolve_number,
        lambda user, slots: _open_order(user, slots["order"]),
    ),
    Source("dated order", "order", HOST, "the order that I placed on {date}", _draw_date, _resolve_date, _open_dated),
    Source(
        "latest order of a status",
        "order",
        HOST,
        "my latest order with the status {status}",
        _draw_status,
        _resolve_status,
        _open_status,
    ),
)


# ------------------------------------------------------------------------------------------------------------ goals


def _review(user: Navigator, slots: Slots) -> str:
    stars = int(slots["stars"])
    user.click(role="radio", name=f"{stars} star{'' if stars == 1 else 's'}")
    user.type("Summary", slots["summary"])
    user.type("Review", slots["review"])
    user.click(role="button", name="Submit Review")
    return ""


def _draw_review(database: Database, rng: np.random.Generator, product: Product) -> Slots:
    summary, text = pick(rng, _REVIEWS)
    return {"stars": int(rng.integers(1, 6)), "summary": summary, "review": text}


def _evaluate_review(database: Database, product: Product, slots: Slots) -> Evaluation:
    stars = int(slots["stars"])
    required = (f"{stars} star{'' if stars == 1 else 's'}: {slots['summary']}", str(slots["review"]))
    return Evaluation(program_html=(ProgramCheck(product_url(product.sku), "reviews", required),))


def _buy(user: Navigator, slots: Slots) -> str:
    user.click(role="button", name="Add to Cart")
    position = next(
        position for position, node in enumerate(user.page.nodes) if node.href == _CART_URL and node.role == "link"
    )
    user.click(role="link", name=user.page.nodes[position].name)
    user.click(role="link", name="Proceed to Checkout")
    user.click(role="button", name="Place Order")
    return ""


def _click(user: Navigator, name: str) -> str:
    user.click(role="button", name=name)
    return ""


def _ask_reviewer(database: Database, product: Product, slots: Slots) -> Evaluation | None:
    return Evaluation(exact_match=product.reviews[-1].author) if product.reviews else None


def _read_or_decline(user: Navigator, key: str) -> str:
    return user.read_node(key) or "N/A"


def _list_titles(database: Database, order: Order) -> tuple[str, ...]:
    return tuple(database.products[sku].title for sku, _ in order.lines)


def _total(database: Database, order: Order) -> str:
    return format_price(load_view(database, ()).compute_total(order))


PRODUCT_GOALS = (
    Goal[Product](
        "price",
        "product",
        ("What is the price of {target}?", "How much does {target} cost?"),
        lambda database, product, slots: Evaluation(must_include=(format_price(product.price),)),
        lambda user, slots: user.read_node("price"),
        is_question=True,
    ),
    Goal[Product](
        "number of reviews",
        "product",
        ("How many reviews does {target} have?", "Tell me how many customers have reviewed {target}."),
        lambda database, product, slots: Evaluation(must_include=(str(len(product.reviews)),)),
        lambda user, slots: user.read_node("num_reviews"),
        is_question=True,
        is_count=True,
    ),
    Goal[Product](
        "latest reviewer",
        "product",
        ("Who wrote the latest review of {target}?", "Tell me the name of the last person who reviewed {target}."),
        _ask_reviewer,
        lambda user, slots: _read_or_decline(user, "reviewer"),
        is_question=True,
    ),
    Goal[Product](
        "open",
        "product",
        ("Open the page of {target}.", "Show me {target}."),
        lambda database, product, slots: Evaluation(reference_url=product_url(product.sku)),
        lambda user, slots: "",
    ),
    Goal[Product](
        "cart",
        "product",
        ("Add {target} to my shopping cart.", "Put {target} in my cart."),
        lambda database, product, slots: Evaluation(
            program_html=(ProgramCheck(_CART_URL, "items", (product.title, "Quantity: 1")),)
        ),
        lambda user, slots: _click(user, "Add to Cart"),
    ),
    Goal[Product](
        "review",
        "product",
        ("Review {target} with {stars} of 5 stars, the summary {summary!r} and the text {review!r}.",),
        _evaluate_review,
        _review,
        _draw_review,
    ),
    Goal[Product](
        "sku",
        "product",
        ("What is the SKU of {target}?", "Tell me the SKU of {target}."),
        lambda database, product, slots: Evaluation(must_include=(product.sku,)),
        lambda user, slots: user.read_node("sku"),
        is_question=True,
    ),
    Goal[Product](
        "wish",
        "product",
        ("Add {target} to my wish list.", "Put {target} on my wish list."),
        lambda database, product, slots: Evaluation(
            program_html=(ProgramCheck(_WISHES_URL, "items", (product.title,)),)
        ),
        lambda user, slots: _click(user, "Add to Wish List"),
    ),
    Goal[Product](
        "buy",
        "product",
        ("Buy {target}.", "Order one piece of {target}."),
        lambda database, product, slots: Evaluation(
            program_html=(ProgramCheck("func:latest_order", "items", (product.title, "Quantity: 1")),)
        ),
        _buy,
    ),
)
ORDER_GOALS = (
    Goal[Order](
        "total",
        "order",
        ("What is the grand total of {target}?", "How much did I pay in total for {target}?"),
        lambda database, order, slots: Evaluation(must_include=(_total(database, order),)),
        lambda user, slots: user.read_node("total"),
        is_question=True,
    ),
    Goal[Order](
        "status",
        "order",
        ("What is the status of {target}?", "Tell me the status of {target}."),
        lambda database, order, slots: Evaluation(exact_match=order.status),
        lambda user, slots: user.read_node("status"),
        is_question=True,
    ),
    Goal[Order](
        "number of products",
        "order",
        ("How many different products does {target} hold?",),
        lambda database, order, slots: Evaluation(must_include=(str(len(order.lines)),)),
        lambda user, slots: user.read_node("num_lines"),
        is_question=True,
        is_count=True,
    ),
    Goal[Order](
        "open",
        "order",
        ("Open the page of {target}.", "Show me the details of {target}."),
        lambda database, order, slots: Evaluation(reference_url=order_url(order.number)),
        lambda user, slots: "",
    ),
    Goal[Order](
        "date",
        "order",
        ("On which day did I place {target}?", "What is the date of {target}?"),
        lambda database, order, slots: Evaluation(fuzzy_match=format_day(order.day)),
        lambda user, slots: user.read_node("date"),
        is_question=True,
    ),
    Goal[Order](
        "reorder",
        "order",
        ("Put everything of {target} in my cart again.", "I want the items of {target} again; fill my cart with them."),
        lambda database, order, slots: Evaluation(
            program_html=(ProgramCheck(_CART_URL, "items", _list_titles(database, order)),)
        ),
        lambda user, slots: _click(user, "Reorder"),
    ),
)
