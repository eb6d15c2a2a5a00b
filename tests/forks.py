"""One process that has imported torch, from which ranks, commands and scripts of these tests are forked.

A test process has one such server. Whoever forks first decides what it has imported, so all ask for the same here.
"""

from __future__ import annotations

import multiprocessing
from multiprocessing import forkserver

IMPORTED = (
    "torch.distributed.pipelining",
    "transformers.models.llama.modeling_llama",
    "peft",
    "evolvent.cli.train.command",
    "evolvent.cli.evolve",
    "evolvent.cli.serve",
    "evolvent.scale.local_backend",
    "benchmarks.parallel_cells",
)


def context() -> multiprocessing.context.ForkServerContext:
    """What forks; its server runs."""
    found = multiprocessing.get_context("forkserver")
    found.set_forkserver_preload(list(IMPORTED))
    forkserver.ensure_running()
    return found
