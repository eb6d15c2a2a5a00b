"""An HTTP server of tests that does not report clients that close a kept connection.

Its threads outlive the test, and a client's socket is closed whenever it is collected: the report on standard error
would then stand in the output of whichever test runs at that moment.
"""

from __future__ import annotations

import sys
from http.server import ThreadingHTTPServer
from typing import Any


class QuietHTTPServer(ThreadingHTTPServer):
    """Reports the errors of its handlers, except of lost connections."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)
