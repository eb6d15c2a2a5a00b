#!/bin/sh
# gymnasium 1.4.0: AsyncVectorEnv with shared memory (its default) never reads an observation of a Text space again.
#
# Packages: gymnasium==1.4.0, numpy==2.4.6 (Python 3.11, Linux).
# Behavior: `read_from_shared_memory` returns a tuple of strings, made once when the vectorized environment is created,
# where other spaces return a view of the memory. `reset` and `step` give that tuple again and again, whatever the
# environments write. With `shared_memory=False` the observations are right.
# Seen with Python 3.11:
#   shared memory: ('00000000', '00000000') ('00000000', '00000000')
#   without: ('start', 'start') ('go', 'stop')
# Fails if that changes. evolvent registers its own space of texts (`worlds/gym/export.py`), so `as_gymnasium` is not affected.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet gymnasium==1.4.0 numpy==2.4.6
cat > "$folder/echo.py" <<'PY'
import gymnasium
from gymnasium.spaces import Text
from gymnasium.vector import AsyncVectorEnv


class Echo(gymnasium.Env):
    observation_space = action_space = Text(8)

    def reset(self, *, seed=None, options=None):
        return "start", {}

    def step(self, action):
        return action, 0.0, False, False, {}


if __name__ == "__main__":
    observed = {}
    for shared in (True, False):
        many = AsyncVectorEnv([Echo, Echo], shared_memory=shared)
        first, _ = many.reset()
        later = many.step(("go", "stop"))[0]
        observed[shared] = (tuple(first), tuple(later))
        many.close()
    print("shared memory:", *observed[True])
    print("without:", *observed[False])
    assert observed[False] == (("start", "start"), ("go", "stop"))
    assert observed[True][0] != ("start", "start") and observed[True][1] != ("go", "stop"), "the behavior has changed"
PY
"$folder/venv/bin/python" "$folder/echo.py"
