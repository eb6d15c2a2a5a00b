"""The eight state classes that BFCL's multi-turn items act on."""

from evolvent.worlds.bfcl.apis.api import Api, Operation, render_result
from evolvent.worlds.bfcl.apis.files import Files
from evolvent.worlds.bfcl.apis.maths import Maths
from evolvent.worlds.bfcl.apis.messages import Messages, Posting, Tickets
from evolvent.worlds.bfcl.apis.padding import Padding
from evolvent.worlds.bfcl.apis.trading import Trading
from evolvent.worlds.bfcl.apis.travel import Travel
from evolvent.worlds.bfcl.apis.vehicle import Vehicle

__all__ = [
    "APIS",
    "Api",
    "Files",
    "Maths",
    "Messages",
    "Operation",
    "Padding",
    "Posting",
    "Tickets",
    "Trading",
    "Travel",
    "Vehicle",
    "render_result",
]

APIS: dict[str, type[Api]] = {
    api_class.wire: api_class for api_class in (Files, Maths, Messages, Posting, Tickets, Trading, Travel, Vehicle)
}
"""The state classes by the names that the items use."""
