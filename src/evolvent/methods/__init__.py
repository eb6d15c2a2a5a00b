"""Methods: one file per paper.

`evolvent.methods.grpo` is the module of GRPO, with the function `grpo` and its settings `GRPOConfig`. The settings of
every method are also here, loaded when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from evolvent.lazy import lazy_namespace

if TYPE_CHECKING:
    from evolvent.methods.agdc import AGDCConfig as AGDCConfig
    from evolvent.methods.agentevol import AgentEvolConfig as AgentEvolConfig
    from evolvent.methods.algorithm_distillation import AlgorithmDistillationConfig as AlgorithmDistillationConfig
    from evolvent.methods.comments import CommentsConfig as CommentsConfig
    from evolvent.methods.decision_transformer import DecisionTransformerConfig as DecisionTransformerConfig
    from evolvent.methods.etpo import ETPOConfig as ETPOConfig
    from evolvent.methods.gato import GatoConfig as GatoConfig
    from evolvent.methods.generalized_dt import GeneralizedDTConfig as GeneralizedDTConfig
    from evolvent.methods.grpo import GRPOConfig as GRPOConfig
    from evolvent.methods.hammer import HammerConfig as HammerConfig
    from evolvent.methods.mat import MATConfig as MATConfig
    from evolvent.methods.ntpo import NTPOConfig as NTPOConfig
    from evolvent.methods.online_dt import OnlineDTConfig as OnlineDTConfig
    from evolvent.methods.openr import OpenRConfig as OpenRConfig
    from evolvent.methods.p3 import P3Config as P3Config
    from evolvent.methods.poad import POADConfig as POADConfig
    from evolvent.methods.ppo import PPOConfig as PPOConfig
    from evolvent.methods.prompt_dt import PromptDTConfig as PromptDTConfig
    from evolvent.methods.q_decision_transformer import QDecisionTransformerConfig as QDecisionTransformerConfig
    from evolvent.methods.q_transformer import QTransformerConfig as QTransformerConfig
    from evolvent.methods.r3 import R3Config as R3Config
    from evolvent.methods.return_text import ReturnTextConfig as ReturnTextConfig
    from evolvent.methods.scaling_inter import ScalingInterConfig as ScalingInterConfig
    from evolvent.methods.trad import TradConfig as TradConfig
    from evolvent.methods.trajectory_transformer import TrajectoryTransformerConfig as TrajectoryTransformerConfig
    from evolvent.methods.tsllm import TSLLMConfig as TSLLMConfig

__getattr__, __dir__, __all__ = lazy_namespace(
    __name__,
    __path__,
    {
        "algorithm_distillation": ("AlgorithmDistillationConfig",),
        "generalized_dt": ("GeneralizedDTConfig",),
        "prompt_dt": ("PromptDTConfig",),
        "q_decision_transformer": ("QDecisionTransformerConfig",),
        "agdc": ("AGDCConfig",),
        "agentevol": ("AgentEvolConfig",),
        "comments": ("CommentsConfig",),
        "decision_transformer": ("DecisionTransformerConfig",),
        "etpo": ("ETPOConfig",),
        "gato": ("GatoConfig",),
        "grpo": ("GRPOConfig",),
        "hammer": ("HammerConfig",),
        "mat": ("MATConfig",),
        "ntpo": ("NTPOConfig",),
        "online_dt": ("OnlineDTConfig",),
        "openr": ("OpenRConfig",),
        "p3": ("P3Config",),
        "poad": ("POADConfig",),
        "ppo": ("PPOConfig",),
        "q_transformer": ("QTransformerConfig",),
        "r3": ("R3Config",),
        "return_text": ("ReturnTextConfig",),
        "scaling_inter": ("ScalingInterConfig",),
        "trad": ("TradConfig",),
        "trajectory_transformer": ("TrajectoryTransformerConfig",),
        "tsllm": ("TSLLMConfig",),
    },
)
