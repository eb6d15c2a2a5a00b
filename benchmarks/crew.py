"""Ranks on this machine: processes that stay alive; each call runs a function in all of them, in a new process group.

    with Crew(4) as crew:
        results = crew.run(function, argument)      # [function(argument) of rank 0, 1, 2, 3]

`function` is a module-level function; it runs with one torch thread, gloo, and the environment that torchrun sets.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import queue
import socket
import sys
import time
import traceback
from datetime import timedelta


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _serve(rank, size, calls, results, path):
    sys.path[:0] = [entry for entry in path if entry not in sys.path]
    import warnings

    import torch
    import torch.distributed as dist

    from evolvent.errors import EvolventError, TrainingError, boundary

    torch.set_num_threads(1)
    while (call := calls.get()) is not None:
        module, name, arguments, port, seconds = call
        os.environ.update(
            RANK=str(rank),
            LOCAL_RANK=str(rank),
            WORLD_SIZE=str(size),
            LOCAL_WORLD_SIZE=str(size),
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=str(port),
        )
        try:
            with warnings.catch_warnings(), boundary(TrainingError, f"rank {rank} failed"):
                warnings.simplefilter("ignore")
                dist.init_process_group("gloo", timeout=timedelta(seconds=seconds))
                found = getattr(importlib.import_module(module), name)(*arguments)
                dist.barrier()
            results.put((rank, True, found))
        except EvolventError:
            results.put((rank, False, traceback.format_exc()))
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()
            _forget()


def _forget():
    """Drop what torch keeps of meshes that are gone: a new one that equals them would be led to their groups.

    Meshes and their groups refer to each other, and each group that is not collected keeps threads that poll.
    """
    import gc

    import torch._dynamo
    from torch.distributed.tensor import _redistribute, debug

    _redistribute._gen_transform_infos.cache_clear()
    _redistribute.clear_redistribute_planner_cache()
    debug._clear_sharding_prop_cache()
    torch._dynamo.reset()
    gc.collect()


class Crew:
    """`size` ranks on this machine; a context manager. They are forked from a server that has imported torch."""

    def __init__(self, size, *, timeout=120):
        self.size, self._timeout = size, timeout
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["torch.distributed.pipelining", "transformers.models.llama.modeling_llama"])
        self._results = context.Queue()
        self._calls = [context.Queue() for _ in range(size)]
        self._processes = [
            context.Process(target=_serve, args=(rank, size, calls, self._results, list(sys.path)), daemon=True)
            for rank, calls in enumerate(self._calls)
        ]
        for process in self._processes:
            process.start()

    def run(self, function, *arguments):
        """The results of all ranks, in order; AssertionError with the traceback of the first that failed."""
        port = _free_port()
        for calls in self._calls:
            calls.put((function.__module__, function.__name__, arguments, port, self._timeout))
        found = {}
        while len(found) < self.size:
            rank, ok, result = self._next()
            if not ok:
                self.close(kill=True)
                raise AssertionError(f"rank {rank}: {result}")
            found[rank] = result
        return [found[rank] for rank in range(self.size)]

    def _next(self):
        """The next rank's result; AssertionError where a rank died, or nothing came for too long."""
        until = time.monotonic() + self._timeout + 60
        while True:
            try:
                return self._results.get(timeout=1)
            except queue.Empty:
                dead = [rank for rank, process in enumerate(self._processes) if process.exitcode is not None]
                if dead or time.monotonic() > until:
                    self.close(kill=True)
                    raise AssertionError(f"ranks {dead} died" if dead else "no rank answered") from None

    def close(self, *, kill=False):
        for process, calls in zip(self._processes, self._calls, strict=True):
            process.kill() if kill else calls.put(None)
        for process in self._processes:
            process.join(10)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close(kill=error[0] is not None)
