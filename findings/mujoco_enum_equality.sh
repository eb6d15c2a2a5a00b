#!/bin/sh
# mujoco 4.0.0: equality of an enum and an entry of a model's array depends on the side on which each stands.
#
# A model says the kinds of its joints in an array of 32-bit integers, `jnt_type`. With mujoco 3.10.0 an entry equals
# the enum's member either way. With 4.0.0 (and 3.12.0, 3.14.0 to 3.17.0) `jnt_type[0] == mjJNT_SLIDE` is true and
# `mjJNT_SLIDE == jnt_type[0]` is false, so that `jnt_type[0] in (mjJNT_HINGE, mjJNT_SLIDE)`, where Python asks the
# member first, is false. That line is how gymnasium-robotics 1.4.2, which requires mujoco>=2.2.0, sets joints: its
# Fetch environments and Shadow hands of the latest versions end in an AssertionError without a message as they are
# made (65 ids); Adroit hands run. `int(jnt_type[0])` compares right on both sides.
#
# Seen with Python 3.11, numpy 2.4.6, gymnasium-robotics 1.4.2:
#   mujoco 3.10.0: entry == member True, member == entry True, entry in members True, FetchReach-v4 made
#   mujoco 4.0.0: entry == member True, member == entry False, entry in members False, FetchReach-v4 AssertionError ''
# Fails if that changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat >"$folder/compare.py" <<'PYTHON'
import logging
import warnings
from importlib.metadata import version

warnings.simplefilter("ignore")
logging.disable(logging.ERROR)
import gymnasium
import gymnasium_robotics
import mujoco

gymnasium.logger.min_level = 50
gymnasium.register_envs(gymnasium_robotics)
model = mujoco.MjModel.from_xml_string(
    '<mujoco><worldbody><body><joint type="slide"/><geom size="1"/></body></worldbody></mujoco>'
)
entry, member = model.jnt_type[0], mujoco.mjtJoint.mjJNT_SLIDE
assert int(entry) == member and member == int(entry)
try:
    gymnasium.make("FetchReach-v4").close()
    outcome = "made"
except AssertionError as error:
    outcome = f"AssertionError {str(error)!r}"
print(
    f"mujoco {version('mujoco')}: entry == member {bool(entry == member)}, member == entry {bool(member == entry)}, "
    f"entry in members {entry in (mujoco.mjtJoint.mjJNT_HINGE, member)}, FetchReach-v4 {outcome}"
)
PYTHON
for mujoco in 3.10.0 4.0.0; do
    python3 -m venv "$folder/$mujoco"
    "$folder/$mujoco/bin/python" -m pip install --quiet "gymnasium-robotics==1.4.2" "mujoco==$mujoco" "numpy==2.4.6"
    "$folder/$mujoco/bin/python" "$folder/compare.py" | grep "^mujoco" >>"$folder/seen"
done
cat "$folder/seen"
cat >"$folder/expected" <<'TEXT'
mujoco 3.10.0: entry == member True, member == entry True, entry in members True, FetchReach-v4 made
mujoco 4.0.0: entry == member True, member == entry False, entry in members False, FetchReach-v4 AssertionError ''
TEXT
cmp "$folder/seen" "$folder/expected"
