"""Random streams of episode ends, for the stagger law in every array library."""

import numpy as np

from steadyrl.live import stagger_law

MAX_AGE = 96


def random_lengths(rng):
    """A function that draws lengths from a random distribution: fixed, normal, geometric, two values, uniform."""
    mean, other = int(rng.integers(3, 60)), int(rng.integers(2, 90))
    width = mean * rng.uniform(0.05, 0.5)
    return [
        lambda n: np.full(n, mean),
        lambda n: np.clip(np.rint(rng.normal(mean, width, n)), 1, 90).astype(int),
        lambda n: np.minimum(rng.geometric(1 / mean, n), 90),
        lambda n: np.where(rng.random(n) < 0.5, mean, other),
        lambda n: rng.integers(1, mean + 1, n),
    ][rng.integers(5)]


def random_stream(seed, steps=160, sizes=(1, 2, 8, 37, 64, 256)):
    """Return (same_step, done [steps, N], cut [steps, N]) of environments under numpy's law.

    Lengths change after a while in every other stream. Later numbers depend on earlier truncations, as they do in real
    environments.
    """
    rng = np.random.default_rng(seed)
    n, same_step = int(rng.choice(sizes)), bool(seed % 2)
    draw = random_lengths(rng)
    change = int(rng.integers(steps // 2, steps)) if rng.random() < 0.5 else steps
    state = stagger_law.init(n, MAX_AGE, seed=seed)
    length, restarting, ended, cuts = draw(n) + (not same_step), np.zeros(n, dtype=bool), [], []
    for t in range(steps):
        if t == change:
            draw = random_lengths(rng)
        ages = stagger_law.reached(state, same_step)
        length = np.where(restarting, draw(n) + (not same_step), length)
        done = (ages >= length) & ~(restarting & (not same_step))
        state, cut = stagger_law.step(state, done, same_step=same_step)
        restarting = done | cut
        ended.append(done)
        cuts.append(cut)
    return same_step, np.array(ended), np.array(cuts)
