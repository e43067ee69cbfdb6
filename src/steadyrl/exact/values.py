"""Product-form values, and the two measures of performance that Theorem 4 connects.

    Q(s, a) = E[R(s_1) + gamma(s_1) R(s_2) + gamma(s_1) gamma(s_2) R(s_3) + ...],   s_1 ~ P(s, a), then M_pi

The discount gamma is a function of the state. With the *episodic* discount, 0 in terminal states and 1
elsewhere, Q is the expected sum of rewards until the end of the episode, and J_epi = V(any terminal state); with a
constant one, values run on through resets into later episodes. The null state of a perturbed process is
transparent: gamma = 1 there, whatever the constant (Definition 2).

Theorem 4: J_epi = J_avg E[T].
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from steadyrl.common.checks import as_numbers
from steadyrl.errors import DiscountError
from steadyrl.exact import time_limits
from steadyrl.exact.chain import EpisodeChain, episode_chain, require_finite_returns, require_terminal
from steadyrl.exact.process import LearningProcess, check_process
from steadyrl.exact.rewards import expected, reset_reward
from steadyrl.exact.stationary import stationary_distribution
from steadyrl.exact.tabular import as_policy

Array = NDArray[np.float64]


def action_values(process: LearningProcess, policy: ArrayLike, discount: float | ArrayLike | None = None) -> Array:
    """Return Q [S, A], the product-form value of each action in each state.

    Args:
        process: the learning process.
        policy: probabilities [S, A] of the actions in each state.
        discount: a constant below 1, or gamma(s) for every state, [S]; by default the episodic discount.

    Returns:
        Q [S, A]; nan where an action leads to unreachable states from which, under this policy,
        episodes never end.

    Raises:
        NotEpisodicError: if, under this policy, some reachable state cannot reach a terminal state.
        DiscountError: if the discount is not in [0, 1], or is 1 along whole episodes, so that values diverge.

    Example:
        >>> from steadyrl import gallery
        >>> action_values(*gallery.corridor(rooms=3)).ravel().tolist()
        [1.0, 1.0, 1.0, 1.0]
    """
    return values_of(episode_chain(process, policy, as_discount(process, discount)))


def state_values(process: LearningProcess, policy: ArrayLike, discount: float | ArrayLike | None = None) -> Array:
    """Return V(s) = sum_a pi(s, a) Q(s, a), [S]; arguments as for `action_values`."""
    chain = episode_chain(process, policy, as_discount(process, discount))
    return average_over_actions(chain.policy, values_of(chain))


def episode_performance(process: LearningProcess, policy: ArrayLike) -> float:
    """Return J_epi, the expected sum of rewards in one episode, the reward on arrival in the terminal state included.

    Raises:
        NotEpisodicError: if, under this policy, some reachable state cannot reach a terminal state.
        ProcessError: if rewards [S, A] make the reset's reward depend on the terminal state.

    Example:
        >>> from steadyrl import gallery
        >>> episode_performance(*gallery.corridor(rooms=3))
        1.0
    """
    require_one_reset_reward(process, policy)
    start = process.initial > 0  # values elsewhere may not exist
    return float(process.initial[start] @ state_values(process, policy)[start])


def steady_state_performance(process: LearningProcess, policy: ArrayLike) -> float:
    """Return J_avg = E[R(s)], s ~ rho, the reward per step of the endless loop of episodes.

    Example:
        >>> from steadyrl import gallery
        >>> steady_state_performance(*gallery.corridor(rooms=3))
        0.25
    """
    rho = stationary_distribution(process, policy)
    if process.rewards.ndim == 1:
        return float(rho @ process.rewards)
    return float(rho @ average_over_actions(as_policy(process, policy), process.rewards))


def require_one_reset_reward(process: LearningProcess, policy: ArrayLike) -> None:
    """Raise if expected rewards [S, A] give the reset a reward that depends on the terminal state.

    Then one episode's sum would depend on how the episode before it ended, and J_epi would not be one number.
    Terminal states that this policy never reaches do not matter.
    """
    check_process(process)
    if process.rewards.ndim == 1 or not process.terminal.any():
        return
    pi = as_policy(process, policy)
    reward = average_over_actions(pi, process.rewards)[process.terminal]
    if np.allclose(reward, reward[0], rtol=1e-9, atol=0.0):
        return
    reached = episode_chain(process, pi).reachable[process.terminal]
    if not np.allclose(reward[reached], reward[reached][0], rtol=1e-9, atol=0.0):
        reset_reward(process)


def as_discount(process: LearningProcess, discount: float | ArrayLike | None) -> Array:
    """Return gamma(s) for every state, [S]."""
    check_process(process)
    episodic = np.where(process.terminal, 0.0, 1.0)
    if discount is None:
        return episodic
    if isinstance(discount, bool | np.bool_):  # False would be read as 0, and may be meant as "none"
        raise DiscountError(f"the discount is {discount}; it must be None (episodic), or a number from 0 to 1")
    gamma = as_numbers("the discount", discount, DiscountError)
    if gamma.ndim == 0:
        gamma = np.where(process.null_states, 1.0, gamma)
    if gamma.shape != (process.n_states,):
        raise DiscountError(
            f"the discount has shape {gamma.shape}; it must be None (episodic), one number, or a number for each "
            f"of the {process.n_states} states"
        )
    bad = ~((gamma >= 0) & (gamma <= 1))
    if bad.any():
        state = int(np.argmax(bad))
        raise DiscountError(f"the discount in state {process.name(state)} is {gamma[state]}; it must be from 0 to 1")
    return gamma


@np.errstate(over="ignore", invalid="ignore")  # what overflows is refused below
def values_of(chain: EpisodeChain) -> Array:
    """Return Q [S, A] of a chain, under the chain's own discount.

    What follows a reset is the same for every terminal state, one number C = E[gamma V] after a reset. With
    r the expected rewards of the policy, b the reset, N the states inside, and T the terminal states:

        V_T = r_T + C,    V_N = y + C z,    y = r_N + M_NT gamma_T r_T + M_NN gamma_N y,
                                            z =       M_NT gamma_T     + M_NN gamma_N z,
        C kappa = b_N gamma_N y + b_T gamma_T r_T,

    where kappa = 1 - E[product of gamma over an episode] is found as the probability of being dropped on the
    way, which needs no subtraction and so keeps its digits as gamma -> 1.
    """
    require_terminal(chain.process)
    if chain.process.layers is not None:
        return _layered_values(chain)
    process, gamma, outside = chain.process, chain.discount, chain.process.terminal
    chain.require_finite()
    reset, inside = process.reset, chain.inside
    r = average_over_actions(chain.policy, process.expected_rewards)
    values = np.full(process.n_states, np.nan)
    rows = chain.matrix[inside]
    runs_on = bool((gamma[outside] > 0).any())  # through resets, into later episodes
    c = r[inside]
    if runs_on:
        c = c + rows @ np.where(outside, gamma * r, 0.0)
    y = chain.solver.right(c)
    require_finite_returns(y, process.rewards)
    after = float(reset[inside] @ (gamma[inside] * y) + reset[outside] @ (gamma[outside] * r[outside]))
    if runs_on:
        dropped = chain.solver.right(rows @ (1 - gamma))
        kappa = float(reset @ (1 - gamma) + reset[inside] @ (gamma[inside] * dropped))
        after /= _require_positive(kappa, chain)
        y = y + after * chain.solver.right(rows @ np.where(outside, gamma, 0.0))
    values[inside] = y
    values[outside] = r[outside] + after
    # What lies behind a discount of 0 does not count, even if it has no value.
    q = process.expected_rewards + expected(process, np.where(gamma == 0, 0.0, gamma * values))
    require_finite_returns(q[~np.isnan(q)], process.rewards)
    return q


def average_over_actions(policy: Array, q: Array) -> Array:
    """Return sum_a pi(s, a) q(s, a); an action that is never taken does not count, even if nan."""
    average: Array = np.where(policy > 0, policy * q, 0.0).sum(axis=1)
    return average


def _layered_values(chain: EpisodeChain) -> Array:
    process, gamma, policy = chain.process, chain.discount, chain.policy
    assert process.layers is not None
    rewards = process.expected_rewards
    r = average_over_actions(policy, rewards)[process.terminal]
    q, after = time_limits.action_values(process.layers, policy, rewards, gamma, r)
    require_finite_returns(q, rewards)
    if not (gamma[process.terminal] > 0).any():
        return q
    dropped = expected(process, 1 - gamma)
    _, later = time_limits.action_values(process.layers, policy, dropped, gamma, np.zeros_like(r))
    kappa = float(process.reset @ (1 - gamma)) + later
    after /= _require_positive(kappa, chain)
    return time_limits.action_values(process.layers, policy, rewards, gamma, r + after)[0]


def _require_positive(kappa: float, chain: EpisodeChain) -> float:
    if not kappa > 0:
        raise DiscountError(
            "the discount is 1 in every state that an episode visits, so rewards of all later episodes count in full "
            "and values diverge; use a discount below 1, or None for values that stop at the end of the episode"
        )
    return kappa
