"""JAX: staggering and fair statistics inside jit, scan and vmap, and wrappers for what is built on JAX.

    state = stagger.init(num_envs=4096, max_age=500, key=key)
    state, cut = stagger.step(state, done)  # in every step; truncate the episodes of `cut`

- `stagger`: pure functions that decide whose episode is truncated, and say how far the ages are from the steady state
- `statistics`: pure functions for mean return, length and success of all episodes, running ones included
- `gymnax`: `StaggeredGymnax`, many gymnax environments that stagger in their own auto-reset
- `brax`: `stagger_wrap_fn`, a `wrap_env_fn` for the trainers of brax and MuJoCo Playground

Nothing is copied to the host in a step.
"""

from steadyrl.errors import MissingExtraError

try:
    import jax  # noqa: F401
except ImportError as error:
    raise MissingExtraError('this needs JAX; install it with: pip install "steadyrl[jax]"') from error

from steadyrl.integrations.jax import stagger, statistics

__all__ = ["stagger", "statistics"]
