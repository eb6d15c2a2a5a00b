"""What a method does by default is the published algorithm, as `rl/presets.py` has it."""

from __future__ import annotations

from dataclasses import replace

from evolvent.methods.etpo import PUBLISHED as ETPO_PUBLISHED
from evolvent.methods.etpo import ETPOConfig
from evolvent.methods.grpo import FAMILY, GRPOConfig
from evolvent.methods.grpo import build_preset as grpo_preset
from evolvent.methods.ntpo import NTPOConfig
from evolvent.methods.poad import POADConfig
from evolvent.methods.ppo import TOKEN, PPOConfig
from evolvent.methods.ppo import build_preset as ppo_preset
from evolvent.methods.r3 import R3Config
from evolvent.methods.r3 import build_preset as r3_preset
from evolvent.rl import presets


def test_ppo():
    made = ppo_preset(PPOConfig())
    inside = replace(
        presets.PPO_ACTION.estimator, token_lambda=made.estimator.token_lambda
    )  # nothing is inside of a whole action
    assert (made.estimator, made.loss) == (inside, presets.PPO_ACTION.loss)
    made = ppo_preset(PPOConfig(**TOKEN))
    assert (made.estimator, made.loss) == (presets.PPO.estimator, presets.PPO.loss)


def test_poad_and_ntpo():
    for preset, config in ((presets.POAD, POADConfig()), (presets.NTPO, NTPOConfig())):
        credit, loss = preset.estimator, preset.loss
        own = (config.gamma, config.gae_lambda, config.token_gamma, config.token_lambda, config.whiten)
        assert own == (credit.gamma, credit.gae_lambda, credit.token_gamma, credit.token_lambda, credit.whiten)
        assert (config.entropy_coef, config.target_kl) == (loss.entropy_coef, loss.target_kl)
        assert {config.clip_range} == {loss.surrogate.low, loss.surrogate.high, loss.value_loss.clip}
        assert config.value_coef == loss.value_loss.coefficient


def test_r3_and_the_family_of_grpo():
    made = r3_preset(R3Config())
    assert (made.estimator, made.loss) == (presets.R3.estimator, presets.R3.loss)
    for kind, preset in FAMILY.items():
        made = grpo_preset(GRPOConfig(kind=kind))
        assert (made.estimator, made.loss) == (preset.estimator, preset.loss), kind


def test_etpo():
    """What an action earned reaches back by default; the published settings do not let it, and have names."""
    assert (ETPOConfig().gae_lambda, ETPOConfig().token_lambda) == (0.95, 0.95)
    published = ETPOConfig.model_validate(ETPO_PUBLISHED)
    assert (published.beta, published.gae_lambda, published.token_lambda) == (0.01, 0.0, 0.0)
