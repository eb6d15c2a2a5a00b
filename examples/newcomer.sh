#!/usr/bin/env bash
# From an empty folder to an installed library, a new world, a trained agent and a table that compares the agent with
# chance. Takes under two CPU-minutes, with the installation of wheels that are at hand.
#     bash examples/newcomer.sh FOLDER      (FOLDER must be empty or not there; EVOLVENT names another checkout)
set -euo pipefail

SOURCE=${EVOLVENT:-$(cd "$(dirname "$0")/.." && pwd)}
FOLDER=${1:?usage: bash examples/newcomer.sh FOLDER}
export OMP_NUM_THREADS=1 COLUMNS=100
mkdir -p "$FOLDER"
[ -z "$(ls -A "$FOLDER")" ] || { echo "$FOLDER is not empty"; exit 2; }
cd "$FOLDER"
began=$SECONDS
say() { printf '\n== %s (after %d s)\n' "$1" $((SECONDS - began)); }

say "install"
python3 -m venv .venv
.venv/bin/python -m pip install --quiet --disable-pip-version-check -c "$SOURCE/constraints.txt" "$SOURCE[train]"
PATH="$PWD/.venv/bin:$PATH"
evolvent doctor

say "a new world, in a file of its own"
cp "$SOURCE/examples/own_world.py" .
python own_world.py > own_world.txt
head -n 3 own_world.txt

say "demonstrations of experts"
evolvent collect --agent expert --to runs/shown

say "an agent that imitates them"
evolvent train sft runs/shown --to runs/sft --train.tokens 60000

say "the agent and random play on the test panels"
evolvent bench agent-eval --agent policy --policy runs/sft --worlds crafting,lookup --limit 50 --sheet mine.json --to runs/mine
evolvent bench agent-eval --agent random --worlds crafting,lookup --limit 50 --sheet chance.json --to runs/chance

say "the table"
evolvent bench leaderboard mine.json chance.json
ls -l leaderboard.html

say "done"
