"""How quick the viewer is with 100,000 trajectories, in Chromium, and what axe-core finds in its pages.

    python -m benchmarks.viewer [--json] [--quick] [--save] [--axe PATH]

`first_paint_ms`: from asking for the list of trajectories of a store that the server has never opened until its first
rows are painted. `search_ms`: from the last key of a word until the rows that hold it are painted. Both are medians.
The store is sealed; `logged_...` are the same for a run that is still going on, whose log holds a twentieth as many.
`axe_serious`: serious and critical findings over all kinds of pages, light and dark; None without axe-core, which is
not part of this project (`npm install axe-core` in a folder of its own; PATH is its axe.min.js).
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.reporting import RESULTS, about, command_line, finish, load, show
from benchmarks.viewer_browser import Tab, chromium, opened_tab
from benchmarks.viewer_runs import SEED, logged_run, sealed_run

COUNT, QUICK = 100_000, 10_000
WORDS = ("chrysalis", "quartz", "lamp egg", "open heat", "zzz", "copy-000", "drawer", "ledger mango")
PAINTED = (
    "performance.getEntriesByName('rows painted').length > 0"
    " && performance.getEntriesByName('first-contentful-paint').length > 0"
)
_READY = """
{ const box = document.getElementById("search");
box.focus();
box.select();
performance.clearMeasures();
box.addEventListener("input", (event) => { window.typed = event.timeStamp; }, { once: true }); }
"""
SEARCHED = "performance.getEntriesByName('search painted').length > 0"


@contextmanager
def viewer(folder: Path) -> Iterator[tuple[str, str]]:
    """The viewer of a folder in a process of its own: its address, and the address that opens it."""
    command = [sys.executable, "-m", "evolvent.cli.main", "view", str(folder), "--serve"]
    environment = {**os.environ, "COLUMNS": "500", "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        line = process.stdout.readline() if process.stdout else ""
        door = line.split(" at ", 1)[1].split()[0]
        yield door.partition("/enter/")[0], door
    finally:
        process.terminate()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def addresses(tab: Tab, base: str) -> dict[str, str]:
    """The runs by name, as the list of runs links them."""
    tab.go(f"{base}/")
    links = "[...document.querySelectorAll('.runs th a')].map(a => [a.innerText, a.getAttribute('href')])"
    return dict(tab.value(links))


def paints(folder: Path, name: str, times: int) -> list[float]:
    """Milliseconds to the first rows, each time by a server that has just started."""
    found = []
    for _ in range(times):
        with viewer(folder) as (base, door), opened_tab(chromium() or "chromium") as tab:
            tab.shape(1280, 900)
            tab.go(door)
            where = addresses(tab, base)[name]
            tab.call("Page.navigate", url=f"{base}{where}/trajectories")
            tab.until(PAINTED)
            marked = tab.value("performance.getEntriesByName('rows painted')[0].startTime")
            first = tab.value("performance.getEntriesByName('first-contentful-paint')[0].startTime")
            found.append(max(marked, first))
    return found


def searches(tab: Tab, where: str, words: Sequence[str]) -> tuple[list[float], float]:
    """Milliseconds from the last key of each word to its rows, and seconds until the whole store had been read."""
    began = time.perf_counter()
    tab.go(where)
    tab.until("!document.getElementById('found').textContent.includes('reading')")
    read_s = time.perf_counter() - began
    found = []
    for word in words:
        tab.value(_READY)
        tab.type(word)
        tab.until(SEARCHED)
        ended = "performance.getEntriesByName('search painted').at(-1)"
        found.append(tab.value(f"{ended}.startTime + {ended}.duration - window.typed"))
    return found, read_s


def findings(tab: Tab, pages: Sequence[str], axe: Path) -> list[dict[str, Any]]:
    """Serious and critical findings of axe-core: page, colours, rule and element."""
    source, found = axe.read_text(encoding="utf-8"), []
    for dark in (False, True):
        tab.shape(1280, 900, dark=dark)
        for page in pages:
            tab.go(page)
            tab.call("Runtime.evaluate", expression=source)
            rows = tab.value(
                "axe.run().then(r => r.violations.filter(v => ['serious', 'critical'].includes(v.impact))"
                ".map(v => [v.id, v.nodes.length, v.nodes[0].html.slice(0, 200)]))"
            )
            found += [
                {"page": page.partition("/")[2][-60:], "dark": dark, "rule": rule, "times": times, "first": html}
                for rule, times, html in rows
            ]
    return found


def pages_of(tab: Tab, base: str, where: str) -> list[str]:
    """One page of every kind that these runs have."""
    tab.go(f"{base}{where}/trajectories")
    first = tab.value("document.querySelector('#rows tr[data-row] a').getAttribute('href')")
    return [f"{base}{path}" for path in ("/", where, f"{where}/trajectories", first, "/boards", f"{where}/nothing")]


def measured(count: int, times: int, axe: Path | None) -> dict[str, Any]:
    """Everything, as one row."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        sealed_run(folder / "sealed", count)
        logged_run(folder / "logged", count // 20)
        cold = {name: paints(folder, name, times) for name in ("sealed", "logged")}
        with viewer(folder) as (base, door), opened_tab(chromium() or "chromium") as tab:
            tab.shape(1280, 900)
            tab.go(door)
            runs = addresses(tab, base)
            warm = {name: searches(tab, f"{base}{where}/trajectories", WORDS) for name, where in runs.items()}
            pages = [
                *pages_of(tab, base, runs["sealed"]),
                f"{base}/compare?run={runs['sealed'][5:]}&run={runs['logged'][5:]}",
            ]
            wrong = findings(tab, pages, axe) if axe else None
    row: dict[str, Any] = {
        "first_paint_ms": round(statistics.median(cold["sealed"]), 1),
        "search_ms": round(statistics.median(warm["sealed"][0]), 1),
        "axe_serious": None if wrong is None else len(wrong),
    }
    row |= {
        "trajectories": count,
        "slowest_search_ms": round(max(warm["sealed"][0]), 1),
        "read_s": round(warm["sealed"][1], 2),
        "logged_trajectories": count // 20,
        "logged_first_paint_ms": round(statistics.median(cold["logged"]), 1),
        "logged_search_ms": round(statistics.median(warm["logged"][0]), 1),
        "logged_read_s": round(warm["logged"][1], 2),
        "paints": len(cold["sealed"]),
        "words": len(WORDS),
        "load_1min": load()[0],
        "cores": os.cpu_count(),
        "findings": wrong,
        "seed": SEED,
        **about("evolvent", "starlette", "uvicorn", "pyarrow", cores=True),
    }
    told = subprocess.run([chromium() or "chromium", "--version"], capture_output=True, text=True, check=True).stdout
    row["versions"]["chromium"] = next((word for word in told.split() if word[0].isdigit()), told.strip())
    return row


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; 1 where there is no Chromium."""
    few = f"{QUICK:,} trajectories, painted once"
    parser = command_line("viewer", __doc__, quick=few, save=RESULTS / "viewer.json")
    parser.add_argument("--axe", type=Path, help="axe.min.js of axe-core")
    options = parser.parse_args(arguments)
    if chromium() is None:
        print("no Chromium on the path", file=sys.stderr)
        return 1
    if options.axe is not None and not options.axe.is_file():
        parser.error(f"there is no file {options.axe}")
    row = measured(QUICK if options.quick else COUNT, 1 if options.quick else 3, options.axe) | {"quick": options.quick}
    show(row)
    finish(row, options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
