"""The travel system: access token, credit cards, flights, bookings and budget."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from datetime import date, datetime
from functools import cache
from typing import Any, ClassVar

from evolvent.errors import InvalidAction
from evolvent.trajectory import Json
from evolvent.worlds.bfcl.apis.api import Api, index_by_name, operation, refuse
from evolvent.worlds.bfcl.apis.padding import Padding

__all__ = ["Travel"]

_TODAY = date(2024, 9, 1)  # ages are counted to a day of the data set, so that a verdict does not change with the year
_AIRPORTS = {
    "Rivermist": "RMS",
    "Stonebrook": "SBK",
    "Maplecrest": "MPC",
    "Silverpine": "SVP",
    "Shadowridge": "SHD",
    "Paris": "CDG",
    "London": "LHR",
    "Sunset Valley": "SSV",
    "Oakendale": "OKD",
    "Willowbend": "WLB",
    "Beijing": "PEK",
    "Tokyo": "HND",
    "Hong Kong": "HKG",
    "Rome": "CIA",
    "Crescent Hollow": "CRH",
    "Autumnville": "ATV",
    "Pinehaven": "PHV",
    "Greenfield": "GFD",
    "San Francisco": "SFO",
    "Los Angeles": "LAX",
    "New York": "JFK",
    "Chicago": "ORD",
    "Boston": "BOS",
}
_FARES = """
SFO LAX 200 JFK 500 ORD 400 BOS 450 RMS 300 SBK 350 MPC 370 SVP 320 SHD 330 SSV 340 OKD 360 WLB 310 CRH 380 ATV 390
SFO PHV 420 GFD 430 CIA 700
LAX SFO 100 JFK 600 ORD 500 BOS 550 RMS 310 SBK 320 MPC 330 SVP 340 SHD 350 SSV 360 OKD 370 WLB 380 CRH 390 ATV 400
LAX PHV 410 GFD 420 HND 430
JFK ORD 300 BOS 250 RMS 450 SBK 460 MPC 470 SVP 480 SHD 490 SSV 500 OKD 510 WLB 520 CRH 530 ATV 540 PHV 550 GFD 560
JFK LAX 570 HND 800 PVG 950 PEK 1000
ORD LAX 180 BOS 200 RMS 350 SBK 360 MPC 370 SVP 380 SHD 390 SSV 400 OKD 410 WLB 420 CRH 430 ATV 440 PHV 450 GFD 460
BOS RMS 400 SBK 410 MPC 420 SVP 430 SHD 440 SSV 450 OKD 460 WLB 470 CRH 480 ATV 490 PHV 500 GFD 510
RMS BOS 200 JFK 210 SBK 220 MPC 230 SVP 240 SHD 250 SSV 260 OKD 270 WLB 280 CRH 290 ATV 300 PHV 310 GFD 320 LAX 330
SBK MPC 200 SVP 210 SHD 220 SSV 230 OKD 240 WLB 250 CRH 260 ATV 270 PHV 280 GFD 290
MPC SVP 210 SHD 220 SSV 230 OKD 240 WLB 250 CRH 260 ATV 270 PHV 280 GFD 290
SVP SHD 230 SSV 240 OKD 250 WLB 260 CRH 270 ATV 280 PHV 290 GFD 300
SHD SSV 220 OKD 230 WLB 240 CRH 250 ATV 260 PHV 270 GFD 280
SSV OKD 240 WLB 250 CRH 260 ATV 270 PHV 280 GFD 290
OKD WLB 230 CRH 240 ATV 250 PHV 260 GFD 270 LAX 220
WLB CRH 250 ATV 260 PHV 270 GFD 280
CRH ATV 240 PHV 250 GFD 260 SFO 270 RMS 280 HKG 290 JFK 300
ATV PHV 230 GFD 240
PHV GFD 220
LHR CDG 100
"""
_CLASSES = {"economy": 1, "business": 2, "first": 5}
_PER_DOLLAR = {
    "RMB": 7,
    "EUR": 0.8,
    "JPY": 110,
    "GBP": 0.7,
    "CAD": 1.3,
    "AUD": 1.4,
    "INR": 70,
    "RUB": 60,
    "BRL": 3.8,
    "MXN": 20,
}
_INVOICED = ("travel_date", "travel_from", "travel_to", "travel_class", "travel_cost", "transaction_id")


def _parse_fares() -> dict[tuple[str, str], int]:
    """Parses (from, to) -> dollars, economy, on a day with an odd digit sum."""
    routes: dict[tuple[str, str], int] = {}
    for line in _FARES.split("\n"):
        start, *pairs = line.split() or [""]
        routes |= {(start, end): int(fare) for end, fare in zip(pairs[::2], pairs[1::2], strict=True)}
    return routes


_ROUTES = _parse_fares()


def _compute_costs(day: str, travel_class: str) -> Mapping[tuple[str, str], float]:
    """Computes (from, to) -> dollars: the fare times the class's factor, and doubled where the date's digit sum is
    even.

    Raises:
        InvalidAction: a class that does not exist.
    """
    factor = _CLASSES.get(travel_class)
    if factor is None:
        raise InvalidAction(f"{travel_class} is no class: economy, business, first")
    return _scale_fares(factor * (2 - sum(int(digit) for digit in day if digit.isdigit()) % 2))


@cache
def _scale_fares(factor: int) -> Mapping[tuple[str, str], float]:
    return {route: float(fare * factor) for route, fare in _ROUTES.items()}


class Travel(Api):
    """`TravelAPI`. Numbers of cards, bookings, payments and insurances come from the data set's generator."""

    wire = "TravelAPI"
    document = "travel_booking.json"
    seed = 141053
    defaults: ClassVar[Mapping[str, object]] = {
        "credit_card_list": {},
        "booking_record": {},
        "access_token": None,
        "token_type": None,
        "token_expires_in": None,
        "token_scope": None,
        "user_first_name": None,
        "user_last_name": None,
        "budget_limit": None,
    }

    def __init__(self, config: Mapping[str, object], padding: Padding | None = None) -> None:
        super().__init__(config, padding)
        if padding is not None:
            self.state["credit_card_list"] = {**copy.deepcopy(padding.cards), **self.state["credit_card_list"]}
            self.state["booking_record"] = {**copy.deepcopy(padding.bookings), **self.state["booking_record"]}

    def _draw_number(self, digits: int) -> str:
        """Draws a number of `digits` digits, as text."""
        return str(self._random.randint(10 ** (digits - 1), 10**digits - 1))

    def _token_error(self, access_token: Any) -> str | None:
        """Explains why the token is invalid; returns None where it is valid."""
        if self.state["token_expires_in"] == 0:
            return "the token has expired"
        return None if access_token == self.state["access_token"] else "that is not the access token"

    def _authenticate(  # the parameters are those of the documents
        self, client_id: Any, client_secret: Any, refresh_token: Any, grant_type: Any, first: Any, last: Any
    ) -> Json:
        self.state |= {
            "token_expires_in": 2,
            "access_token": self._draw_number(6),
            "token_type": "Bearer",
            "token_scope": grant_type,
            "user_first_name": first,
            "user_last_name": last,
        }
        token = self.state["access_token"]
        return {"expires_in": 2, "access_token": token, "token_type": "Bearer", "scope": grant_type}

    def _login_status(self) -> Json:
        return {"status": self.state["token_expires_in"] not in (None, 0)}

    def _fiscal_year(self, last_modified_after: Any = None, include_removed: Any = None) -> Json:
        return {"budget_fiscal_year": "2018"}

    def _register(self, access_token: Any, number: Any, expires: Any, holder: Any, verification: Any) -> Json:
        cards = self.state["credit_card_list"]
        reason = "there is no token yet" if self.state["token_expires_in"] is None else self._token_error(access_token)
        if reason or number in cards:
            return refuse(reason or "the card is registered already")
        card_id = self._draw_number(12)
        cards[card_id] = {
            "card_number": number,
            "expiration_date": expires,
            "cardholder_name": holder,
            "card_verification_number": verification,
            "balance": int(self._draw_number(5)),
        }
        return {"card_id": card_id}

    def _flight_cost(self, travel_from: Any, travel_to: Any, travel_date: Any, travel_class: Any) -> Json:
        route = (travel_from, travel_to)
        if route not in _ROUTES:
            raise InvalidAction(f"there is no flight from {travel_from} to {travel_to}")
        costs = _compute_costs(travel_date, travel_class)
        return {"travel_cost_list": list(costs.values()) if self._padding else [costs[route]]}

    def _balance(self, access_token: Any, card_id: Any) -> Json:
        cards = self.state["credit_card_list"]
        reason = self._token_error(access_token)
        if reason or card_id not in cards:
            return refuse(reason or f"there is no card {card_id}, only {list(cards)}")
        return {"card_balance": cards[card_id]["balance"]}

    def _booking_error(self, card_id: Any, day: Any, route: tuple[Any, Any], travel_class: Any) -> str | None:
        """Explains why a flight cannot be booked; returns None where it can."""
        card = self.state["credit_card_list"].get(card_id)
        if card is None or "balance" not in card:
            return f"there is no card {card_id} with a balance"
        if not set(route) <= set(_AIRPORTS.values()):
            return f"{route[0]} or {route[1]} is no airport"
        try:
            datetime.strptime(day, "%Y-%m-%d")
        except ValueError:
            return f"{day} is no date: YYYY-MM-DD"
        if travel_class not in _CLASSES or route not in _ROUTES:
            return f"there is no {travel_class} flight from {route[0]} to {route[1]}"
        if card["balance"] < _compute_costs(day, travel_class)[route]:
            return "the card's balance is smaller than that"
        limit = self.state["budget_limit"]
        return "the card's balance is below the budget" if limit is not None and card["balance"] < limit else None

    def _book(self, access_token: Any, card_id: Any, day: Any, start: Any, end: Any, travel_class: Any) -> Json:
        route = (start, end)
        reason = self._token_error(access_token) or self._booking_error(card_id, day, route, travel_class)
        if reason:
            return refuse(reason, booking_status=False)
        cost = _compute_costs(day, travel_class)[route]
        self.state["credit_card_list"][card_id]["balance"] -= cost
        booking_id, payment = self._draw_number(7), self._draw_number(8)
        self.state["booking_record"][booking_id] = {
            "card_id": card_id,
            "travel_date": day,
            "travel_from": start,
            "travel_to": end,
            "travel_class": travel_class,
            "travel_cost": cost,
            "transaction_id": payment,
        }
        history = self.state["booking_record"] if self._padding else {}
        return {
            "booking_id": booking_id,
            "transaction_id": payment,
            "booking_status": True,
            "booking_history": history,
        }

    def _invoice(self, access_token: Any, booking_id: Any = None, insurance_id: Any = None) -> Json:
        reason = self._token_error(access_token)
        if reason or booking_id not in self.state["booking_record"]:
            return refuse(reason or f"there is no booking {booking_id}")
        booking = self.state["booking_record"][booking_id]
        return {"invoice": {"booking_id": booking_id, **{name: booking[name] for name in _INVOICED}}}

    def _bookings(self, access_token: Any) -> Json:
        reason = self._token_error(access_token)
        return refuse(reason) if reason else {"booking_history": self.state["booking_record"]}

    def _list_airports(self) -> Json:
        return list(_AIRPORTS.values())

    def _cancel(self, access_token: Any, booking_id: Any) -> Json:
        bookings = self.state["booking_record"]
        reason = self._token_error(access_token)
        if reason or booking_id not in bookings:
            return refuse(reason or f"there is no booking {booking_id}", cancel_status=False)
        booking = bookings[booking_id]
        self.state["credit_card_list"][booking["card_id"]]["balance"] += booking["travel_cost"]
        del bookings[booking_id]
        return {"cancel_status": True}

    def _exchange(self, base_currency: Any, target_currency: Any, value: Any) -> Json:
        if base_currency == "USD" and target_currency in _PER_DOLLAR:
            return {"exchanged_value": float(value * _PER_DOLLAR[target_currency])}
        if target_currency == "USD" and base_currency in _PER_DOLLAR:
            return {"exchanged_value": round(value / _PER_DOLLAR[base_currency], 2)}
        raise InvalidAction(f"{base_currency} is not exchanged for {target_currency}")

    def _verify(self, first_name: Any, last_name: Any, date_of_birth: Any, passport_number: Any) -> Json:
        reason = None
        try:
            birth_date = datetime.strptime(date_of_birth, "%Y-%m-%d").date()
        except ValueError:
            birth_date, reason = _TODAY, f"{date_of_birth} is no date: YYYY-MM-DD"
        age = _TODAY.year - birth_date.year - ((_TODAY.month, _TODAY.day) < (birth_date.month, birth_date.day))
        if (first_name, last_name) != (self.state["user_first_name"], self.state["user_last_name"]):
            reason = f"{first_name} {last_name} is not the user"
        elif reason is None and age < 18:
            reason = "the traveler is not 18 yet"
        elif reason is None and not passport_number.startswith("US"):
            reason = "the passport is not of the United States"
        return (
            {"verification_status": False, "verification_failure": reason} if reason else {"verification_status": True}
        )

    def _budget(self, access_token: Any, budget_limit: Any) -> Json:
        reason = self._token_error(access_token)
        if reason:
            return refuse(reason)
        self.state["budget_limit"] = float(budget_limit)
        return {"budget_limit": self.state["budget_limit"]}

    def _nearest(self, location: Any) -> Json:
        return {"nearest_airport": _AIRPORTS.get(location, "Unknown")}

    def _insure(self, access_token: Any, kind: Any, cost: Any, booking_id: Any, card_id: Any) -> Json:
        limit, cards = self.state["budget_limit"], self.state["credit_card_list"]
        reason = self._token_error(access_token)
        if reason is None and limit is not None and limit < cost:
            reason = "that is above the budget"
        if reason is None and booking_id not in self.state["booking_record"]:
            reason = f"there is no booking {booking_id}"
        if reason is None and card_id not in cards:
            reason = f"there is no card {card_id}"
        if reason:
            return refuse(reason, insurance_status=False)
        cards[card_id]["balance"] -= cost
        return {"insurance_id": self._draw_number(9), "insurance_status": True}

    def _support(self, booking_id: Any, message: Any) -> Json:
        if booking_id not in self.state["booking_record"]:
            return refuse(f"there is no booking {booking_id}")
        return {"customer_support_message": "we have received the message and will answer soon"}

    def _cards(self) -> Json:
        return {"credit_card_list": self.state["credit_card_list"]}

    operations = index_by_name(
        operation(
            "authenticate_travel(client_id, client_secret, refresh_token, grant_type, user_first_name, user_last_name)",
            _authenticate,
        ),
        operation("book_flight(access_token, card_id, travel_date, travel_from, travel_to, travel_class)", _book),
        operation("cancel_booking(access_token, booking_id)", _cancel),
        operation("compute_exchange_rate(base_currency, target_currency, value)", _exchange),
        operation("contact_customer_support(booking_id, message)", _support),
        operation("get_all_credit_cards()", _cards),
        operation("get_booking_history(access_token)", _bookings),
        operation("get_budget_fiscal_year(lastModifiedAfter=, includeRemoved=)", _fiscal_year),
        operation("get_credit_card_balance(access_token, card_id)", _balance),
        operation("get_flight_cost(travel_from, travel_to, travel_date, travel_class)", _flight_cost),
        operation("get_nearest_airport_by_city(location)", _nearest),
        operation("list_all_airports()", _list_airports),
        operation("purchase_insurance(access_token, insurance_type, insurance_cost, booking_id, card_id)", _insure),
        operation(
            "register_credit_card(access_token, card_number, expiration_date, cardholder_name, "
            "card_verification_number)",
            _register,
        ),
        operation("retrieve_invoice(access_token, booking_id=, insurance_id=)", _invoice),
        operation("set_budget_limit(access_token, budget_limit)", _budget),
        operation("travel_get_login_status()", _login_status),
        operation("verify_traveler_information(first_name, last_name, date_of_birth, passport_number)", _verify),
    )
