#!/bin/sh
# vmas 1.5.2: two environments of a process draw from one random stream, seeds or not.
#
# An environment is made with a seed and stepped, once alone and once beside a second environment that is made and
# stepped in turns with it. The states of the generators are kept in a list of the class, so the second environment moves
# the stream of the first, and its seed is set over the first one's. In scenarios that draw while they play, such as
# football, the same seed and the same actions give another episode. Scenarios that only draw at reset agree.
#
# Seen with Python 3.11, torch 2.13.0 (CPU), vmas 1.5.2:
#   football: the same episode beside another environment: False
#   balance: the same episode beside another environment: True
# Fails if that changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet "torch==2.13.*" "vmas==1.5.2"
"$folder/venv/bin/python" - <<'PYTHON'
import warnings

warnings.simplefilter("ignore")
import torch
from vmas import make_env


def play(scenario, *, beside):
    """Plays 30 steps without moving and returns all observations."""
    env = make_env(scenario, num_envs=1, device="cpu", seed=0)
    other = make_env(scenario, num_envs=1, device="cpu", seed=1) if beside else None
    actions = [torch.zeros(1, 2) for _ in env.agents]
    seen = list(env.reset(seed=0))
    for _ in range(30):
        seen += env.step(actions)[0]
        if other is not None:
            other.step(actions)
    return torch.cat([observation.flatten() for observation in seen])


same = {}
for scenario in ("football", "balance"):
    same[scenario] = torch.equal(play(scenario, beside=False), play(scenario, beside=True))
    print(f"{scenario}: the same episode beside another environment: {same[scenario]}")
assert same == {"football": False, "balance": True}, "the streams are others now"
PYTHON
