"""Steady-state analysis of episodic reinforcement learning.

Many copies of an environment that were reset together march through their episodes in step, so a short batch across
all copies is not a fair sample of the policy's data. steadyrl tells how far off it is, brings live copies to their
steady state, and analyses finite processes exactly. Start with `steadyrl diagnose CartPole-v1`, or:

    >>> import steadyrl
    >>> lengths = steadyrl.EpisodeLengths.from_gymnasium([19, 199])  # 19 or 199 actions, half of the episodes each
    >>> steadyrl.phase_mixing_time(lengths)  # copies that were reset together never get out of step
    inf

The packages, from the bottom up; each imports only those before it:

    common, numerics      checks, files, intervals; algorithms on arrays
    exact                 finite learning processes, solved
    lengths               what episode lengths alone tell (numpy and scipy only)
    live                  running copies: ages, staggering
    environments          where environments come from (Gymnasium enters here)
    policies              what acts, and policy files (PyTorch where a gradient is wanted)
    wrappers              for Gymnasium's Env and VectorEnv
    integrations          EnvPool, Stable-Baselines3
    rollouts              complete episodes and samples, reproducible to the byte
    diagnosis             one environment and policy -> one Diagnosis
    sspg                  training with the steady-state policy gradient
    experiments           the paper's figures, measured again
    cli                   the command `steadyrl`

Names are imported when they are first used.
"""

from importlib.metadata import version

import lazy_loader

from steadyrl.common.registration import register_environments

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__version__ = version("steadyrl")

register_environments()
