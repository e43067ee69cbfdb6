"""How good is a policy: mean return and E[T] over complete episodes, with intervals; and a video of one."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TextIO

import gymnasium
import numpy as np
from numpy.typing import NDArray

from steadyrl.common.checks import check_count, check_seed
from steadyrl.common.intervals import Interval, mean_interval
from steadyrl.environments.codecs import action_codec, observation_codec
from steadyrl.environments.seeding import block_generator, episode_seeds
from steadyrl.environments.sources import LONGEST, as_source, describe
from steadyrl.errors import MissingExtraError, PolicyError, RolloutError
from steadyrl.policies.choosing import resolve_policy
from steadyrl.policies.networks import NetworkPolicy, Policy
from steadyrl.policies.tables import TabularPolicy
from steadyrl.rollouts.collect import collect_episodes
from steadyrl.rollouts.episodes import Episodes

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Evaluation:
    """What complete episodes of a policy are like; intervals are of 95% (Student's t)."""

    mean_return: Interval
    average_episode_length: Interval
    """E[T], T = Gymnasium's length + 1."""
    episodes: Episodes
    deterministic: bool


def evaluate(
    policy: Any,
    environment: Any,
    episodes: int = 100,
    *,
    deterministic: bool = False,
    seed: int = 0,
    backend: str = "auto",
    workers: int | None = None,
    make_arguments: Mapping[str, Any] | None = None,
    progress: bool | TextIO = False,
) -> Evaluation:
    """Run complete episodes and return what they are worth.

    Args:
        policy: a policy file, "uniform", "gaussian", an array [S, A], or an object with act(observations, rng).
        environment: a Gymnasium id, a spec, a LearningProcess, or a function that makes an environment.
        episodes: how many; every one that is started is finished and counted.
        deterministic: whether to take the mean, or the likeliest action, instead of drawing; for networks and tables.
        seed: of everything random.
        backend: as for `collect_episodes`.
        workers: as for `collect_episodes`.
        make_arguments: for gymnasium.make, if `environment` is an id or a spec.
        progress: True to show progress on standard error, or a stream to show it on.

    Example:
        >>> found = evaluate("uniform", "steadyrl/StateSweep-v0", 10)
        >>> found.mean_return.value, found.average_episode_length
        (189.0, Interval(value=20.0, low=20.0, high=20.0))
    """
    check_count("episodes", episodes)
    source = as_source(environment, make_arguments)
    chosen = chosen_policy(policy, source, deterministic=deterministic, seed=seed)
    found = collect_episodes(
        environment,
        chosen,
        episodes,
        seed=seed,
        backend=backend,
        workers=workers,
        make_arguments=make_arguments,
        observation_sums=False,
        progress=progress,
    )
    return Evaluation(
        mean_interval(found.returns, 0.95), mean_interval(found.lengths + 1.0, 0.95), found, deterministic
    )


def chosen_policy(policy: Any, source: Any, *, deterministic: bool, seed: int) -> Policy:
    """Return the policy that was named, made deterministic if so asked."""
    description = describe(source)
    observations, actions = observation_codec(description.observation_space), action_codec(description.action_space)
    policy = policy.numpy() if callable(getattr(policy, "numpy", None)) else policy
    chosen, name = resolve_policy(policy, observations, actions, seed=seed)
    if not deterministic:
        return chosen
    if isinstance(chosen, TabularPolicy):
        return chosen.likeliest()
    if not isinstance(chosen, NetworkPolicy):
        raise PolicyError(f"the policy {name!r} cannot be made deterministic; only networks and tables [S, A] can")
    return replace(chosen, sampled=False)


def record_video(
    policy: Any,
    environment: Any,
    path: str | os.PathLike[str],
    *,
    deterministic: bool = False,
    seed: int = 0,
    make_arguments: Mapping[str, Any] | None = None,
) -> int:
    """Write a video of one episode; return its number of pictures.

    Raises:
        MissingExtraError: if what Gymnasium writes videos with is not installed.
        RolloutError: if the environment cannot show itself as pictures, or the name is not that of a video.
    """
    target = Path(path)
    if target.suffix not in (".mp4", ".gif"):
        raise RolloutError(f"the video is to be {str(path)!r}; name it .mp4 or .gif")
    if not target.absolute().parent.is_dir():
        raise RolloutError(f"the video is to be {str(path)!r}, but there is no such directory; make it first")
    if find_spec("moviepy") is None:
        raise MissingExtraError(
            "videos are written by MoviePy, as Gymnasium's are; install it with: pip install 'steadyrl[video]'"
        )
    check_seed(seed)
    source = as_source(environment, make_arguments)
    chosen = chosen_policy(policy, source, deterministic=deterministic, seed=seed)
    pictures, rate = _pictures(environment, chosen, make_arguments, seed)
    _write_video(pictures, rate, target)
    return len(pictures)


def _pictures(
    environment: Any, policy: Policy, arguments: Mapping[str, Any] | None, seed: int
) -> tuple[list[Any], int]:
    """Run one episode and return what it looked like, and how many pictures make a second."""
    if not isinstance(environment, str | gymnasium.envs.registration.EnvSpec):
        raise RolloutError("a video needs an environment's id or spec, since it is made with render_mode='rgb_array'")
    plain = as_source(environment, arguments).make()
    modes = plain.metadata.get("render_modes", [])
    plain.close()
    if "rgb_array" not in modes:
        raise RolloutError(f"{environment} cannot be shown as pictures: its render modes are {list(modes)}")
    try:
        env = as_source(environment, {**(arguments or {}), "render_mode": "rgb_array"}).make()
    except (RolloutError, gymnasium.error.Error) as error:
        raise RolloutError(f"{environment} cannot be shown as pictures ({error})") from error
    seen, acted = observation_codec(env.observation_space), action_codec(env.action_space)
    write, row = seen.writer(), np.zeros((1, seen.width))
    rng = block_generator(seed, 0)
    pictures: list[Any] = []
    try:
        observation, _ = env.reset(seed=int(episode_seeds(seed, 0, 1)[0]))
        over = False
        while not over and len(pictures) < LONGEST:
            pictures.append(_picture(env, environment))
            write(row[0], observation)
            action = acted.sent(policy.act(seen.flattened(row), rng))[0]
            observation, _, terminated, truncated, _ = env.step(action)
            over = bool(terminated or truncated)
        pictures.append(_picture(env, environment))
    finally:
        rate = int(env.metadata.get("render_fps", 30))
        env.close()
    return pictures, rate


def _picture(env: Any, name: Any) -> Any:
    try:
        return env.render()
    except gymnasium.error.DependencyNotInstalled as error:
        raise MissingExtraError(f"{name} needs a package to be shown as pictures: {error}") from error
    except Exception as error:  # a renderer that finds no display raises what it likes
        by_mujoco = any("mujoco" in base.__module__ for base in type(env.unwrapped).__mro__)
        advice = "; without a display MuJoCo needs MUJOCO_GL=egl (or osmesa) in the environment" if by_mujoco else ""
        raise RolloutError(
            f"{name} could not be shown as pictures ({type(error).__name__}: {error}){advice}"
        ) from error


def _write_video(pictures: list[Any], rate: int, target: Path) -> None:
    from moviepy import ImageSequenceClip

    even = [picture[: picture.shape[0] // 2 * 2, : picture.shape[1] // 2 * 2] for picture in pictures]  # as H.264 needs
    clip = ImageSequenceClip(even, fps=rate)
    if target.suffix == ".gif":
        clip.write_gif(str(target), logger=None)
    else:
        clip.write_videofile(str(target), logger=None, audio=False)
