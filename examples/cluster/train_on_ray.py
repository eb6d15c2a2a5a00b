"""One training on a Ray cluster: Ray Train starts its ranks as torchrun would, and again from the last checkpoint.

    python examples/cluster/train_on_ray.py '10.0.0.1:6379?players=16&gpus=1' runs/wide sft chats.jsonl --policy MODEL

16 ranks of one GPU each. The folder of the run must be shared by all nodes; what it holds goes on.
"""

import sys
from pathlib import Path

from evolvent.scale.ray_cluster import connect, parse_cluster
from evolvent.scale.ray_train import train_on_cluster

if __name__ == "__main__":
    address, folder, *words = sys.argv[1:]
    cluster = parse_cluster(address)
    with connect(cluster):
        print(train_on_cluster(words, folder=Path(folder), placement=cluster.placement))
