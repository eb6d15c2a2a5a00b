"""A world of one's own that every process builds alike: an untrained policy is paid in it now and then."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from evolvent.worlds.base import Play, TextWorld

WORDS = ("red", "green", "blue", "grey")


class Loose(TextWorld):
    """Begin with the word that is shown."""

    name = "loose"
    horizon = 2
    run_in_thread = False
    reward_range = (0.0, 2.0)

    def specs(self) -> Iterable[Mapping[str, Any]]:
        return [{"first": a, "then": b, "copy": n} for a in WORDS for b in WORDS for n in range(6)]

    def play(self, spec: Mapping[str, Any]) -> Play:
        said = yield f"say {spec['first']}"
        said = yield f"say {spec['then']}", float(said.split()[:1] == [spec["first"]])
        return float(said.split()[:1] == [spec["then"]])

    def vocabulary(self) -> Sequence[str]:
        return ("say", *WORDS)
