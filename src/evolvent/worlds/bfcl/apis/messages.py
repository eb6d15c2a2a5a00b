"""The workspace's messages: users, the logged-in user, and the sent messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from evolvent.trajectory import Json
from evolvent.worlds.bfcl.apis.api import Api, index_by_name, operation, refuse
from evolvent.worlds.bfcl.apis.padding import Padding

__all__ = ["Messages"]

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
