"""The wheel: built, installed beside the packages that are there, and used outside the checkout."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# Installed packages are found through this process's own paths; the checkout's source is not.
PLACES = [path for path in sys.path if "site-packages" in path]


def run(*words: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "PIP_", "COLUMNS"))}
    return subprocess.run([*map(str, words)], cwd=cwd, env=environment, capture_output=True, text=True, timeout=300)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel of a copy of the source: nothing is written into the checkout."""
    copy = tmp_path_factory.mktemp("copy")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        (copy / name).write_bytes((ROOT / name).read_bytes())
    for path in (ROOT / "src" / "evolvent").rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            to = copy / path.relative_to(ROOT)
            to.parent.mkdir(parents=True, exist_ok=True)
            to.write_bytes(path.read_bytes())
    built = run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", copy / "dist", cwd=copy)
    assert built.returncode == 0, built.stdout + built.stderr
    (found,) = (copy / "dist").glob("*.whl")
    return found


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """A fresh environment with the wheel, and the dependencies of this one beside it."""
    place = tmp_path_factory.mktemp("elsewhere")
    assert run(sys.executable, "-m", "venv", "--without-pip", place / "venv", cwd=place).returncode == 0
    python = place / "venv" / "bin" / "python"
    site = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=place).stdout.strip()
    options = (
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
        "--disable-pip-version-check",
        "--prefix",
        place / "venv",
    )
    done = run(sys.executable, "-m", "pip", "--python", python, *options, wheel, cwd=place)
    assert done.returncode == 0, done.stderr
    (Path(site) / "beside.pth").write_text("\n".join(PLACES) + "\n", encoding="utf-8")
    return place


def test_what_the_wheel_holds(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    held = {name.removeprefix("evolvent/") for name in names if name.startswith("evolvent/")}
    data = {
        path.relative_to(ROOT / "src" / "evolvent").as_posix()
        for path in (ROOT / "src" / "evolvent").rglob("*")
        if path.is_file() and path.suffix in (".py", ".json", ".html", ".css", ".typed", ".toml")
    }
    assert "py.typed" in data and "worlds/workshop.json" in data
    assert data <= held, f"missing in the wheel: {sorted(data - held)}"
    strangers = [name for name in names if not name.startswith(("evolvent/", "evolvent-"))]
    assert not strangers, "no generic names on the path"


def test_the_wheel_works_outside_the_checkout(installed):
    where = run(installed / "venv" / "bin" / "python", "-c", "import evolvent; print(evolvent.__file__)", cwd=installed)
    assert str(installed) in where.stdout, where.stdout + where.stderr
    command = installed / "venv" / "bin" / "evolvent"
    done = run(command, "worlds", "list", cwd=installed)
    assert done.returncode == 0 and "crafting" in done.stdout, done.stderr
    done = run(command, "collect", "--limit", "3", "--worlds", "workshop", "--to", "run", cwd=installed)
    assert done.returncode == 0 and "3 episodes, success 100%" in done.stdout, done.stderr
    assert run(command, "view", "run", cwd=installed).returncode == 0
    assert (installed / "run" / "report.html").is_file()


def test_the_version_is_one():
    import tomllib

    import evolvent

    written = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    assert evolvent.__version__ == written


def test_constraints_fit_the_floors():
    """Every direct dependency is pinned, and every pin lies within pyproject's bounds."""
    import re
    import tomllib

    from packaging.requirements import Requirement
    from packaging.version import Version

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    rows = [*project["dependencies"], *(row for rows in project["optional-dependencies"].values() for row in rows)]
    wanted = {need.name.lower(): need for need in map(Requirement, rows) if need.name != "evolvent"}
    text = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    pins = dict(re.findall(r"^([\w.-]+)==([\w.]+?)(?:\.\*)?$", text, re.MULTILINE))
    assert set(wanted) <= set(pins), f"not pinned: {sorted(set(wanted) - set(pins))}"
    assert not [name for name, need in wanted.items() if Version(pins[name]) not in need.specifier]
