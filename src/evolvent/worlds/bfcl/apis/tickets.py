"""The ticket service: the logged-in user, and the queue of tickets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from evolvent.trajectory import Json
from evolvent.worlds.bfcl.apis.api import Api, index_by_name, operation, refuse

__all__ = ["Tickets"]

_LOGGED_OUT = "nobody is logged in"
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
