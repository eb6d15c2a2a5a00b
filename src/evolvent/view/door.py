"""Access control of the viewer: a token in the address that a browser is opened at, a cookie from then on.

Whoever reaches the loopback could otherwise read every run: other people of the machine, and programs in sandboxes
that share its network. The token stands in the address once, is answered with a cookie that scripts cannot read, and
the browser goes on to an address without it. Programs bear it as `Authorization: Bearer TOKEN` instead.
"""

from __future__ import annotations

import hashlib
import hmac
import json

from evolvent.web import App, Receive, Scope, Send, reject, send_response

__all__ = ["ENTRY_PATH", "require_token"]

ENTRY_PATH = "/enter/"
"""Before the token, in the address that opens the viewer."""

_EXPECTED = "the whole address that `evolvent view --serve` printed"
_PAGE = f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<meta name="color-scheme" content="light dark"><title>No access</title></head>
<body><h1>No access</h1><p>The token is missing or wrong. Open {_EXPECTED}.</p></body></html>
""".encode()
_PAGE_HEADERS = [
    (b"cache-control", b"no-store"),
    (b"referrer-policy", b"no-referrer"),
    (b"content-security-policy", b"default-src 'none'"),
]
_COOKIE = "HttpOnly; SameSite=Lax; Path=/"  # Strict would not come back from a link in another program's page


def require_token(app: App, token: str) -> App:
    """Wraps the app behind the token: any other request is answered 403, whatever its path and method."""
    name = f"evolvent-{hashlib.sha256(token.encode()).hexdigest()[:10]}"  # cookies do not know ports, servers do
    bearer = f"Bearer {token}"

    async def guard(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await app(scope, receive, send)
        path = str(scope["path"])
        if (
            path.startswith(ENTRY_PATH)
            and _equal_in_constant_time(path[len(ENTRY_PATH) :], token)
            and scope["type"] == "http"
        ):
            cookie = f"{name}={token}; {_COOKIE}"
            headers = [
                (b"location", b"/"),
                (b"set-cookie", cookie.encode()),
                (b"cache-control", b"no-store"),
                (b"referrer-policy", b"no-referrer"),
            ]
            return await send_response(send, 303, b"", headers=headers, kind=b"text/plain")
        request_headers = dict(scope["headers"])
        if _equal_in_constant_time(
            request_headers.get(b"authorization", b"").decode("latin-1"), bearer
        ) or _equal_in_constant_time(_cookie_value(request_headers.get(b"cookie", b"").decode("latin-1"), name), token):
            return await app(scope, receive, send)
        row = {"kind": "AccessDenied", "message": "no token, or a wrong one", "status": 403, "expected": _EXPECTED}
        if scope["type"] == "http" and b"text/html" in request_headers.get(b"accept", b""):
            return await send_response(send, 403, _PAGE, headers=_PAGE_HEADERS, kind=b"text/html; charset=utf-8")
        return await reject(scope, send, status=403, body=json.dumps(row).encode())

    return guard


def _equal_in_constant_time(received: str, expected: str) -> bool:
    """Returns whether the texts are equal; the time taken does not reveal where they differ."""
    return hmac.compare_digest(received.encode("utf-8", "replace"), expected.encode())


def _cookie_value(header: str, name: str) -> str:
    """Returns the value of a cookie. Other servers of this host set theirs too, in forms that no strict parser reads
    past.
    """
    parts = (part.strip().partition("=") for part in header.split(";"))
    return next((value for key, _, value in parts if key == name), "")
