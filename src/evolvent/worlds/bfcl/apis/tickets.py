"""The ticket desk: who is logged in, and the queue of tickets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from evolvent.trajectory import Json
from evolvent.worlds.bfcl.apis.api import Api, operation, refusal, table

__all__ = ["Tickets"]

_LOGGED_OUT = "nobody is logged in"
_EDITABLE = ("title", "description", "status", "priority")


class Tickets(Api):
    """`TicketAPI`. Any user name and password that are not empty log in."""

    wire = "TicketAPI"
    document = "ticket_api.json"
    defaults: ClassVar[Mapping[str, Any]] = {"ticket_queue": [], "ticket_counter": 1, "current_user": None}

    def _ticket(self, ticket_id: Any) -> dict[str, Any] | None:
        return next((ticket for ticket in self.state["ticket_queue"] if ticket["id"] == ticket_id), None)

    def _create(self, title: Any, description: Any = "", priority: Any = 1) -> Json:
        if not self.state["current_user"]:
            return refusal(_LOGGED_OUT)
        if not 1 <= priority <= 5:
            return refusal(f"{priority} is no priority: 1 to 5")
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
        return self._ticket(ticket_id) or refusal(f"there is no ticket {ticket_id}")

    def _ended(self, ticket_id: Any, status: str) -> Json:
        ticket = self._ticket(ticket_id)
        if ticket is None:
            return refusal(f"there is no ticket {ticket_id}")
        if ticket["status"] == status:
            return refusal(f"ticket {ticket_id} is {status} already")
        ticket["status"] = status
        return {"status": f"ticket {ticket_id} is {status}"}

    def _close(self, ticket_id: Any) -> Json:
        return self._ended(ticket_id, "Closed")

    def _resolve(self, ticket_id: Any, resolution: Any) -> Json:
        result = self._ended(ticket_id, "Resolved")
        ticket = self._ticket(ticket_id)
        if ticket is not None and isinstance(result, dict) and "error" not in result:
            ticket["resolution"] = resolution
        return result

    def _edit(self, ticket_id: Any, updates: Any) -> Json:
        ticket = self._ticket(ticket_id)
        if ticket is None:
            return refusal(f"there is no ticket {ticket_id}")
        strange = sorted(set(updates) - set(_EDITABLE))
        if strange:
            return refusal(f"a ticket has no {', '.join(strange)} to change")
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
        someone = bool(self.state["current_user"])
        if someone:
            self.state["current_user"] = None
        return {"success": someone}

    def _own(self, status: Any = None) -> Json:
        user = self.state["current_user"]
        if not user:
            return [refusal(_LOGGED_OUT)]
        own = [ticket for ticket in self.state["ticket_queue"] if ticket["created_by"] == user]
        return [ticket for ticket in own if not status or ticket["status"].lower() == status.lower()]

    operations = table(
        operation("close_ticket(ticket_id)", _close),
        operation("create_ticket(title, description=, priority=)", _create),
        operation("edit_ticket(ticket_id, updates)", _edit),
        operation("get_ticket(ticket_id)", _get),
        operation("get_user_tickets(status=)", _own),
        operation("logout()", _logout),
        operation("resolve_ticket(ticket_id, resolution)", _resolve),
        operation("ticket_get_login_status()", _login_status),
        operation("ticket_login(username, password)", _login),
    )
