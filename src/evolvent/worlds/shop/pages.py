"""The pages of the shop in WebShop's text mode: texts joined by `[SEP]`, and what can be clicked.

    WebShop [SEP] Instruction: [SEP] Find me quick drying rain jacket ... [SEP] Search
    Instruction: [SEP] ... [SEP] Back to Search [SEP] Page 1 (Total results: 50) [SEP] Next > [SEP] 0391474211 [SEP] ...
    Instruction: [SEP] ... [SEP] Back to Search [SEP] < Prev [SEP] color [SEP] black [SEP] ... [SEP] Buy Now
    Instruction: [SEP] ... [SEP] Back to Search [SEP] < Prev [SEP] sun protective for everyday use [SEP] ...

This is the plain mode (`observation_mode="text"`), which AgentGym serves; it does not show which options are chosen. A
`Body` is a page without its instruction, so that all tasks share it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from evolvent.worlds.shop.products import Product
from evolvent.worlds.shop.rewards import RewardParts

__all__ = [
    "BACK_TO_SEARCH",
    "BUY_NOW",
    "NEXT_PAGE",
    "PAGE_SIZE",
    "PREVIOUS_PAGE",
    "SEARCH_BUTTON",
    "SEPARATOR",
    "SUB_PAGES",
    "Body",
    "collect_page_texts",
    "render_item",
    "render_receipt",
    "render_results",
    "render_start",
    "render_sub_page",
]

SEPARATOR = " [SEP] "
SEARCH_BUTTON = "Search"
BACK_TO_SEARCH = "Back to Search"
NEXT_PAGE = "Next >"
PREVIOUS_PAGE = "< Prev"
BUY_NOW = "Buy Now"
SUB_PAGES = ("Description", "Features", "Reviews", "Attributes")
PAGE_SIZE = 10
_RECEIPT = "Thank you for shopping with us! [SEP] Your code: [SEP] None [SEP] (Paste it in your MTurk interface.)"
_UNTOLD_PURCHASE = "attrs [SEP] None [SEP] category [SEP] None [SEP] query [SEP] None [SEP] product category [SEP] None"
_UNTOLD_GOAL = (
    "Target [SEP] asin [SEP] options [SEP] attrs [SEP] price upper [SEP] instuction text [SEP] category [SEP] product "
    "category [SEP] query [SEP] Goal [SEP] None"
)  # so spelled there
_SCORE, _END = "Your score (min 0.0, max 1.0)", "Reward Details [SEP] None"
_NO_REVIEWS = "No reviews found"


@dataclass(frozen=True, slots=True)
class Body:
    """A page without its instruction.

    Args:
        text: its texts, joined.
        targets: what can be clicked, in lower case -> as the page shows it.
        admissible: the clicks as actions.
    """

    text: str
    targets: Mapping[str, str]
    admissible: tuple[str, ...]


def _build_body(texts: Iterable[str], targets: Sequence[str]) -> Body:
    clicks = tuple(f"click[{target}]" for target in targets)
    return Body(SEPARATOR.join(texts), {target.lower(): target for target in targets}, clicks)


def render_start(instruction: str) -> str:
    """Returns the page with the search bar."""
    return SEPARATOR.join(("WebShop", "Instruction:", instruction, SEARCH_BUTTON))


def render_results(products: Sequence[Product], number: int) -> Body:
    """Renders a page of results, ten products of all that were found.

    Args:
        products: all products that were found.
        number: of the page, from 1.
    """
    page_products = products[PAGE_SIZE * (number - 1) : PAGE_SIZE * number]
    buttons = [PREVIOUS_PAGE] if number > 1 else []
    if len(products) > PAGE_SIZE * number:
        buttons.append(NEXT_PAGE)
    texts = [BACK_TO_SEARCH, f"Page {number} (Total results: {len(products)})", *buttons]
    for product in page_products:
        texts += (product.asin, product.title, product.price_tag)
    return _build_body(texts, [BACK_TO_SEARCH, *buttons, *(product.asin for product in page_products)])


def render_item(product: Product) -> Body:
    """Renders the page of a product, with its options and the ways to its sub pages."""
    texts = [BACK_TO_SEARCH, PREVIOUS_PAGE]
    for key, values in product.options.items():
        texts += (key, *values)
    texts += (product.title, f"Price: {product.price_tag}", f"Rating: {product.rating}", *SUB_PAGES, BUY_NOW)
    choices = chain.from_iterable(product.options.values())
    return _build_body(texts, [BACK_TO_SEARCH, PREVIOUS_PAGE, *SUB_PAGES, BUY_NOW, *choices])


def render_sub_page(product: Product, name: str) -> Body:
    """Renders a sub page of a product, one of `SUB_PAGES`."""
    return _build_body((BACK_TO_SEARCH, PREVIOUS_PAGE, *_list_texts(product, name)), (BACK_TO_SEARCH, PREVIOUS_PAGE))


def _list_texts(product: Product, name: str) -> tuple[str, ...]:
    if name == "Description":
        return (product.description,)
    if name == "Features":
        return product.features
    if name == "Attributes":
        return (*product.attributes, product.path[0].lower(), product.query, " › ".join(product.path))
    rows = [(f'"{review.title}"', f"{review.stars}.0", review.text) for review in product.reviews]
    return tuple(text for row in rows for text in row) or (_NO_REVIEWS,)


def render_receipt(product: Product, options: Mapping[str, str], parts: RewardParts) -> str:
    """Returns the page after a purchase."""
    bought = ("Purchased", "asin", product.asin, "options", json.dumps(dict(sorted(options.items()))))
    score = ("Reward", _SCORE, str(parts.total))
    return SEPARATOR.join((_RECEIPT, *bought, _UNTOLD_PURCHASE, _UNTOLD_GOAL, *score, _END))


def collect_page_texts() -> tuple[str, ...]:
    """Returns texts that hold every word and mark of pages, except for those of products and for numbers."""
    buttons = (SEARCH_BUTTON, BACK_TO_SEARCH, NEXT_PAGE, PREVIOUS_PAGE, BUY_NOW, *SUB_PAGES)
    texts = (_RECEIPT, _UNTOLD_PURCHASE, _UNTOLD_GOAL, _SCORE, _END, _NO_REVIEWS)
    other_words = (
        'WebShop Instruction: Page (Total results: 1) Price: $ Rating: N.A. Purchased Reward asin options {" › "}'
    )
    return (*buttons, *texts, *(text.lower() for text in buttons), other_words)
