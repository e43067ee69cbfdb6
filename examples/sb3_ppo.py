"""PPO of Stable-Baselines3, with its copies as they are or at steady state.

    python examples/sb3_ppo.py           all copies start together, and march in step
    python examples/sb3_ppo.py --cure    with the lines marked "cure"

Look at steady/phase_distance in the log. Needs: pip install "steadyrl[sb3,envpool]"
"""

import argparse

from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env

from steadyrl.integrations.sb3 import SteadyStateCallback


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

    make = make_vec_env
    if args.cure:  # cure
        from steadyrl.integrations.sb3 import make_steady_vec_env as make  # cure
    env = make(args.env_id, n_envs=args.n_envs, seed=args.seed)

    batch = args.n_envs * args.n_steps
    model = PPO(
        "MlpPolicy", env, n_steps=args.n_steps, batch_size=batch // 4, n_epochs=4, gamma=0.9, seed=args.seed, verbose=1
    )
    model.learn(args.updates * batch, callback=SteadyStateCallback(), log_interval=10)
    env.close()
    return model


if __name__ == "__main__":
    main()
