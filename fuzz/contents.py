"""Writes files and states whose digests fit but whose content cannot be: a sentence, never a crash or a raw error.

A hostile file has the digests of what it holds. One array, or one field of the header, is emptied, cut, made longer,
turned into another type or kind, made infinite, negative or huge, exchanged with another, or removed; then the file is
loaded and used. Each batch runs in a process of its own, since what reads beyond the end of an array may end it.
"""

from __future__ import annotations

import copy
import os
import random
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from common import TimeLimit, Trial, main, time_limit

SECONDS = 30.0
BATCH = 50
VALUES = (None, True, -7, 7.5, 10**30, float("nan"), "no", "", [], {}, [[1]], {"a": None}, "9" * 5000)

Content = tuple[dict[str, Any], dict[str, Any]]


def spoilt_array(array: Any, others: list[Any], generator: random.Random) -> Any:
    """Return another array in the place of one."""
    array = np.asarray(array)
    kind = array.dtype if array.dtype.kind in "biuf" else np.dtype(float)
    ways: list[Callable[[], Any]] = [
        lambda: array.reshape(-1)[:0],
        lambda: array.reshape(-1)[:-1],
        lambda: np.concatenate([array.reshape(-1)] * 2),
        lambda: array[None],
        lambda: array.astype(generator.choice(["f4", "i2", "?", "U8", "c16"])),
        lambda: np.full(
            array.shape, np.inf if kind.kind == "f" else np.iinfo(np.int64).max, kind if kind.kind == "f" else "i8"
        ),
        lambda: np.full(array.shape, np.nan),
        lambda: -1 - array.astype(float if kind.kind == "f" else "i8"),
        lambda: np.full(array.shape, generator.choice([1e300, -1e300, 0.0, 1e-320])),
        lambda: np.full(array.shape, generator.choice([2**31 - 1, -(2**31), 2**62, 0]), "i8"),
        lambda: one_changed(array, generator),
        lambda: generator.choice(others),
    ]
    return generator.choice(ways)()


def one_changed(array: Any, generator: random.Random) -> Any:
    """Return an array with one entry that it should not have."""
    changed = np.array(array)
    if changed.size:
        wild = [2**31 - 1, -1, 10**6] if changed.dtype.kind in "iu" else [np.inf, np.nan, -1.0, 1e300]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            changed.reshape(-1)[generator.randrange(changed.size)] = np.array(generator.choice(wild)).astype(
                changed.dtype
            )
    return changed


def spoilt_header(header: dict[str, Any], generator: random.Random) -> dict[str, Any]:
    """Return a header in which one value, at any depth, is another or gone."""
    changed = copy.deepcopy(header)
    place: Any = changed
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        if not keys:
            return changed
        key = generator.choice(keys)
        if isinstance(place[key], dict | list) and place[key] and generator.random() < 0.6:
            place = place[key]
        elif generator.random() < 0.2:
            del place[key]
            return changed
        else:
            place[key] = generator.choice(VALUES)
            return changed


def spoilt(content: Content, generator: random.Random) -> Content:
    """Return content with one thing that it cannot hold."""
    header, arrays = content
    if header and (not arrays or generator.random() < 0.4):
        return spoilt_header(header, generator), arrays
    name = generator.choice(sorted(arrays))
    if generator.random() < 0.1:
        return header, {other: array for other, array in arrays.items() if other != name}
    return header, arrays | {name: spoilt_array(arrays[name], list(arrays.values()), generator)}


def archives(folder: Path) -> dict[str, tuple[Content, Callable[[Content], Any]]]:
    """Return content of every kind, and what loads and uses it."""
    import torch
    from gymnasium import spaces

    from steadyrl import (
        Episodes,
        FairStatistics,
        LearningProcess,
        Perturbation,
        Samples,
        Settings,
        StaggerController,
        average_episode_length,
        collect_episodes,
        collect_samples,
        gallery,
        train,
    )
    from steadyrl.common.storage import load_arrays, save_arrays
    from steadyrl.environments.codecs import action_codec, observation_codec
    from steadyrl.experiments.catalogue import named
    from steadyrl.experiments.experiment import Result
    from steadyrl.experiments.pages import page_of, render_html
    from steadyrl.experiments.running import draw, reproduce
    from steadyrl.lengths import read_lengths
    from steadyrl.policies.files import load_policy
    from steadyrl.policies.networks import random_gaussian_policy
    from steadyrl.policies.tensors import read_safetensors, write_safetensors

    torch.set_num_threads(1)
    found: dict[str, tuple[Content, Callable[[Content], Any]]] = {}

    def archive(kind: str, path: Path, use: Callable[[Path], Any]) -> tuple[Content, Callable[[Content], Any]]:
        header, arrays = load_arrays(path, kind)
        header = {name: value for name, value in header.items() if name not in ("kind", "version")}

        def load(content: Content) -> None:
            save_arrays(path, kind, *content)
            use(path)

        return (header, arrays), load

    def used(episodes: Any) -> None:
        _ = episodes.average_episode_length, repr(episodes)
        if episodes.trajectories is not None and len(episodes):
            episodes.trajectories.of(0)

    collect_episodes("CartPole-v1", "uniform", 6, backend="serial", trajectories=True).save(folder / "e.npz")
    found["Episodes"] = archive("episodes", folder / "e.npz", lambda path: used(Episodes.load(path)))
    collect_episodes("CartPole-v1", "uniform", 6, backend="serial").save(folder / "l.npz")
    found["Episodes read as lengths"] = archive("episodes", folder / "l.npz", read_lengths)
    samples = collect_samples("CartPole-v1", "uniform", 4, [2, 9], backend="serial", perturbation=Perturbation(0.5))
    samples.save(folder / "s.npz")
    found["Samples"] = archive("samples", folder / "s.npz", lambda path: repr(Samples.load(path)))
    gallery.corridor(3)[0].save(folder / "p.npz")

    def analysed(path: Path) -> None:
        process = LearningProcess.load(path)
        average_episode_length(process, np.full((process.n_states, process.n_actions), 1 / process.n_actions))

    found["LearningProcess"] = archive("learning process", folder / "p.npz", analysed)
    settings = {"num_envs": 2, "n_steps": 4, "backend": "serial", "optimiser": "adam", "critic_epochs": 1}
    settings["learning_rate_decay"] = "none"
    train("CartPole-v1", Settings(updates=2, **settings), out=folder / "run")
    more = Settings(updates=3, **settings)
    found["training checkpoint"] = archive(
        "training checkpoint",
        folder / "run" / "checkpoint.npz",
        lambda path: train("CartPole-v1", more, out=path.parent, resume=True),
    )
    [figure] = named("figure-1")
    reproduce([figure], "quick", folder)

    def told(path: Path) -> None:
        result = Result.load(path)
        render_html(page_of(figure, result), draw(figure, result, folder))

    found["result of reproduce"] = archive("reproduction", folder / "figure-1.npz", told)
    random_gaussian_policy(2, (1,), seed=0).save(folder / "policy.safetensors")
    seen, acted = observation_codec(spaces.Box(-1, 1, (2,))), action_codec(spaces.Box(-1, 1, (1,)))

    def policy(content: Content) -> None:
        arrays = {name: np.asarray(array) for name, array in content[1].items()}
        write_safetensors(folder / "policy.safetensors", arrays, {k: str(v) for k, v in content[0].items()})
        load_policy(folder / "policy.safetensors", seen, acted).act(np.zeros((3, 2)), np.random.default_rng(0))

    tensors, metadata = read_safetensors(folder / "policy.safetensors")
    found["policy"] = ({**metadata}, tensors), policy

    def states(make: Callable[[], Any], step: Callable[[Any, Any], Any]) -> tuple[Content, Callable[[Content], Any]]:
        rng, first = np.random.default_rng(0), make()
        for _ in range(60):
            step(first, rng.random(4) < 0.1)

        def restore(content: Content) -> None:
            again = make()
            again.restore(content[1])
            for _ in range(30):
                step(again, np.arange(4) == 0)

        return ({}, dict(first.state())), restore

    found["StaggerController.restore"] = states(
        lambda: StaggerController(4, same_step=True, seed=0), lambda c, ended: c.step(ended)
    )
    found["FairStatistics.restore"] = states(
        lambda: FairStatistics(4, same_step=True), lambda s, ended: (s.update(np.ones(4), ended), s.report())
    )
    return found


def attempt(load: Callable[[Content], Any], content: Content) -> str:
    """Return what is wrong with how content was taken, or ""."""
    from steadyrl import SteadyrlError

    try:
        with time_limit(SECONDS), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            load(content)
    except SteadyrlError as error:
        return "" if str(error).strip() else "an error without words"
    except TimeLimit:
        return f"more than {SECONDS:g} s"
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:150]}"
    return ""


def writable(content: Content) -> bool:
    """Return whether an archive can hold this at all."""
    return all(np.asarray(array).dtype.kind in "biufcU" for array in content[1].values())


def batch(trial: Trial, kind: str, load: Callable[[Content], Any], numbers: Mapping[int, Content]) -> None:
    """Try some cases in a process of its own, which tells of each before and after."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        try:
            with os.fdopen(writing, "w", buffering=1) as out:
                for number, case in numbers.items():
                    out.write(f"{number}\n")
                    problem = attempt(load, case)
                    if problem:
                        out.write(f"{number} {' '.join(problem.split())}\n")
        finally:
            os._exit(0)
    os.close(writing)
    last = -1
    with os.fdopen(reading) as lines:
        for line in lines:
            number, _, problem = line.strip().partition(" ")
            last = int(number)
            if problem:
                trial.found(f"{kind}, number {number}: {problem}")
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status != 0:
        trial.found(f"{kind}, number {last}: the process ended with status {status}")


def attack(trial: Trial) -> None:
    """Spoil content of every kind, `trial.count` times each."""
    for kind, (content, load) in archives(trial.folder).items():
        generator = trial.generator(kind)
        cases = {number: spoilt(content, generator) for number in range(trial.count)}
        cases = {number: case for number, case in cases.items() if writable(case)}
        for first in range(0, trial.count, BATCH):
            some = {number: case for number, case in cases.items() if first <= number < first + BATCH}
            batch(trial, kind, load, some)
            trial.tried[f"{kind}: impossible content"] += len(some)
            if trial.time_is_up():
                return


if __name__ == "__main__":
    main("contents", attack, count=500, seconds=900)
