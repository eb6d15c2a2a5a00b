#!/bin/sh
# Fetches SmolLM2 (93 MB) for the tests of a pretrained model. Without a network they are skipped; this script never
# fails.
"$1" models get smollm2 >/dev/null 2>&1 || echo "no SmolLM2: tests of a pretrained model are skipped"
exit 0
