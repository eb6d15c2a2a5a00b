"""The sites by their addresses: pages, commands, and the names of the latest rows that evaluators use."""

from __future__ import annotations

from functools import lru_cache
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from evolvent.worlds.site.nodes import Builder, Command, Outcome, Page, build_url
from evolvent.worlds.site.pages import forum, shop, tracker
from evolvent.worlds.site.records import View

__all__ = ["BLANK", "HOMEPAGE", "SITES", "normalize_url", "render_page", "resolve_url", "run_command"]

HOMEPAGE = "homepage.com"
BLANK = "about:blank"
SITES = {"shopping": shop.HOST, "reddit": forum.HOST, "gitlab": tracker.HOST}
"""The name of each site in WebArena's tasks -> host."""
_RENDERERS = {shop.HOST: shop.render, forum.HOST: forum.render, tracker.HOST: tracker.render}
_COMMANDS = {shop.HOST: shop.run, forum.HOST: forum.run, tracker.HOST: tracker.run}
_MAX_CACHED_PAGES = 1024


def normalize_url(url: str) -> str:
    """Returns an address in the one form that pages have: `http://`, a host in lower case, no slash at the end.

    A text that is not an address is quoted, so that every address of a tab can be taken apart.

    >>> normalize_url("https://Forum.com/f/books/")
    'http://forum.com/f/books'
    """
    text = url.strip()
    if text == BLANK:
        return text
    scheme, separator, after_scheme = text.partition("://")
    host, slash, path = (after_scheme if separator else scheme).partition("/")
    address = f"http://{host.lower()}{slash}{path}".rstrip("/")
    try:
        urlsplit(address)
    except ValueError:  # brackets in the host, or characters that a host may not have
        return f"http://{quote(text, safe='').lower()}"
    return address


@lru_cache(maxsize=_MAX_CACHED_PAGES)
def render_page(view: View, url: str) -> Page:
    """Renders the page at an address; an address without a page has one that says so."""
    if url == BLANK:
        return Builder(url, "").build()
    parts = urlsplit(url)
    path = [unquote(part) for part in parts.path.split("/") if part]
    if parts.netloc == HOMEPAGE:
        return _render_homepage(path, url)
    renderer = _RENDERERS.get(parts.netloc)
    if renderer is None:
        return _render_missing(url)
    return renderer(view, path, dict(parse_qsl(parts.query)), url) or _render_missing(url)


def _render_homepage(path: list[str], url: str) -> Page:
    if path == ["password.html"]:
        page = Builder(url, "Accounts")
        page.text("You are signed in on all sites as mara_quint; no password is needed.")
        return page.build()
    if path:
        return _render_missing(url)
    page = Builder(url, "Homepage")
    page.heading("Sites")
    page.link("One Market, a shop", build_url(shop.HOST))
    page.link("Open Forum, a forum", build_url(forum.HOST))
    page.link("Tracker, projects and their issues", build_url(tracker.HOST))
    page.link("Accounts", build_url(HOMEPAGE, "password.html"))
    return page.build()


def _render_missing(url: str) -> Page:
    page = Builder(url, "Page not found")
    page.heading("404 Page not found")
    page.link("Homepage", build_url(HOMEPAGE))
    return page.build()


def run_command(view: View, url: str, command: Command, fields: tuple[tuple[str, str], ...]) -> Outcome:
    """Runs a command of the page at an address with the texts of its fields."""
    return _COMMANDS[urlsplit(url).netloc](view, command, dict(fields))


def resolve_url(view: View, url: str) -> str:
    """Returns an address for one that may name the latest row: `func:latest_order`, `func:latest_post:BOARD`,
    `func:latest_issue:PROJECT`.
    """
    if not url.startswith("func:"):
        return url
    _, name, *arguments = url.split(":")
    if name == "latest_order":
        return shop.order_url(view.list_orders()[0].number)
    if name == "latest_post":
        return forum.post_url(view.list_posts(arguments[0])[0])
    return tracker.issue_url(arguments[0], view.list_issues(arguments[0])[0].number)
