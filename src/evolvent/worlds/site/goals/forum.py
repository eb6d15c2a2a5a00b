"""Tasks in the forum: posts by title, rank in a board or author; boards."""

from __future__ import annotations

import numpy as np

from evolvent.worlds.site.database import Database, Post
from evolvent.worlds.site.evaluators import Evaluation, ProgramCheck
from evolvent.worlds.site.goals.base import RANKS, Goal, Navigator, Slots, Source, pick
from evolvent.worlds.site.pages.forum import HOST, board_url, post_url
from evolvent.worlds.site.records import View, load_view

__all__ = ["BOARD_GOALS", "BOARD_SOURCES", "COMMENTS", "POST_GOALS", "POST_SOURCES", "TITLES"]

COMMENTS = (
    "Thank you, I will try this next week.",
    "I had the same problem in March.",
    "Could you add a photo?",
    "My neighbor swears by it.",
    "That is the best answer so far.",
    "I would rather rent one first.",
    "Has anybody done this with children?",
    "Please keep us posted.",
)
TITLES = (
    "A question for the weekend",
    "Looking for company",
    "What I found out today",
    "Please share your notes",
    "My first attempt",
    "Worth knowing",
    "Before I forget it",
    "For the record",
)
_BODIES = (
    "I am new here and grateful for every hint.",
    "Let us meet on Saturday at noon.",
    "It was easier than I thought.",
    "I collect the answers in a list.",
    "Be kind, I have never done this before.",
)


def _draw_title(database: Database, rng: np.random.Generator, is_missing: bool) -> Slots:
    post = pick(rng, list(database.posts.values()))
    if is_missing:
        board = pick(rng, list(database.boards))
        titles = {post.title for post in database.boards[board]}
        return {"post": next(title for title in TITLES if title not in titles), "board": board}
    return {"post": post.title, "board": post.board}


def _resolve_title(database: Database, slots: Slots) -> Post | None:
    posts = database.boards.get(str(slots["board"]), [])
    return next((post for post in posts if post.title == slots["post"]), None)


def _search_title(user: Navigator, slots: Slots) -> bool:
    user.type("Search query", slots["post"], enter=True)
    return user.click(role="link", name=str(slots["post"]), key="post")


def _draw_board(database: Database, rng: np.random.Generator, is_missing: bool) -> Slots:
    return {"board": pick(rng, list(database.boards))}


def _draw_rank(database: Database, rng: np.random.Generator, is_missing: bool) -> Slots:
    return {"board": pick(rng, list(database.boards)), "rank": pick(rng, RANKS)}


def _start_view(database: Database) -> View:
    return load_view(database, ())


def _get_newest(database: Database, slots: Slots) -> Post | None:
    return _start_view(database).list_posts(str(slots["board"]))[RANKS.index(str(slots["rank"]))]


def _get_commented(database: Database, slots: Slots) -> Post | None:
    posts = sorted(database.boards[str(slots["board"])], key=lambda post: -len(post.comments))
    return posts[RANKS.index(str(slots["rank"]))]


def _get_top(database: Database, slots: Slots) -> Post | None:
    posts = sorted(database.boards[str(slots["board"])], key=lambda post: -post.votes)
    return posts[RANKS.index(str(slots["rank"]))]


def _open_board(user: Navigator, slots: Slots) -> bool:
    user.click(role="link", name="Forums")
    return user.click(role="link", name=str(slots["board"]))


def _open_ranked(user: Navigator, slots: Slots, order: str) -> bool:
    _open_board(user, slots)
    user.click(role="link", name=order)
    return user.click(key="post", index=RANKS.index(str(slots["rank"])))


def _draw_author(database: Database, rng: np.random.Generator, is_missing: bool) -> Slots:
    authors = {post.author for post in database.posts.values()}
    users = [username for username in database.people if (username in authors) != is_missing]
    return {"user": pick(rng, users or list(database.people))}


def _get_by_author(database: Database, slots: Slots) -> Post | None:
    return next(iter(_start_view(database).list_posts(author=str(slots["user"]))), None)


def _open_by_author(user: Navigator, slots: Slots) -> bool:
    user.type("Search query", slots["user"], enter=True)
    return user.click(key="user") and user.click(key="post")


POST_SOURCES = (
    Source(
        "titled post",
        "post",
        HOST,
        "the post {post!r} in the forum {board}",
        _draw_title,
        _resolve_title,
        _search_title,
    ),
    Source(
        "newest post",
        "post",
        HOST,
        "the {rank}newest post in the forum {board}",
        _draw_rank,
        _get_newest,
        lambda user, slots: _open_ranked(user, slots, "Sort by newest"),
        can_miss=False,
    ),
    Source(
        "most commented post",
        "post",
        HOST,
        "the post with the {rank}most comments in the forum {board}",
        _draw_rank,
        _get_commented,
        lambda user, slots: _open_ranked(user, slots, "Sort by comments"),
        can_miss=False,
    ),
    Source(
        "post of a user",
        "post",
        HOST,
        "the newest post of the forum user {user}",
        _draw_author,
        _get_by_author,
        _open_by_author,
    ),
    Source(
        "top post",
        "post",
        HOST,
        "the post with the {rank}most points in the forum {board}",
        _draw_rank,
        _get_top,
        lambda user, slots: _open_ranked(user, slots, "Sort by points"),
        can_miss=False,
    ),
)
BOARD_SOURCES = (
    Source[str](
        "board",
        "board",
        HOST,
        "the forum {board}",
        _draw_board,
        lambda database, slots: str(slots["board"]),
        _open_board,
        can_miss=False,
    ),
)


def _click(user: Navigator, name: str) -> str:
    user.click(role="button", name=name)
    return ""


def _comment(user: Navigator, slots: Slots) -> str:
    user.type("Comment", slots["comment"])
    return _click(user, "Post")


def _ask_commenter(database: Database, post: Post, slots: Slots) -> Evaluation | None:
    return Evaluation(exact_match=post.comments[-1].author) if post.comments else None


def _submit(user: Navigator, slots: Slots) -> str:
    user.click(role="link", name="Submit a post here")
    user.type("Title", slots["title"])
    user.type("Body", slots["body"])
    return _click(user, "Create submission")


POST_GOALS = (
    Goal[Post](
        "author",
        "post",
        ("Who wrote {target}?", "Tell me the username of the author of {target}."),
        lambda database, post, slots: Evaluation(exact_match=post.author),
        lambda user, slots: user.read_node("author"),
        is_question=True,
    ),
    Goal[Post](
        "number of comments",
        "post",
        ("How many comments does {target} have?",),
        lambda database, post, slots: Evaluation(must_include=(f"{len(post.comments)}",)),
        lambda user, slots: user.read_node("num_comments"),
        is_question=True,
        is_count=True,
    ),
    Goal[Post](
        "open",
        "post",
        ("Open {target}.", "Show me {target}."),
        lambda database, post, slots: Evaluation(reference_url=post_url(post)),
        lambda user, slots: "",
    ),
    Goal[Post](
        "upvote",
        "post",
        ("Upvote {target}.", "Give {target} my upvote."),
        lambda database, post, slots: Evaluation(
            program_html=(ProgramCheck(post_url(post), "vote", ("You upvoted this",), is_exact=True),)
        ),
        lambda user, slots: _click(user, "Upvote"),
    ),
    Goal[Post](
        "comment",
        "post",
        ("Comment on {target}: {comment!r}.", "Write {comment!r} as a comment on {target}."),
        lambda database, post, slots: Evaluation(
            program_html=(ProgramCheck(post_url(post), "comments", (str(slots["comment"]),)),)
        ),
        _comment,
        lambda database, rng, post: {"comment": pick(rng, COMMENTS)},
    ),
    Goal[Post](
        "latest commenter",
        "post",
        (
            "Who wrote the latest comment on {target}?",
            "Tell me the username of the last one who commented on {target}.",
        ),
        _ask_commenter,
        lambda user, slots: user.read_last("commenter") or "N/A",
        is_question=True,
    ),
    Goal[Post](
        "downvote",
        "post",
        ("Downvote {target}.", "Give {target} my downvote."),
        lambda database, post, slots: Evaluation(
            program_html=(ProgramCheck(post_url(post), "vote", ("You downvoted this",), is_exact=True),)
        ),
        lambda user, slots: _click(user, "Downvote"),
    ),
)
BOARD_GOALS = (
    Goal[str](
        "submit",
        "board",
        ("Submit a post to {target} with the title {title!r} and the body {body!r}.",),
        lambda database, board, slots: Evaluation(
            program_html=(
                ProgramCheck(f"func:latest_post:{board}", "title", (str(slots["title"]),), is_exact=True),
                ProgramCheck(f"func:latest_post:{board}", "body", (str(slots["body"]),)),
            )
        ),
        _submit,
        lambda database, rng, board: {"title": pick(rng, TITLES), "body": pick(rng, _BODIES)},
    ),
    Goal[str](
        "subscribe",
        "board",
        ("Subscribe to {target}.", "I want to follow {target}; subscribe to it."),
        lambda database, board, slots: Evaluation(
            program_html=(ProgramCheck(board_url(board), "subscribed", ("Subscribed",), is_exact=True),)
        ),
        lambda user, slots: _click(user, "Subscribe"),
    ),
)
