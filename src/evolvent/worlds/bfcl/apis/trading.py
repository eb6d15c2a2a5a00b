"""The trading bot: an account, orders, stocks, a watch list and the account's transactions."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, ClassVar

from evolvent.trajectory import Json
from evolvent.worlds.bfcl.apis.api import Api, index_by_name, operation, refuse, to_integer
from evolvent.worlds.bfcl.apis.padding import Padding

__all__ = ["Trading"]

_NOW = datetime(2024, 9, 1, 10, 30)
_DAY_S = 24 * 60 * 60
_STAMP = "%Y-%m-%d %H:%M:%S"
_LOGGED_OUT = "nobody is logged in"
_SYMBOLS = {
    "Apple": "AAPL",
    "Google": "GOOG",
    "Tesla": "TSLA",
    "Microsoft": "MSFT",
    "Nvidia": "NVDA",
    "Zeta Corp": "ZETA",
    "Alpha Tech": "ALPH",
    "Omega Industries": "OMEG",
    "Quasar Ltd.": "QUAS",
    "Neptune Systems": "NEPT",
    "Synex Solutions": "SYNX",
    "Amazon": "AMZN",
    "Gorilla": "GORI",
}
_SECTORS = {"Technology": ["AAPL", "GOOG", "MSFT", "NVDA"], "Automobile": ["TSLA", "F", "GM"]}
_FIGURES = ("price", "percent_change", "volume", "MA(5)", "MA(20)")
_QUOTES = {
    "AAPL": (227.16, 0.17, 2.552, 227.11, 227.09),
    "GOOG": (2840.34, 0.24, 1.123, 2835.67, 2842.15),
    "TSLA": (667.92, -0.12, 1.654, 671.15, 668.20),
    "MSFT": (310.23, 0.09, 3.234, 309.88, 310.11),
    "NVDA": (220.34, 0.34, 1.234, 220.45, 220.67),
    "ALPH": (1320.45, -0.08, 1.567, 1321.12, 1325.78),
    "OMEG": (457.23, 0.12, 2.345, 456.78, 458.12),
    "QUAS": (725.89, -0.03, 1.789, 726.45, 728.00),
    "NEPT": (88.34, 0.19, 0.654, 88.21, 88.67),
    "SYNX": (345.67, 0.11, 2.112, 345.34, 346.12),
    "ZETA": (22.09, -0.05, 0.789, 22.12, 22.34),
}
_ORDERS = {
    "12345": {"id": 12345, "order_type": "Buy", "symbol": "AAPL", "price": 210.65, "amount": 10, "status": "Completed"},
    "12446": {"id": 12446, "order_type": "Sell", "symbol": "GOOG", "price": 2840.56, "amount": 5, "status": "Pending"},
}
_CHAPTERS = (
    "company_overview",
    "market_analysis",
    "technical_analysis",
    "financial_highlights",
    "risks",
    "future_outlook",
    "historical_performance",
    "sustainability_initiatives",
)


class Trading(Api):
    """`TradingBot`. Orders are kept under their number, written as text; any name and password log in.

    In items of long context, stocks, orders and lists are shown with more than there is; the state stays as it is.
    """

    wire = "TradingBot"
    document = "trading_bot.json"
    seed = 1053520
    defaults: ClassVar[Mapping[str, object]] = {
        "orders": _ORDERS,
        "account_info": {"account_id": 12345, "balance": 10000.0, "binding_card": 1974202140965533},
        "authenticated": False,
        "market_status": "Closed",
        "order_counter": 12446,
        "stocks": {symbol: dict(zip(_FIGURES, quote, strict=True)) for symbol, quote in _QUOTES.items()},
        "watch_list": ["NVDA"],
        "transaction_history": [],
    }

    def __init__(self, config: Mapping[str, object], padding: Padding | None = None) -> None:
        super().__init__(config, padding)
        self.state["orders"] = {str(key): order for key, order in self.state["orders"].items()}

    def _find_order(self, order_id: Any) -> dict[str, Any] | None:
        # A number that is a text is no number of an order; other keys of the data set are found as they stand.
        number = to_integer(order_id)
        key = str(number) if number is not None else order_id
        if number is None and str(order_id).isdigit():
            return None
        order: dict[str, Any] | None = self.state["orders"].get(key)
        return order

    def _order_numbers(self) -> list[Any]:
        return [int(key) if key.isdigit() else key for key in self.state["orders"]]

    def _book_transaction(self, kind: str, amount: Any, *, sign: int) -> Json:
        """Updates the balance and records the transaction, at a time of the next day."""
        self.state["account_info"]["balance"] += sign * amount
        time = _NOW + timedelta(seconds=self._random.randint(0, _DAY_S))
        self.state["transaction_history"].append({"type": kind, "amount": amount, "timestamp": time.strftime(_STAMP)})
        return {"status": f"the {kind} is done", "new_balance": self.state["account_info"]["balance"]}

    def _time(self) -> Json:
        return {"current_time": _NOW.strftime("%I:%M %p")}

    def _symbol(self, name: Any) -> Json:
        return {"symbol": _SYMBOLS.get(name, "Stock not found")}

    def _stock(self, symbol: Any) -> Json:
        stock: dict[str, Any] | None = self.state["stocks"].get(symbol)
        if stock is None:
            return refuse(f"there is no stock {symbol}")
        if self._padding is None:
            return stock
        padding = {name: self._padding.numbers(name, 2000) for name in ("MA(5)", "MA(20)")}
        return {**stock, **padding}

    def _order_details(self, order_id: Any) -> Json:
        order = self._find_order(order_id)
        if order is None:
            return refuse(f"there is no order {order_id}, only {self._order_numbers()}")
        if self._padding is None:
            return order
        return {**order, "metadata": {name: self._padding.prose(name, 880) for name in _CHAPTERS}}

    def _cancel(self, order_id: Any) -> Json:
        order = self._find_order(order_id)
        if order is None:
            return refuse(f"there is no order {order_id}")
        if order["status"] == "Completed":
            return refuse(f"order {order_id} is completed and cannot be cancelled")
        order["status"] = "Cancelled"
        return {"order_id": order_id, "status": "Cancelled"}

    def _place(self, order_type: Any, symbol: Any, price: Any, amount: Any) -> Json:
        if not self.state["authenticated"]:
            return refuse(_LOGGED_OUT)
        if symbol not in self.state["stocks"]:
            return refuse(f"there is no stock {symbol}")
        if price <= 0 or amount <= 0:
            return refuse("price and amount must be more than 0")
        balance = self.state["account_info"].get("balance", 0)
        if order_type.lower() == "buy" and float(price) * int(amount) > balance:
            return refuse(f"that costs {float(price) * int(amount):.2f}, and the balance is {balance:.2f}")
        number = self.state["order_counter"]
        order = {"order_type": order_type, "symbol": symbol, "price": float(price), "amount": amount}
        self.state["orders"][str(number)] = {"id": number, **order, "status": "Open"}
        self.state["order_counter"] += 1
        # The answer says Pending: the order is open from the next look on.
        return {
            "order_id": number,
            "order_type": order_type,
            "status": "Pending",
            "price": float(price),
            "amount": amount,
        }

    def _withdraw(self, amount: Any) -> Json:
        if not self.state["authenticated"]:
            return refuse(_LOGGED_OUT)
        if self.state["market_status"] != "Open":
            return refuse("the market is closed")
        if amount <= 0:
            return refuse("the amount must be more than 0")
        if amount > self.state["account_info"]["balance"]:
            return refuse("the balance is smaller than that")
        return self._book_transaction("withdrawal", amount, sign=-1)

    def _fund(self, amount: Any) -> Json:
        if not self.state["authenticated"]:
            return refuse(_LOGGED_OUT)
        if amount <= 0:
            return refuse("the amount must be more than 0")
        return self._book_transaction("deposit", amount, sign=1)

    def _account(self) -> Json:
        account: dict[str, Any] = self.state["account_info"]
        return account if self.state["authenticated"] else refuse(_LOGGED_OUT)

    def _login(self, username: Any, password: Any) -> Json:
        was_logged_in = self.state["authenticated"]
        self.state["authenticated"] = was_logged_in or True
        return {"status": "logged in before" if was_logged_in else "logged in"}

    def _login_status(self) -> Json:
        return {"status": bool(self.state["authenticated"])}

    def _logout(self) -> Json:
        if not self.state["authenticated"]:
            return {"status": _LOGGED_OUT}
        self.state["authenticated"] = False
        return {"status": "logged out"}

    def _watch(self, stock: Any) -> Json:
        watched = self.state["watch_list"]
        if stock not in watched and stock in self.state["stocks"]:
            watched.append(stock)
        return {"watchlist": watched}

    def _unwatch(self, symbol: Any) -> Json:
        if not self.state["authenticated"]:
            return refuse(_LOGGED_OUT)
        if symbol not in self.state["watch_list"]:
            return refuse(f"{symbol} is not watched")
        self.state["watch_list"].remove(symbol)
        return {"status": f"{symbol} is not watched any more"}

    def _watchlist(self) -> Json:
        if not self.state["authenticated"]:
            return refuse(_LOGGED_OUT)
        more = self._padding.symbols("watched", 1000) if self._padding else []
        return {"watchlist": [*self.state["watch_list"], *more]}

    def _history(self) -> Json:
        return {"history": self._order_numbers()} if self.state["authenticated"] else refuse(_LOGGED_OUT)

    def _transactions(self, start_date: Any = None, end_date: Any = None) -> Json:
        if not self.state["authenticated"]:
            return refuse(_LOGGED_OUT)
        first = datetime.strptime(start_date, "%Y-%m-%d") if start_date else datetime.min
        last = datetime.strptime(end_date, "%Y-%m-%d") if end_date else datetime.max
        history = self.state["transaction_history"]
        selected = [
            transaction
            for transaction in history
            if first <= datetime.strptime(transaction["timestamp"], _STAMP) <= last
        ]
        return {"transaction_history": [*selected, *(self._padding.transactions if self._padding else [])]}

    def _sector(self, sector: Any) -> Json:
        symbols = copy.copy(_SECTORS.get(sector, []))
        more = self._padding.symbols(sector, 1000) if self._padding and symbols else []
        return {"stock_list": [*symbols, *more]}

    def _filter(self, stocks: Any, min_price: Any, max_price: Any) -> Json:
        prices = {symbol: self.state["stocks"].get(symbol, {}).get("price", 0) for symbol in stocks}
        return {"filtered_stocks": [symbol for symbol in stocks if min_price <= prices[symbol] <= max_price]}

    def _notify(self, stocks: Any, threshold: Any) -> Json:
        stock_data = self.state["stocks"]
        changed = [
            symbol
            for symbol in stocks
            if symbol in stock_data and abs(stock_data[symbol]["percent_change"]) >= threshold
        ]
        return {"notification": f"much has changed for {', '.join(changed)}" if changed else "nothing much has changed"}

    operations = index_by_name(
        operation("add_to_watchlist(stock)", _watch),
        operation("cancel_order(order_id)", _cancel),
        operation("filter_stocks_by_price(stocks, min_price, max_price)", _filter),
        operation("fund_account(amount)", _fund),
        operation("get_account_info()", _account),
        operation("get_available_stocks(sector)", _sector),
        operation("get_current_time()", _time),
        operation("get_order_details(order_id)", _order_details),
        operation("get_order_history()", _history),
        operation("get_stock_info(symbol)", _stock),
        operation("get_symbol_by_name(name)", _symbol),
        operation("get_transaction_history(start_date=, end_date=)", _transactions),
        operation("get_watchlist()", _watchlist),
        operation("notify_price_change(stocks, threshold)", _notify),
        operation("place_order(order_type, symbol, price, amount)", _place),
        operation("remove_stock_from_watchlist(symbol)", _unwatch),
        operation("trading_get_login_status()", _login_status),
        operation("trading_login(username, password)", _login),
        operation("trading_logout()", _logout),
        operation("withdraw_funds(amount)", _withdraw),
    )
