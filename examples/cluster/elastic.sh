#!/usr/bin/env bash
# One rank of a training that goes on whenever torchrun starts its ranks again, on as many as there are then. On each host:
#
#   export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1   # a host that comes later finds the others
#   torchrun --no-python --nnodes 1:4 --nproc-per-node 8 --max-restarts 100 \
#     --rdzv-id JOB --rdzv-backend c10d --rdzv-endpoint FIRST:29500 \
#     examples/cluster/elastic.sh runs/wide sft chats.jsonl --policy MODEL
#
# The ranks lie along --parallel.$LAYOUT (shard). The folder of the run must be shared by all hosts.
set -euo pipefail

run=${1:?the folder of the run}
shift
if [ -f "$run/config.toml" ]; then
  words=(--resume "$run")
else
  words=("$@" --to "$run")
fi
exec python -m evolvent train "${words[@]}" "--parallel.${LAYOUT:-shard}" "$WORLD_SIZE"
