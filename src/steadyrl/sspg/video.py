"""A video of one of the episodes that an evaluation reports: the same seed, the same actions, the same return."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from steadyrl.common.storage import why_no_such_file, written_atomically
from steadyrl.environments.codecs import action_codec
from steadyrl.environments.seeding import episode_seeds
from steadyrl.environments.sources import as_source, close_quietly
from steadyrl.errors import MissingExtraError, RolloutError
from steadyrl.sspg.evaluation import Evaluation


@dataclass(frozen=True)
class Video:
    """A video and the episode that it shows."""

    path: Path
    episode: int
    """The number of the episode in the evaluation, from 0."""
    episode_return: float
    pictures: int


def check_video(
    environment: Any, path: str | os.PathLike[str], *, make_arguments: Mapping[str, Any] | None = None
) -> None:
    """Find out, before any episode is run, whether a video can be made.

    Raises:
        MissingExtraError: if what Gymnasium writes videos with is not installed.
        RolloutError: if the environment cannot show itself as pictures, or the file cannot be written.
    """
    target = Path(path)
    if target.suffix not in (".mp4", ".gif"):
        raise RolloutError(f"the video is to be {str(path)!r}; name it .mp4 or .gif")
    if not target.absolute().parent.is_dir():
        raise RolloutError(f"the video is to be {str(path)!r}, but there is no such directory; make it first")
    reason = why_no_such_file(target)
    if reason is not None:
        raise RolloutError(f"the video is to be {str(path)!r}, which cannot be written ({reason}); name another file")
    if find_spec("moviepy") is None:
        raise MissingExtraError(
            "videos are written by MoviePy, as Gymnasium's are; install it with: pip install 'steadyrl[video]'"
        )
    env = _rendering(environment, make_arguments)
    try:
        env.reset(seed=0)
        _picture(env, environment)
    finally:
        close_quietly(env)


def record_video(
    environment: Any,
    evaluation: Evaluation,
    path: str | os.PathLike[str],
    *,
    episode: int | None = None,
    make_arguments: Mapping[str, Any] | None = None,
) -> Video:
    """Write a video of one episode of an evaluation, by repeating its actions from its seed.

    Args:
        environment: the Gymnasium id or spec that was evaluated.
        evaluation: the result of `evaluate(..., trajectories=True)`, not with EnvPool.
        path: the file, .mp4 or .gif.
        episode: the number of the episode, from 0; by default the one with the median return.
        make_arguments: arguments for gymnasium.make, as for the evaluation.

    Raises:
        RolloutError: if the environment does not repeat the episode.
    """
    episodes = evaluation.episodes
    if episodes is None or episodes.trajectories is None:
        raise RolloutError("the evaluation has no trajectories to repeat; evaluate with trajectories=True")
    returns = episodes.returns
    chosen = int(np.argsort(returns, kind="stable")[(len(returns) - 1) // 2]) if episode is None else episode
    _, actions, rewards = episodes.trajectories.of(chosen)
    seed = int(episode_seeds(evaluation.seed, chosen, 1)[0])
    pictures, rate = _pictures(environment, make_arguments, seed, actions, rewards)
    _write(pictures, rate, Path(path))
    return Video(Path(path), chosen, float(returns[chosen]), len(pictures))


def _rendering(environment: Any, arguments: Mapping[str, Any] | None) -> Any:
    """Return the environment in render mode 'rgb_array'."""
    if not isinstance(environment, str | gymnasium.envs.registration.EnvSpec):
        raise RolloutError("a video needs an environment's id or spec, since it is made with render_mode='rgb_array'")
    plain = as_source(environment, arguments).make()
    modes = plain.metadata.get("render_modes", [])
    close_quietly(plain)
    if "rgb_array" not in modes:
        raise RolloutError(f"{environment} cannot be shown as pictures: its render modes are {list(modes)}")
    try:
        return as_source(environment, {**(arguments or {}), "render_mode": "rgb_array"}).make()
    except (RolloutError, gymnasium.error.Error) as error:
        raise RolloutError(f"{environment} cannot be shown as pictures ({error})") from error


def _pictures(
    environment: Any, arguments: Mapping[str, Any] | None, seed: int, actions: Any, rewards: Any
) -> tuple[list[Any], int]:
    """Repeat an episode; return its pictures, and how many make a second."""
    env = _rendering(environment, arguments)
    try:
        sent = action_codec(env.action_space).sent(actions)
        env.reset(seed=seed)
        pictures = [_picture(env, environment)]
        over = False
        for t, action in enumerate(sent):
            _, reward, terminated, truncated, _ = env.step(action)
            pictures.append(_picture(env, environment, pictures[0].shape))
            over = bool(terminated or truncated)
            if not np.isclose(float(reward), rewards[t], rtol=1e-6, atol=1e-9) or over != (t == len(sent) - 1):
                raise RolloutError(
                    f"{environment} does not repeat itself: after the same seed and actions, step {t + 1} differs from "
                    "the episode that was evaluated, so that there is no video of it"
                )
        return pictures, int(env.metadata.get("render_fps", 30))
    finally:
        close_quietly(env)


def _picture(env: Any, name: Any, shape: tuple[int, ...] | None = None) -> Any:
    """Return what an environment shows; raise RolloutError unless it is a picture, of the shape if one is given."""
    picture = _rendered(env, name)
    kind = f"{getattr(picture, 'dtype', type(picture).__name__)} {list(getattr(picture, 'shape', ()))}"
    if not isinstance(picture, np.ndarray) or picture.dtype != np.uint8 or not _is_coloured(picture.shape):
        raise RolloutError(
            f"{name} could not be shown as pictures: its render() returned {kind}; have it return an array of uint8 "
            "[height, width, 3], of 2 x 2 or more"
        )
    if shape is not None and picture.shape != shape:
        raise RolloutError(
            f"{name} could not be shown as pictures: its render() returned {kind}, and {list(shape)} before; have it "
            "return pictures of one size"
        )
    return picture.copy()  # of an environment that draws into the same array every time


def _is_coloured(shape: tuple[int, ...]) -> bool:
    return len(shape) == 3 and min(shape[:2]) >= 2 and shape[2] in (3, 4)


def _rendered(env: Any, name: Any) -> Any:
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


def _write(pictures: list[Any], rate: int, target: Path) -> None:
    from moviepy import ImageSequenceClip

    even = [picture[: picture.shape[0] // 2 * 2, : picture.shape[1] // 2 * 2] for picture in pictures]  # as H.264 needs
    clip, hook = ImageSequenceClip(even, fps=rate), sys.unraisablehook
    problem: tuple[Any, ...] | None = None
    try:
        sys.unraisablehook = lambda _: None  # a writer that failed fails again while it is deleted
        with written_atomically(target) as temporary:
            if target.suffix == ".gif":
                clip.write_gif(str(temporary), logger=None)
            else:
                _write_film(clip, rate, temporary)
    except OSError as error:
        problem = (error.errno, error.strerror, str(target)) if error.errno is not None else (str(error),)
        error.__traceback__ = error.__context__ = error.__cause__ = None
    finally:
        del clip
        gc.collect()
        sys.unraisablehook = hook
    if problem is not None:
        raise OSError(*problem)


def _write_film(clip: Any, rate: int, path: Path) -> None:
    """Have ffmpeg write a film; it has ended when this returns or raises, so that it writes no file afterwards.

    MoviePy's `write_videofile` does not ask how ffmpeg ended: a film that a full disk cut short would count as written.
    """
    from moviepy.video.io.ffmpeg_writer import FFMPEG_VideoWriter

    with FFMPEG_VideoWriter(str(path), clip.size, rate, codec="libx264") as writer:
        process = writer.proc
        with contextlib.suppress(BrokenPipeError):  # it has ended, and its status says how
            for picture in clip.iter_frames(fps=rate, dtype="uint8", logger=None):
                process.stdin.write(picture.tobytes())
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        said = process.stderr.read().decode(errors="replace").strip().splitlines()
        if process.wait() != 0:
            reason = said[-1] if said else "it gave no reason; is the disk full?"
            raise OSError(f"ffmpeg ended with status {process.returncode}: {reason}")
