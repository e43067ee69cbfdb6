"""Finite learning processes, analysed exactly: every definition and theorem of the paper is a function.

A process is given by arrays of probabilities. Every answer comes from a linear system or a graph search and has about
13 correct digits, with five states or a million; only Algorithm 1 (`perturb`) samples.

- `process`: `LearningProcess`; `validation` checks its arrays, `rewards` has its expected rewards, `time_limits` adds a
  step counter to its states, `toy_text` reads Gymnasium's models, `textbook` MDPs with absorbing terminal states
- `tabular`: policies as arrays [S, A]
- `chain`: the Markov chain that a policy induces, cut at its terminal states
- `conditions`: checks Definition 1
- `stationary`: visits, E[T], the stationary distribution, periods
- `mixing`: marginals over time, distance to the steady state, mixing times; `mixing_curves` draws them
- `values`: action values, J_epi and J_avg
- `gradients`: the true policy gradient, Theorem 5's, and what discounted estimators compute instead
- `perturb`: the perturbed process, and Algorithm 1
- `summary`: the whole analysis of one process and policy, with the residual of every theorem (`steadyrl check`)
- `gallery`: small processes whose answers are known by hand
"""

from steadyrl.exact import gallery
from steadyrl.exact.conditions import EpisodicCheck, check_episodic
from steadyrl.exact.gradients import (
    GradientBias,
    classic_gradient,
    gradient_bias,
    policy_gradient,
    steady_state_policy_gradient,
)
from steadyrl.exact.mixing import distances, marginals, mixing_time, spectral_gap, total_variation
from steadyrl.exact.perturb import CoupledSample, coupled_sampling, perturb, renumber, sample_path
from steadyrl.exact.process import LearningProcess
from steadyrl.exact.stationary import (
    average_episode_length,
    expected_visits,
    mean_recurrence_times,
    period,
    stationary_distribution,
)
from steadyrl.exact.tabular import extend_policy, softmax_policy, uniform_policy
from steadyrl.exact.values import action_values, episode_performance, state_values, steady_state_performance

__all__ = [
    "CoupledSample",
    "EpisodicCheck",
    "GradientBias",
    "LearningProcess",
    "action_values",
    "average_episode_length",
    "check_episodic",
    "classic_gradient",
    "coupled_sampling",
    "distances",
    "episode_performance",
    "expected_visits",
    "extend_policy",
    "gallery",
    "gradient_bias",
    "marginals",
    "mean_recurrence_times",
    "mixing_time",
    "period",
    "perturb",
    "policy_gradient",
    "renumber",
    "sample_path",
    "softmax_policy",
    "spectral_gap",
    "state_values",
    "stationary_distribution",
    "steady_state_performance",
    "steady_state_policy_gradient",
    "total_variation",
    "uniform_policy",
]
