"""What a rank of `test_restarts.py` does: it meets the others in a store that earlier starts have used."""

from __future__ import annotations

import os
import signal
from typing import Any

import torch

from evolvent.errors import RankFailed
from evolvent.learn.parallel.ranks import Mesh, RankCoordinator, join_ranks


def rank(number: int, size: int, port: int, how: tuple[str, float], said: Any) -> None:
    """Say the sum of all ranks' numbers plus 1, or why there is none.

    Args:
        how: how rank 1 ends after that (`well`, `killed` or `raising`), and how long a rank waits for the others.
    """
    end, timeout = how
    torch.set_num_threads(1)
    os.environ.update(
        RANK=str(number),
        LOCAL_RANK=str(number),
        WORLD_SIZE=str(size),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        TORCHELASTIC_USE_AGENT_STORE="True",
    )
    try:
        with (
            RankCoordinator(timeout) as meeting,
            join_ranks(Mesh(shard=size), timeout=20, coordinator=meeting) as ranks,
        ):
            meeting.run_on_leader(lambda: None)
            said.put((number, ranks.sum(torch.tensor([number + 1.0]), "dp").item()))
            if number == 1 and end == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            if number == 1 and end == "raising":
                raise ValueError("rank 1 has had enough")
            ranks.sum(torch.ones(1), "dp")
    except RankFailed as error:
        said.put((number, str(error)))
    except ValueError:
        said.put((number, "enough"))
