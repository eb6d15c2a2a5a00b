"""The workspace's messages: users, the logged-in user, and the sent messages.

The posting service: tweets, comments, retweets and followed users.

The ticket service: the logged-in user, and the queue of tickets.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from evolvent.trajectory import Json
from evolvent.worlds.bfcl.apis.api import Api, index_by_name, operation, refuse, to_integer
from evolvent.worlds.bfcl.apis.padding import Padding

__all__ = ["Messages", "Posting", "Tickets"]


_EDITABLE = ("title", "description", "status", "priority")


class Tickets(Api):
    """`TicketAPI`. Any user name and password that are not empty log in."""

    wire = "TicketAPI"
    document = "ticket_api.json"
    defaults: ClassVar[Mapping[str, object]] = {"ticket_queue": [], "ticket_counter": 1, "current_user": None}

    def _ticket(self, ticket_id: Any) -> dict[str, Any] | None:
        return next((ticket for ticket in self.state["ticket_queue"] if ticket["id"] == ticket_id), None)

    def _create(self, title: Any, description: Any = "", priority: Any = 1) -> Json:
        if not self.state["current_user"]:
            return refuse(_LOGGED_OUT)
        if not 1 <= priority <= 5:
            return refuse(f"{priority} is no priority: 1 to 5")
        ticket = {
            "id": self.state["ticket_counter"],
            "title": title,
            "description": description,
            "status": "Open",
            "priority": priority,
            "created_by": self.state["current_user"],
        }
        self.state["ticket_queue"].append(ticket)
        self.state["ticket_counter"] += 1
        return ticket

    def _get(self, ticket_id: Any) -> Json:
        return self._ticket(ticket_id) or refuse(f"there is no ticket {ticket_id}")

    def _end_ticket(self, ticket_id: Any, status: str) -> Json:
        ticket = self._ticket(ticket_id)
        if ticket is None:
            return refuse(f"there is no ticket {ticket_id}")
        if ticket["status"] == status:
            return refuse(f"ticket {ticket_id} is {status} already")
        ticket["status"] = status
        return {"status": f"ticket {ticket_id} is {status}"}

    def _close(self, ticket_id: Any) -> Json:
        return self._end_ticket(ticket_id, "Closed")

    def _resolve(self, ticket_id: Any, resolution: Any) -> Json:
        result = self._end_ticket(ticket_id, "Resolved")
        ticket = self._ticket(ticket_id)
        if ticket is not None and isinstance(result, dict) and "error" not in result:
            ticket["resolution"] = resolution
        return result

    def _edit(self, ticket_id: Any, updates: Any) -> Json:
        ticket = self._ticket(ticket_id)
        if ticket is None:
            return refuse(f"there is no ticket {ticket_id}")
        unknown_fields = sorted(set(updates) - set(_EDITABLE))
        if unknown_fields:
            return refuse(f"a ticket has no {', '.join(unknown_fields)} to change")
        ticket.update({name: value for name, value in updates.items() if value is not None})
        return {"status": f"ticket {ticket_id} is updated"}

    def _login(self, username: Any, password: Any) -> Json:
        if not username or not password:
            return {"success": False}
        self.state["current_user"] = username
        return {"success": True}

    def _login_status(self) -> Json:
        return {"login_status": bool(self.state["current_user"])}

    def _logout(self) -> Json:
        was_logged_in = bool(self.state["current_user"])
        if was_logged_in:
            self.state["current_user"] = None
        return {"success": was_logged_in}

    def _user_tickets(self, status: Any = None) -> Json:
        user = self.state["current_user"]
        if not user:
            return [refuse(_LOGGED_OUT)]
        tickets = [ticket for ticket in self.state["ticket_queue"] if ticket["created_by"] == user]
        return [ticket for ticket in tickets if not status or ticket["status"].lower() == status.lower()]

    operations = index_by_name(
        operation("close_ticket(ticket_id)", _close),
        operation("create_ticket(title, description=, priority=)", _create),
        operation("edit_ticket(ticket_id, updates)", _edit),
        operation("get_ticket(ticket_id)", _get),
        operation("get_user_tickets(status=)", _user_tickets),
        operation("logout()", _logout),
        operation("resolve_ticket(ticket_id, resolution)", _resolve),
        operation("ticket_get_login_status()", _login_status),
        operation("ticket_login(username, password)", _login),
    )


_NOT_AUTHENTICATED = "the user is not authenticated"


class Posting(Api):
    """`TwitterAPI`. Tweets and comments are stored under their number, written as text.

    Every tweet has its own lists; in the leaderboard's class, tweets without mentions share one list, so that a
    mention in one of them appears in all, in later items too.
    """

    wire = "TwitterAPI"
    document = "posting_api.json"
    defaults: ClassVar[Mapping[str, object]] = {
        "username": "john",
        "password": "john123",
        "authenticated": False,
        "tweets": {},
        "comments": {},
        "retweets": {},
        "following_list": ["alice", "bob"],
        "tweet_counter": 0,
    }

    def __init__(self, config: Mapping[str, object], padding: Padding | None = None) -> None:
        super().__init__(config, padding)
        for name in ("tweets", "comments"):
            self.state[name] = {str(key): value for key, value in self.state[name].items()}

    def _tweet(self, tweet_id: Any) -> dict[str, Any] | None:
        number = to_integer(tweet_id)
        tweet: dict[str, Any] | None = self.state["tweets"].get(str(number)) if number is not None else None
        return tweet

    def _authenticate(self, username: Any, password: Any) -> Json:
        is_correct = username == self.state["username"] and password == self.state["password"]
        self.state["authenticated"] = is_correct or self.state["authenticated"]
        return {"authentication_status": is_correct}

    def _login_status(self) -> Json:
        return {"login_status": bool(self.state["authenticated"])}

    def _post(self, content: Any, tags: Any = None, mentions: Any = None) -> Json:
        if not self.state["authenticated"]:
            return refuse(_NOT_AUTHENTICATED)
        number = self.state["tweet_counter"]
        tweet = {
            "id": number,
            "username": self.state["username"],
            "content": content,
            "tags": [] if tags is None else tags,
            "mentions": [] if mentions is None else mentions,
        }
        self.state["tweets"][str(number)] = tweet
        self.state["tweet_counter"] += 1
        return tweet

    def _retweet(self, tweet_id: Any) -> Json:
        if not self.state["authenticated"]:
            return refuse(_NOT_AUTHENTICATED)
        if self._tweet(tweet_id) is None:
            return refuse(f"there is no tweet {tweet_id}")
        user_retweets = self.state["retweets"].setdefault(self.state["username"], [])
        if tweet_id in user_retweets:
            return {"retweet_status": "retweeted before"}
        user_retweets.append(tweet_id)
        return {"retweet_status": "retweeted"}

    def _comment(self, tweet_id: Any, comment_content: Any) -> Json:
        if not self.state["authenticated"]:
            return refuse(_NOT_AUTHENTICATED)
        if self._tweet(tweet_id) is None:
            return refuse(f"there is no tweet {tweet_id}")
        comments = self.state["comments"].setdefault(str(to_integer(tweet_id)), [])
        comments.append({"username": self.state["username"], "content": comment_content})
        return {"comment_status": "commented"}

    def _mention(self, tweet_id: Any, mentioned_usernames: Any) -> Json:
        tweet = self._tweet(tweet_id)
        if tweet is None:
            return refuse(f"there is no tweet {tweet_id}")
        tweet["mentions"].extend(mentioned_usernames)
        return {"mention_status": "mentioned"}

    def _follow(self, username_to_follow: Any) -> Json:
        if not self.state["authenticated"]:
            return refuse(_NOT_AUTHENTICATED)
        is_followed = username_to_follow in self.state["following_list"]
        if not is_followed:
            self.state["following_list"].append(username_to_follow)
        return {"follow_status": not is_followed}

    def _unfollow(self, username_to_unfollow: Any) -> Json:
        if not self.state["authenticated"]:
            return refuse(_NOT_AUTHENTICATED)
        is_followed = username_to_unfollow in self.state["following_list"]
        if is_followed:
            self.state["following_list"].remove(username_to_unfollow)
        return {"unfollow_status": is_followed}

    def _following(self) -> Json:
        if not self.state["authenticated"]:
            return refuse(_NOT_AUTHENTICATED)
        return {"following_list": self.state["following_list"]}

    def _get(self, tweet_id: Any) -> Json:
        return self._tweet(tweet_id) or refuse(f"there is no tweet {tweet_id}")

    def _user_tweets(self, username: Any) -> list[Any]:
        return [tweet for tweet in self.state["tweets"].values() if tweet["username"] == username]

    def _search(self, keyword: Any) -> Json:
        lowered_keyword = keyword.lower()
        return [
            tweet
            for tweet in self.state["tweets"].values()
            if lowered_keyword in tweet["content"].lower() or lowered_keyword in [tag.lower() for tag in tweet["tags"]]
        ]

    def _comments(self, tweet_id: Any) -> Json:
        if self._tweet(tweet_id) is None:
            return refuse(f"there is no tweet {tweet_id}")
        comments: list[Any] = self.state["comments"].get(str(to_integer(tweet_id)), [])
        return comments

    def _stats(self, username: Any) -> Json:
        following = len(self.state["following_list"]) if username == self.state["username"] else 0
        return {
            "tweet_count": len(self._user_tweets(username)),
            "following_count": following,
            "retweet_count": len(self.state["retweets"].get(username, [])),
        }

    operations = index_by_name(
        operation("authenticate_twitter(username, password)", _authenticate),
        operation("comment(tweet_id, comment_content)", _comment),
        operation("follow_user(username_to_follow)", _follow),
        operation("get_tweet(tweet_id)", _get),
        operation("get_tweet_comments(tweet_id)", _comments),
        operation("get_user_stats(username)", _stats),
        operation("get_user_tweets(username)", _user_tweets),
        operation("list_all_following()", _following),
        operation("mention(tweet_id, mentioned_usernames)", _mention),
        operation("post_tweet(content, tags=, mentions=)", _post),
        operation("posting_get_login_status()", _login_status),
        operation("retweet(tweet_id)", _retweet),
        operation("search_tweets(keyword)", _search),
        operation("unfollow_user(username_to_unfollow)", _unfollow),
    )


_LOGGED_OUT = "nobody is logged in"


class Messages(Api):
    """`MessageAPI`. An inbox is a list of `{receiver: text}`, the latest last."""

    wire = "MessageAPI"
    document = "message_api.json"
    seed = 200191
    defaults: ClassVar[Mapping[str, object]] = {
        "generated_ids": [],
        "user_count": 4,
        "user_map": {"Alice": "USR001", "Bob": "USR002", "Catherine": "USR003", "Daniel": "USR004"},
        "inbox": [
            {"USR002": "My name is Alice. I want to connect."},
            {"USR003": "Could you upload the file?"},
            {"USR004": "Could you upload the file?"},
        ],
        "message_count": 3,
        "current_user": None,
    }

    def __init__(self, config: Mapping[str, object], padding: Padding | None = None) -> None:
        super().__init__(config, padding)
        # The data set counts ids as a set: kept sorted, so that their order says nothing.
        self.state["generated_ids"] = sorted(set(self.state["generated_ids"]))

    def _new_id(self) -> int:
        used_ids = self.state["generated_ids"]
        while (number := self._random.randint(10_000, 99_999)) in used_ids:
            pass
        self.state["generated_ids"] = sorted([*used_ids, number])
        return number

    def _list_sent(self) -> list[tuple[str, str]]:
        """Lists (receiver, text) of every message, the oldest first."""
        return [next(iter(message.items())) for message in self.state["inbox"]]

    def _list_users(self) -> Json:
        return {"user_list": list(self.state["user_map"])}

    def _get_user_id(self, user: Any) -> Json:
        user_id = self.state["user_map"].get(user)
        return refuse(f"there is no user {user}") if user_id is None else {"user_id": user_id}

    def _login(self, user_id: Any) -> Json:
        if user_id not in self.state["user_map"].values():
            return {"login_status": False, "message": f"there is no user with the id {user_id}"}
        self.state["current_user"] = user_id
        return {"login_status": True, "message": f"{user_id} is logged in"}

    def _login_status(self) -> Json:
        return {"login_status": bool(self.state["current_user"])}

    def _send(self, receiver_id: Any, message: Any) -> Json:
        if not self.state["current_user"]:
            return refuse(_LOGGED_OUT)
        if receiver_id not in self.state["user_map"].values():
            return refuse(f"there is no receiver with the id {receiver_id}")
        number = self._new_id()
        self.state["inbox"].append({receiver_id: message})
        self.state["message_count"] += 1
        return {"sent_status": True, "message_id": number, "message": f"the message to {receiver_id} is sent"}

    def _delete(self, receiver_id: Any) -> Json:
        if not self.state["current_user"]:
            return refuse(_LOGGED_OUT)
        indices = [index for index, (receiver, _) in enumerate(self._list_sent()) if receiver == receiver_id]
        if not indices:
            return refuse(f"nothing was sent to {receiver_id}")
        # The data set deletes the first message that equals the latest one, which leaves the same texts in the inbox.
        latest = self.state["inbox"][indices[-1]]
        self.state["inbox"].remove(latest)
        return {
            "deleted_status": True,
            "receiver_id": receiver_id,
            "message": f"the latest message to {receiver_id} is deleted",
        }

    def _view(self) -> Json:
        if not self.state["current_user"]:
            return refuse(_LOGGED_OUT)
        grouped: dict[str, Any] = {}
        for receiver, text in self._list_sent():
            grouped.setdefault(receiver, []).append(text)
        return {"messages": grouped}

    def _add_contact(self, user_name: Any) -> Json:
        if user_name in self.state["user_map"]:
            return refuse(f"there is a user {user_name} already")
        # The number is used up even where its id is taken: the next try gets the next one.
        self.state["user_count"] += 1
        user_id = f"USR{self.state['user_count']:03d}"
        if user_id in self.state["user_map"].values():
            return refuse(f"there is a user with the id {user_id} already")
        self.state["user_map"][user_name] = user_id
        return {"added_status": True, "user_id": user_id, "message": f"{user_name} is a contact now"}

    def _search(self, keyword: Any) -> Json:
        if not self.state["current_user"]:
            return refuse(_LOGGED_OUT)
        lowered_keyword = keyword.lower()
        matches = [(receiver, text) for receiver, text in self._list_sent() if lowered_keyword in text.lower()]
        return {"results": [{"receiver_id": receiver, "message": text} for receiver, text in matches]}

    def _stats(self) -> Json:
        if not self.state["current_user"]:
            return refuse(_LOGGED_OUT)
        sent = self._list_sent()
        return {"stats": {"received_count": len(sent), "total_contacts": len({receiver for receiver, _ in sent})}}

    operations = index_by_name(
        operation("add_contact(user_name)", _add_contact),
        operation("delete_message(receiver_id)", _delete),
        operation("get_message_stats()", _stats),
        operation("get_user_id(user)", _get_user_id),
        operation("list_users()", _list_users),
        operation("message_get_login_status()", _login_status),
        operation("message_login(user_id)", _login),
        operation("search_messages(keyword)", _search),
        operation("send_message(receiver_id, message)", _send),
        operation("view_messages_sent()", _view),
    )
