"""A plain Gymnasium loop that averages rewards over batches, with environments in lockstep or staggered episodes.

The environment is the paper's state sweep: rewards grow as an episode goes on, and every episode has the same length.

    python examples/gymnasium_loop.py           in lockstep, the batch means swing for ever
    python examples/gymnasium_loop.py --cure    episodes are staggered (the lines marked "cure"), and they settle

The spread of the batch means shows how wrong an update from one batch would be.
"""

import argparse

import gymnasium
import numpy as np

import steadyrl


def main() -> list[float]:
    """Run, and return the mean reward of each batch."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cure", action="store_true")  # cure
    parser.add_argument("--env-id", default="steadyrl/StateSweep-v0")
    parser.add_argument("--num-envs", type=int, default=64)
    parser.add_argument("--n-steps", type=int, default=5)
    parser.add_argument("--batches", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    envs = gymnasium.make_vec(args.env_id, num_envs=args.num_envs, vectorization_mode="sync")
    if args.cure:  # cure
        envs = steadyrl.StaggeredVectorEnv(envs)  # cure
    envs = steadyrl.PhaseMonitor(envs, n_steps=args.n_steps, warn=False)

    envs.reset(seed=args.seed)
    envs.action_space.seed(args.seed)
    resets = np.zeros(args.num_envs, dtype=bool)
    means = []
    for batch in range(args.batches):
        total, count = 0.0, 0
        for _ in range(args.n_steps):
            _, rewards, terminated, truncated, _ = envs.step(envs.action_space.sample())
            total += rewards[~resets].sum()  # the step after an end is a reset: nobody acted, nothing was earned
            count += (~resets).sum()
            resets = terminated | truncated
        means.append(total / count)
        if batch % 10 == 9:
            report = envs.report()
            print(f"batch {batch + 1:3d}: mean reward {means[-1]:8.3f}, phase distance {report.distance:.3f}")
    print(f"spread of the last {len(means) // 2} batch means: {np.std(means[len(means) // 2 :]):.3f}")
    envs.close()
    return means


if __name__ == "__main__":
    main()
