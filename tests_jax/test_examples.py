"""`examples/jax_ppo.py`: it runs as it is, learns, and staggers."""

import sys
from pathlib import Path

import jax
import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent / "examples"))
import jax_ppo


def test_ppo_learns_with_staggered_episodes_under_vmap_over_seeds():
    settings = jax_ppo.Settings(num_envs=64, updates=30, epochs=2, minibatches=2)
    fair, finished = jax_ppo.train_seeds(settings, jax.random.split(jax.random.key(0), 2))
    assert fair.shape == finished.shape == (2, 30)
    assert np.isfinite(fair).all()
    # Under random actions the mean return is 22, with a standard deviation of some 12 over episodes.
    assert (fair[:, -1] > 40).all()


def test_the_command_prints_both_arms(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["jax_ppo.py", "--updates", "5", "--num-envs", "16", "--seeds", "1"])
    jax_ppo.main()
    shown = capsys.readouterr().out
    assert shown.count("update ") == 10
    assert "staggered: False" in shown
    assert "staggered: True" in shown
