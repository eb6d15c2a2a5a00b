"""What a method does by default is the published algorithm, as `rl/presets.py` has it."""

from __future__ import annotations

from dataclasses import replace

from evolvent.methods.grpo import FAMILY, GRPOConfig
from evolvent.methods.grpo import preset as grpo_preset
from evolvent.methods.ntpo import NTPO
from evolvent.methods.poad import POAD
from evolvent.methods.ppo import PPO, TOKEN
from evolvent.methods.ppo import preset as ppo_preset
from evolvent.methods.r3 import R3
from evolvent.methods.r3 import preset as r3_preset
from evolvent.rl import presets


def test_ppo():
    made = ppo_preset(PPO())
    inside = replace(presets.PPO_ACTION.credit, lam_part=made.credit.lam_part)  # nothing is inside of a whole action
    assert (made.credit, made.loss) == (inside, presets.PPO_ACTION.loss)
    made = ppo_preset(PPO(**TOKEN))
    assert (made.credit, made.loss) == (presets.PPO.credit, presets.PPO.loss)


def test_poad_and_ntpo():
    for preset, config in ((presets.POAD, POAD()), (presets.NTPO, NTPO())):
        credit, loss = preset.credit, preset.loss
        own = (config.gamma, config.lam, config.gamma_part, config.lam_part, config.whiten)
        assert own == (credit.gamma, credit.lam, credit.gamma_part, credit.lam_part, credit.whiten)
        assert (config.entropy, config.stop_kl) == (loss.entropy, loss.stop_kl)
        assert {config.clip} == {loss.surrogate.low, loss.surrogate.high, loss.value.clip}
        assert config.value == loss.value.coefficient


def test_r3_and_the_family_of_grpo():
    made = r3_preset(R3())
    assert (made.credit, made.loss) == (presets.R3.credit, presets.R3.loss)
    for kind, preset in FAMILY.items():
        made = grpo_preset(GRPOConfig(kind=kind))
        assert (made.credit, made.loss) == (preset.credit, preset.loss), kind
