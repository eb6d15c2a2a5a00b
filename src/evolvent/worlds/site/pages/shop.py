"""The shop: categories, search, products with reviews, cart, wish list, checkout, account and orders."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from evolvent.worlds.site.database import SHIPPING, USER, Order, Product, format_day, format_price
from evolvent.worlds.site.nodes import Builder, Command, Outcome, Page, build_url
from evolvent.worlds.site.records import View

__all__ = ["HOST", "order_url", "product_url", "render", "run"]

HOST = "market.com"
_TITLE = "One Market"
_PER_PAGE = 8
_ADDRESS = "12 Harbor Street, Port Ellis, 04021"
_MAX_QUANTITY = 99


def product_url(sku: str) -> str:
    """Returns the address of a product."""
    return build_url(HOST, f"product/{sku}")


def order_url(number: int) -> str:
    """Returns the address of an order."""
    return build_url(HOST, f"order/{number}")


def render(view: View, path: Sequence[str], query: Mapping[str, str], url: str) -> Page | None:
    """Renders a page of the shop; returns None where there is none."""
    match path:
        case []:
            return _render_front(view, url)
        case ["search"]:
            return _render_search(view, query, url)
        case ["category", slug, *sections] if len(sections) <= 1:
            name = next((name for name in view.database.by_category if name.lower() == slug), "")
            return _render_category(view, name, sections, query=query, url=url) if name else None
        case ["product", sku] if sku in view.database.products:
            return _render_product(view, view.database.products[sku], url)
        case ["cart"]:
            return _render_cart(view, url)
        case ["wishlist"]:
            return _render_wishes(view, url)
        case ["checkout"]:
            return _render_checkout(view, url)
        case ["account"]:
            return _render_account(view, url)
        case ["orders"]:
            return _render_orders(view, query, url)
        case ["order", number] if re.fullmatch(r"[0-9]{1,9}", number):
            order = view.get_order(int(number))
            return _render_order(view, order, url) if order is not None else None
    return None


def _begin(view: View, title: str, url: str) -> Builder:
    page = Builder(url, f"{title} - {_TITLE}" if title else _TITLE)
    page.link("My Account", build_url(HOST, "account"))
    page.link("My Wish List", build_url(HOST, "wishlist"))
    page.link(f"My Cart {sum(view.cart.values())} items", build_url(HOST, "cart"))
    page.textbox("Search", "q", ("search",))
    page.button("Search", ("search",))
    for name in view.database.by_category:
        page.link(name, build_url(HOST, f"category/{name.lower()}"))
    return page


def _add_products(page: Builder, view: View, products: Sequence[Product]) -> None:
    for product in products:
        page.link(product.title, product_url(product.sku), key="product")
        page.text(format_price(product.price), depth=2)
        page.text(_count(len(view.list_reviews(product)), "Review"), depth=2)
        page.button("Add to Cart", ("add_to_cart", product.sku), depth=2)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _add_pager(page: Builder, path: str, query: Mapping[str, str], *, number: int, total: int) -> None:
    kept: dict[str, str | int] = {name: value for name, value in query.items() if name != "p"}
    if number > 1:
        page.link("Previous page", build_url(HOST, path, **{**kept, "p": number - 1}))
    if number * _PER_PAGE < total:
        page.link("Next page", build_url(HOST, path, **{**kept, "p": number + 1}))


def _page_number(query: Mapping[str, str]) -> int:
    text = query.get("p", "1")
    return max(1, int(text)) if re.fullmatch(r"[0-9]{1,6}", text) else 1


def _render_front(view: View, url: str) -> Page:
    page = _begin(view, "", url)
    page.heading("Product Showcases")
    _add_products(page, view, [products[0] for products in view.database.by_category.values()])
    return page.build()


def _render_search(view: View, query: Mapping[str, str], url: str) -> Page:
    products = _search(view, query.get("q", ""))
    page, number = _begin(view, "Search results", url), _page_number(query)
    page.heading(f"Search results for: {query.get('q', '')}")
    if not products:
        page.text("Your search returned no results.")
    _add_products(page, view, products[_PER_PAGE * (number - 1) : _PER_PAGE * number])
    _add_pager(page, "search", query, number=number, total=len(products))
    return page.build()


def _search(view: View, text: str) -> list[Product]:
    """Returns the products whose titles have at least half of the searched words, best first."""
    terms = set(re.findall(r"\w+", text.lower()))
    matches = []
    for product in view.database.products.values():
        num_terms = len(terms & set(re.findall(r"\w+", product.title.lower())))
        if num_terms and 2 * num_terms >= len(terms):
            matches.append((-num_terms, product.title.lower() != text.lower(), product))
    return [product for _, _, product in sorted(matches, key=lambda match: match[:2])]


def _render_category(
    view: View, name: str, sections: Sequence[str], *, query: Mapping[str, str], url: str
) -> Page | None:
    products, path = view.list_products(name), f"category/{name.lower()}"
    all_sections = list(dict.fromkeys(product.section for product in products))
    section = next((one for one in all_sections if [one.lower()] == list(sections)), "")
    if sections and not section:
        return None
    page, number = _begin(view, section or name, url), _page_number(query)
    page.heading(section or name)
    for one in all_sections:
        page.link(f"{name}: {one}", build_url(HOST, f"{path}/{one.lower()}"), depth=2)
    if section:
        products, path = [product for product in products if product.section == section], f"{path}/{section.lower()}"
    order = query.get("order", "position")
    if order in ("price", "price_desc"):
        products = sorted(products, key=lambda product: product.price, reverse=order == "price_desc")
    page.link("Sort by position", build_url(HOST, path))
    page.link("Sort by price, low to high", build_url(HOST, path, order="price"))
    page.link("Sort by price, high to low", build_url(HOST, path, order="price_desc"))
    page.text(_count(len(products), "Item"))
    _add_products(page, view, products[_PER_PAGE * (number - 1) : _PER_PAGE * number])
    _add_pager(page, path, query, number=number, total=len(products))
    return page.build()


def _render_product(view: View, product: Product, url: str) -> Page:
    page, reviews = _begin(view, product.title, url), view.list_reviews(product)
    page.heading(product.title, key="title")
    page.text(format_price(product.price), key="price")
    page.text(f"SKU {product.sku}", key="sku")
    page.text(_count(len(reviews), "Review"), key="num_reviews")
    page.button("Add to Cart", ("add_to_cart", product.sku))
    page.button("Add to Wish List", ("add_to_wishes", product.sku))
    page.heading("Customer Reviews, newest first")
    if not reviews:
        page.text("There are no reviews yet.")
    for review in reversed(reviews):
        page.text(f"{_count(review.stars, 'star')}: {review.title}", key="reviews")
        page.text(review.text, key="reviews", depth=2)
        page.text("Review by", depth=2)
        page.text(review.author, key="reviewer", depth=2)
        page.text(format_day(review.day), depth=2)
    page.heading("Add Your Review")
    for stars in range(1, 6):
        page.radio(_count(stars, "star"), "stars")
    page.textbox("Summary", "summary")
    page.textbox("Review", "review")
    page.button("Submit Review", ("add_review", product.sku))
    return page.build()


def _render_cart(view: View, url: str) -> Page:
    page = _begin(view, "Shopping Cart", url)
    page.heading("Shopping Cart")
    if not view.cart:
        page.text("You have no items in your shopping cart.")
        return page.build()
    _add_lines(page, view, tuple(view.cart.items()), with_removal=True)
    page.link("Proceed to Checkout", build_url(HOST, "checkout"))
    return page.build()


def _add_lines(page: Builder, view: View, lines: Sequence[tuple[str, int]], *, with_removal: bool = False) -> None:
    for sku, quantity in lines:
        product = view.database.products[sku]
        page.link(product.title, product_url(sku), key="items")
        page.text(format_price(product.price), depth=2)
        page.text(f"Quantity: {quantity}", key="items", depth=2)
        if with_removal:
            page.button("Remove item", ("remove_from_cart", sku), depth=2)


def _render_wishes(view: View, url: str) -> Page:
    page = _begin(view, "My Wish List", url)
    page.heading("My Wish List")
    for sku in view.wishes:
        product = view.database.products[sku]
        page.link(product.title, product_url(sku), key="items")
        page.text(format_price(product.price), depth=2)
        page.button("Add to Cart", ("add_to_cart", sku), depth=2)
        page.button("Remove item", ("remove_wish", sku), depth=2)
    return page.build()


def _render_checkout(view: View, url: str) -> Page:
    page = _begin(view, "Checkout", url)
    page.heading("Checkout")
    if not view.cart:
        page.text("You have no items in your shopping cart.")
        return page.build()
    _add_lines(page, view, tuple(view.cart.items()))
    page.text(f"Ship to: {USER.name}, {_ADDRESS}")
    page.text(f"Shipping: {format_price(SHIPPING)}")
    page.button("Place Order", ("place_order",))
    return page.build()


def _render_account(view: View, url: str) -> Page:
    page = _begin(view, "My Account", url)
    page.heading("My Account")
    page.text(USER.name)
    page.text(f"Default address: {_ADDRESS}")
    page.link("My Orders", build_url(HOST, "orders"))
    page.link("My Wish List", build_url(HOST, "wishlist"))
    return page.build()


def _render_orders(view: View, query: Mapping[str, str], url: str) -> Page:
    page, number = _begin(view, "My Orders", url), _page_number(query)
    page.heading("My Orders, newest first")
    for status in ("All", "Complete", "Pending", "Processing", "Canceled", "On Hold"):
        page.link(f"Status: {status}", build_url(HOST, "orders", status="" if status == "All" else status))
    orders = [order for order in view.list_orders() if query.get("status", order.status) == order.status]
    if not orders:
        page.text("You have placed no such orders.")
    for order in orders[_PER_PAGE * (number - 1) : _PER_PAGE * number]:
        page.link(f"Order {order.number:06}", order_url(order.number), key="order")
        page.text(f"{format_day(order.day)}, {format_price(view.compute_total(order))}, {order.status}", depth=2)
    _add_pager(page, "orders", query, number=number, total=len(orders))
    return page.build()


def _render_order(view: View, order: Order, url: str) -> Page:
    page = _begin(view, f"Order {order.number:06}", url)
    page.heading(f"Order {order.number:06}")
    page.text("Status:")
    page.text(order.status, key="status", depth=2)
    page.text("Order date:")
    page.text(format_day(order.day), key="date", depth=2)
    page.text(_count(len(order.lines), "Product"), key="num_lines")
    _add_lines(page, view, order.lines)
    page.text("Grand total with shipping:")
    page.text(format_price(view.compute_total(order)), key="total", depth=2)
    page.button("Reorder", ("reorder", order.number))
    return page.build()


def run(view: View, command: Command, fields: Mapping[str, str]) -> Outcome:
    """Runs a command of a page of the shop."""
    match command:
        case ["search"]:
            return Outcome(build_url(HOST, "search", q=fields.get("q", "").strip()))
        case ["add_to_cart", str(sku)]:
            quantity = min(_MAX_QUANTITY, view.cart.get(sku, 0) + 1)
            notice = f"You added {view.database.products[sku].title} to your shopping cart."
            return Outcome("", ("cart", sku, quantity), notice)
        case ["remove_from_cart", str(sku)]:
            return Outcome("", ("cart", sku, 0), "The item was removed.")
        case ["add_to_wishes", str(sku)]:
            return Outcome(build_url(HOST, "wishlist"), ("wish", sku, 1), "The item was added to your wish list.")
        case ["remove_wish", str(sku)]:
            return Outcome("", ("wish", sku, 0), "The item was removed.")
        case ["add_review", str(sku)]:
            stars, title, text = (fields.get(name, "").strip() for name in ("stars", "summary", "review"))
            if not (stars and title and text):
                return Outcome(notice="Choose the stars, and fill in Summary and Review.")
            return Outcome("", ("review", sku, int(stars[0]), title, text), "You submitted your review.")
        case ["place_order"]:
            if not view.cart:
                return Outcome(notice="You have no items in your shopping cart.")
            number = view.list_orders()[0].number + 1
            return Outcome(order_url(number), ("order",), "Thank you for your purchase!")
        case ["reorder", int(number)]:
            return Outcome(build_url(HOST, "cart"), ("reorder", number), "The items were added to your shopping cart.")
    return Outcome()
