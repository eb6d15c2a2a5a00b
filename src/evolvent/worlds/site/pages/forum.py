"""The forum: boards, posts with votes and comments, submission, users, search."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from evolvent.worlds.site.database import USER, Post, format_day
from evolvent.worlds.site.nodes import Builder, Command, Outcome, Page, build_url
from evolvent.worlds.site.records import View

__all__ = ["HOST", "board_url", "post_url", "render", "run", "user_url"]

HOST = "forum.com"
_TITLE = "Open Forum"
_PER_PAGE = 8


def board_url(board: str) -> str:
    """Returns the address of a board."""
    return build_url(HOST, f"f/{board}")


def post_url(post: Post) -> str:
    """Returns the address of a post."""
    return build_url(HOST, f"f/{post.board}/{post.number}")


def user_url(username: str) -> str:
    """Returns the address of a user."""
    return build_url(HOST, f"user/{username}")


def render(view: View, path: Sequence[str], query: Mapping[str, str], url: str) -> Page | None:
    """Renders a page of the forum; returns None where there is none."""
    boards = view.database.boards
    match path:
        case []:
            page = _begin("", url)
            page.heading("Newest posts")
            _add_posts(page, view, view.list_posts()[:_PER_PAGE])
            return page.build()
        case ["forums"]:
            page = _begin("Forums", url)
            page.heading("All forums")
            for board in boards:
                page.link(board, board_url(board))
            return page.build()
        case ["f", board] if board in boards:
            return _render_board(view, board, query, url)
        case ["f", board, number] if re.fullmatch(r"[0-9]{1,9}", number):
            post = view.get_post(int(number))
            return _render_post(view, post, url) if post is not None and post.board == board else None
        case ["submit"]:
            return _render_submission(view, query, url)
        case ["user", username, "edit"] if username == USER.username:
            page = _begin("Edit biography", url)
            page.heading("Edit biography")
            page.textbox("Biography", "biography")
            page.button("Save", ("biography",))
            return page.build()
        case ["user", username] if username in view.database.people:
            return _render_user(view, username, url)
        case ["search"]:
            return _render_search(view, query.get("q", ""), url)
    return None


def _begin(title: str, url: str) -> Builder:
    page = Builder(url, f"{title} - {_TITLE}" if title else _TITLE)
    page.link("Home", build_url(HOST))
    page.link("Forums", build_url(HOST, "forums"))
    page.link("Submit", build_url(HOST, "submit"))
    page.textbox("Search query", "q", ("search",))
    page.link(USER.username, user_url(USER.username))
    return page


def _count_comments(post: Post) -> str:
    return f"{len(post.comments)} comment{'' if len(post.comments) == 1 else 's'}"


def _add_posts(page: Builder, view: View, posts: Sequence[Post]) -> None:
    for post in posts:
        page.link(post.title, post_url(post), key="post")
        page.text(f"Submitted by {post.author} on {format_day(post.day)} in {post.board}", depth=2)
        page.link(_count_comments(post), post_url(post), depth=2)
        page.text(f"{view.count_votes(post)} points", depth=2)


def _render_board(view: View, board: str, query: Mapping[str, str], url: str) -> Page:
    page, posts, order = _begin(board, url), view.list_posts(board), query.get("sort", "new")
    if order == "top":
        posts = sorted(posts, key=view.count_votes, reverse=True)
    elif order == "comments":
        posts = sorted(posts, key=lambda post: -len(post.comments))
    page.heading(board)
    is_subscribed = board in view.subscriptions
    page.text("Subscribed" if is_subscribed else "Not subscribed", key="subscribed")
    page.button("Unsubscribe" if is_subscribed else "Subscribe", ("subscribe", board, int(not is_subscribed)))
    for name, label in (("new", "Sort by newest"), ("top", "Sort by points"), ("comments", "Sort by comments")):
        page.link(label, build_url(HOST, f"f/{board}", sort=name))
    page.link("Submit a post here", build_url(HOST, "submit", board=board))
    text = query.get("p", "1")
    number = max(1, int(text)) if re.fullmatch(r"[0-9]{1,6}", text) else 1
    _add_posts(page, view, posts[_PER_PAGE * (number - 1) : _PER_PAGE * number])
    if number * _PER_PAGE < len(posts):
        page.link("More", build_url(HOST, f"f/{board}", sort=order, p=number + 1))
    return page.build()


def _render_post(view: View, post: Post, url: str) -> Page:
    page, vote = _begin(post.title, url), view.votes.get(post.number, 0)
    page.link(post.board, board_url(post.board))
    page.heading(post.title, key="title")
    page.text("Submitted by")
    page.link(post.author, user_url(post.author), key="author", depth=2)
    page.text(format_day(post.day), key="date", depth=2)
    page.text(f"{view.count_votes(post)} points", key="votes")
    page.text({1: "You upvoted this", -1: "You downvoted this"}.get(vote, "You have not voted"), key="vote")
    page.button("Upvote", ("vote", post.number, 0 if vote == 1 else 1))
    page.button("Downvote", ("vote", post.number, 0 if vote == -1 else -1))
    page.text(post.body, key="body")
    page.heading(f"{_count_comments(post)}, oldest first", key="num_comments")
    for comment in post.comments:
        page.link(comment.author, user_url(comment.author), key="commenter")
        page.text(comment.text, key="comments", depth=2)
    page.textbox("Comment", "comment")
    page.button("Post", ("comment", post.number))
    return page.build()


def _render_submission(view: View, query: Mapping[str, str], url: str) -> Page:
    page = _begin("Create submission", url)
    page.heading("Create submission")
    board = query.get("board", "")
    page.combobox("Forum", "board", view.database.boards)
    page.textbox("Title", "title")
    page.textbox("Body", "body")
    page.button("Create submission", ("submit", board))
    return page.build()


def _render_user(view: View, username: str, url: str) -> Page:
    page, posts = _begin(username, url), view.list_posts(author=username)
    page.heading(username)
    page.text(view.database.people[username].name)
    if username == USER.username:
        page.text(view.biography, key="biography")
        page.link("Edit biography", build_url(HOST, f"user/{username}/edit"))
    page.heading(f"{len(posts)} posts, newest first")
    if not posts:
        page.text("There are no posts yet.")
    _add_posts(page, view, posts[:_PER_PAGE])
    return page.build()


def _render_search(view: View, text: str, url: str) -> Page:
    page, terms = _begin("Search", url), set(re.findall(r"\w+", text.lower()))
    page.heading(f"Search results for: {text}")
    users = [username for username in view.database.people if username == text.strip().lower()]
    for username in users:
        page.link(username, user_url(username), key="user")
    matches = []
    for post in view.list_posts():
        num_terms = len(terms & set(re.findall(r"\w+", post.title.lower())))
        if num_terms and 2 * num_terms >= len(terms):
            matches.append((-num_terms, post.title.lower() != text.lower(), post))
    posts = [post for _, _, post in sorted(matches, key=lambda match: match[:2])]
    if not posts and not users:
        page.text("There are no results.")
    _add_posts(page, view, posts[:_PER_PAGE])
    return page.build()


def run(view: View, command: Command, fields: Mapping[str, str]) -> Outcome:
    """Runs a command of a page of the forum."""
    match command:
        case ["search"]:
            return Outcome(build_url(HOST, "search", q=fields.get("q", "").strip()))
        case ["vote", int(number), int(vote)]:
            return Outcome("", ("vote", number, vote), "Your vote was counted.")
        case ["subscribe", str(board), int(is_subscribed)]:
            return Outcome("", ("subscribe", board, is_subscribed))
        case ["comment", int(number)]:
            text = fields.get("comment", "").strip()
            return Outcome("", ("comment", number, text)) if text else Outcome(notice="The comment is empty.")
        case ["submit", str(board)]:
            board = fields.get("board", "").strip().lower() or board
            title, body = fields.get("title", "").strip(), fields.get("body", "").strip()
            if board not in view.database.boards:
                return Outcome(notice="Choose one of the forums.")
            if not title:
                return Outcome(notice="The title is empty.")
            number = max(post.number for post in view.list_posts()) + 1
            return Outcome(build_url(HOST, f"f/{board}/{number}"), ("post", board, title, body))
        case ["biography"]:
            text = fields.get("biography", "").strip()
            return Outcome(user_url(USER.username), ("biography", text), "The biography was saved.")
    return Outcome()
