"""PPO of Stable-Baselines3, with environments in lockstep or with staggered episodes.

    python examples/sb3_ppo.py           all environments start together and stay in lockstep
    python examples/sb3_ppo.py --cure    episodes are staggered: this adds the lines marked "cure"

Both run on the same DummyVecEnv. Look at steady/phase_distance and fair/return in the log. Needs, in a clone of the
repository: pip install ".[sb3]"
"""

import argparse

from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env

from steadyrl.integrations.sb3 import (
    FairStatisticsCallback,
    SteadyStateCallback,
    SteadyVecEnv,  # cure
)


def main() -> PPO:
    """Train, and return the model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cure", action="store_true")  # cure
    parser.add_argument("--env-id", default="Pendulum-v1")
    parser.add_argument("--n-envs", type=int, default=64)
    parser.add_argument("--n-steps", type=int, default=16)
    parser.add_argument("--updates", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    env = make_vec_env(args.env_id, n_envs=args.n_envs, seed=args.seed)
    if args.cure:  # cure
        env = SteadyVecEnv(env, seed=args.seed)  # cure

    batch = args.n_envs * args.n_steps
    model = PPO(
        "MlpPolicy", env, n_steps=args.n_steps, batch_size=batch // 4, n_epochs=4, gamma=0.9, seed=args.seed, verbose=1
    )
    model.learn(args.updates * batch, callback=[SteadyStateCallback(), FairStatisticsCallback()], log_interval=10)
    env.close()
    return model


if __name__ == "__main__":
    main()
