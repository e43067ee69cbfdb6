"""Policies of other libraries, made to act on batches: Stable-Baselines3 models, torch modules, functions.

Policies of steadyrl see flattened observations [B, d]; these see them in the shape and type of the environment's space.
Whatever they draw from torch's global generator is seeded from the block's own generator and leaves the global state as
it was, so that a run can be repeated.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import json
import os
import sys
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from steadyrl.common.checks import shortened, shown
from steadyrl.common.storage import require_reasonable_size
from steadyrl.environments.codecs import ActionCodec, ObservationCodec
from steadyrl.errors import FileFormatError, MissingExtraError, PolicyError
from steadyrl.policies.networks import Policy

Array = NDArray[np.float64]


def as_foreign_policy(policy: Any, observations: ObservationCodec, actions: ActionCodec) -> tuple[Policy, str] | None:
    """Return an adapter for a policy of another library and its name for the record; None if it is none."""
    if isinstance(policy, type):
        return None
    if _is_sb3(policy):
        return _sb3_policy(policy, observations, actions), type(policy).__name__
    if _is_module(policy) and not _takes_rng(getattr(policy, "act", None)):
        adapter, name = TorchPolicy(policy, observations, actions), type(policy).__name__
        problem = _problem_with(adapter, observations, actions)
        if problem is not None:
            raise PolicyError(
                f"the torch module {name} cannot act on a batch of observations of {shown(observations.space)} "
                f"({problem}); it must take them and return an action, or the logits or means of actions, for each"
            )
        return adapter, name
    if hasattr(policy, "act") or not callable(policy):
        return None
    name = getattr(policy, "__qualname__", type(policy).__qualname__)
    return _function_policy(policy, observations, actions), name


def load_sb3_model(path: str | os.PathLike[str], observations: ObservationCodec, actions: ActionCodec) -> Policy:
    """Return the policy of a Stable-Baselines3 model that was saved with model.save(path).

    The format holds pickled objects, which run code when they are loaded: load only files that you trust.

    Raises:
        FileFormatError: If the file is damaged or holds something else.
        PolicyError: If its algorithm is not known, or if it was trained in a VecNormalize, whose statistics are not in
            the file.
        MissingExtraError: If Stable-Baselines3 is not installed.
    """
    where = repr(os.fspath(path))
    try:
        with zipfile.ZipFile(path) as archive:
            require_reasonable_size(archive, os.path.getsize(path))
            data = json.loads(archive.read("data"))
        module, name = str(data["policy_class"]["__module__"]), str(data["policy_class"].get("__name__", ""))
    except Exception as error:  # zipfile, zlib and json raise a dozen types on damaged files
        raise FileFormatError(
            f"{where} is a zip file, but not one that Stable-Baselines3's model.save wrote, or it is damaged "
            f"({type(error).__name__}: {shortened(error, 200)})"
        ) from error
    algorithm = _algorithm(module, data)
    if algorithm is None:
        raise PolicyError(
            f"{where} is a model of {module} ({name}), whose algorithm cannot be told from the file; load it with its "
            "own class in Python and give the model: steadyrl.diagnose(env, model)"
        )
    try:
        model = algorithm.load(path, device="cpu")
    except Exception as error:  # whatever unpickling and torch raise for damaged or incompatible files
        raise FileFormatError(
            f"{where} cannot be loaded by {algorithm.__name__} ({type(error).__name__}: {error})"
        ) from error
    return _sb3_policy(model, observations, actions, Path(path))


@dataclass(frozen=True)
class Sb3Policy:
    """The policy of a Stable-Baselines3 model, with the normalisation of observations that it was trained with."""

    policy: Any
    observations: ObservationCodec
    normalisation: tuple[Array, Array, float] | None = None
    """Mean, standard deviation and clipping of VecNormalize."""

    def act(self, observations: Array, rng: np.random.Generator) -> Any:
        """Return one action for each observation, drawn as in training."""
        batch = restored(self.observations, observations)
        if self.normalisation is not None:
            mean, deviation, limit = self.normalisation
            batch = np.clip((batch - mean) / deviation, -limit, limit).astype(np.float32)
        with _seeded_torch(rng):
            chosen, _ = self.policy.predict(batch, deterministic=False)
        return chosen


@dataclass(frozen=True)
class TorchPolicy:
    """A torch module: one with get_action_and_value or act, or a plain one that returns logits or means."""

    module: Any
    observations: ObservationCodec
    actions: ActionCodec

    def act(self, observations: Array, rng: np.random.Generator) -> Any:
        """Return one action for each observation."""
        import torch

        batch = self._tensors(restored(self.observations, observations))
        with torch.no_grad(), _seeded_torch(rng):
            if hasattr(self.module, "get_action_and_value"):
                chosen = self.module.get_action_and_value(batch)[0]
            elif hasattr(self.module, "act"):
                chosen = self.module.act(batch)
            else:
                return self._from_output(self.module(batch), rng)
        return _as_actions(chosen, self.actions, len(observations))

    def _tensors(self, batch: Any) -> Any:
        import torch

        place = next(iter(self.module.parameters()), torch.zeros(0))
        if isinstance(batch, dict):
            return {key: self._tensors(part) for key, part in batch.items()}
        tensor = torch.as_tensor(batch, device=place.device)
        return tensor.to(place.dtype) if tensor.is_floating_point() else tensor

    def _from_output(self, output: Any, rng: np.random.Generator) -> Any:
        """Return actions from a distribution, from logits (Discrete, MultiDiscrete), or from means (Box)."""
        if isinstance(output, tuple) and output:
            output = output[0]
        if hasattr(output, "sample"):
            return _as_actions(output.sample(), self.actions, -1)
        values = _as_array(output).astype(float)
        space = self.actions.space
        if isinstance(space, spaces.Box):
            spread = next((getattr(self.module, n) for n in _DEVIATIONS if hasattr(self.module, n)), None)
            if spread is not None:
                noise = rng.standard_normal(values.shape)
                values = values + np.exp(_as_array(spread).astype(float).reshape(1, -1)) * noise
            return values.reshape(len(values), *self.actions.shape)
        sizes = [int(space.n)] if isinstance(space, spaces.Discrete) else [int(n) for n in space.nvec.ravel()]
        if values.ndim != 2 or values.shape[1] != sum(sizes):
            raise PolicyError(
                f"the module {type(self.module).__name__} returned an array of shape {values.shape}; this "
                f"environment's actions are {space}, so it must return {sum(sizes)} logits for each observation"
            )
        # The largest of logits plus Gumbel noise is a draw from their softmax.
        parts = np.split(values + rng.gumbel(size=values.shape), np.cumsum(sizes)[:-1], axis=1)
        drawn = np.stack([part.argmax(axis=1) for part in parts], axis=1)
        start = np.asarray(getattr(space, "start", 0))
        return (drawn.reshape(len(values), *self.actions.shape) + start).astype(np.int64)


@dataclass(frozen=True)
class FunctionPolicy:
    """A function of observations: of a batch, or of one observation at a time."""

    function: Callable[..., Any]
    observations: ObservationCodec
    actions: ActionCodec
    single: bool
    """Whether the function takes one observation at a time."""
    draws: bool
    """Whether it takes a random generator as its second argument."""

    def act(self, observations: Array, rng: np.random.Generator) -> Any:
        """Return one action for each observation."""
        batch, more = restored(self.observations, observations), (rng,) if self.draws else ()
        if not self.single:
            return _as_actions(self.function(batch, *more), self.actions, len(observations))
        found = [_as_array(self.function(_row(batch, i), *more)) for i in range(len(observations))]
        joined = np.ma.stack(found) if any(map(np.ma.isMaskedArray, found)) else np.array(found)
        return _as_actions(joined, self.actions, len(observations))


_DEVIATIONS = ("log_std", "logstd", "actor_logstd")


def restored(codec: ObservationCodec, flat: Array) -> Any:
    """Return flattened observations [B, d] as a batch in the shape and type of their space."""
    return _restored(codec.space, flat)


def _restored(space: Any, flat: Array) -> Any:
    if isinstance(space, spaces.Box | spaces.MultiBinary):
        return flat.reshape(len(flat), *space.shape).astype(space.dtype)
    if isinstance(space, spaces.Discrete):
        return flat.argmax(axis=1).astype(np.int64) + int(space.start)
    if isinstance(space, spaces.MultiDiscrete):
        parts = np.split(flat, np.cumsum(space.nvec.ravel())[:-1], axis=1)
        numbers = np.stack([part.argmax(axis=1) for part in parts], axis=1)
        return numbers.reshape(len(flat), *space.shape).astype(space.dtype)
    if isinstance(space, spaces.Dict):
        sizes = [spaces.flatdim(part) for part in space.values()]
        parts = np.split(flat, np.cumsum(sizes)[:-1], axis=1)
        return {key: _restored(space[key], part) for key, part in zip(space.spaces, parts, strict=True)}
    raise PolicyError(
        f"observations are {space}, which cannot be given to a policy of another library; write an object with "
        "act(observations, rng), which gets them flattened"
    )


def _sb3_policy(
    model: Any, observations: ObservationCodec, actions: ActionCodec, file: Path | None = None
) -> Sb3Policy:
    policy = getattr(model, "policy", model)
    if "recurrent" in type(model).__module__ or hasattr(policy, "lstm_actor"):
        raise PolicyError(
            f"{type(model).__name__} is recurrent, and steadyrl calls policies without a memory; write an object with "
            "act(observations, rng)"
        )
    for name, space in (("observation", observations.space), ("action", actions.space)):
        expected = getattr(policy, f"{name}_space", None)
        if expected is not None and _sizes(expected) != _sizes(space):
            takes = "takes" if name == "observation" else "gives"
            raise PolicyError(
                f"the model {type(model).__name__} {takes} {name}s {expected}, and this environment has {space}; give "
                "the environment that it was trained on, with the same wrappers"
            )
    normaliser = model.get_vec_normalize_env() if hasattr(model, "get_vec_normalize_env") else None
    if normaliser is None and getattr(model, "_last_original_obs", None) is not None:  # only VecNormalize has set it
        raise PolicyError(_without_statistics(type(model).__name__, file))
    if normaliser is None or not normaliser.norm_obs:
        return Sb3Policy(policy, observations)
    if not isinstance(observations.space, spaces.Box):
        raise PolicyError(
            "the model's VecNormalize normalises parts of a Dict observation, which is not supported; write an object "
            "with act(observations, rng)"
        )
    seen: Any = normaliser.obs_rms
    scale = (np.asarray(seen.mean), np.sqrt(seen.var + normaliser.epsilon), float(normaliser.clip_obs))
    return Sb3Policy(policy, observations, scale)


def _sizes(space: Any) -> Any:
    """Return what two spaces must share for one policy to serve both: shapes and numbers of choices, not bounds."""
    if isinstance(space, spaces.Dict):
        return {key: _sizes(part) for key, part in space.spaces.items()}
    choices = np.asarray(getattr(space, "nvec", getattr(space, "n", ())))
    return space.shape, choices.tolist()


def _without_statistics(algorithm: str, file: Path | None) -> str:
    """Return what to do about a model that was trained in a VecNormalize which is not at hand."""
    beside = None if file is None else _statistics_beside(file)
    name = "the model" if file is None else repr(str(file))
    there = "" if beside is None else f" ({str(beside)!r} seems to be it, and unpickling it could run any code)"
    loaded, statistics = str(file or "model.zip"), str(beside or "vecnormalize.pkl")
    return (
        f"{name} was trained in a VecNormalize, whose statistics are in a file of its own{there}; without them the "
        "policy would see observations on another scale, and a verdict would be wrong. Give both in Python: "
        f"env = VecNormalize.load({statistics!r}, make_vec_env(name)); "
        f"steadyrl.diagnose(name, {algorithm}.load({loaded!r}, env=env)). If it normalised rewards only: "
        f"steadyrl.diagnose(name, {algorithm}.load({loaded!r}).policy)"
    )


def _statistics_beside(file: Path) -> Path | None:
    """Return the pickled VecNormalize beside a model, as CheckpointCallback and rl_zoo3 save it, if there is one."""
    found = [
        other
        for pattern in ("*.pkl", "*/vecnormalize.pkl")
        for other in sorted(file.parent.glob(pattern))
        if "normalize" in other.name.lower()
    ]
    twins = [other for other in found if other.stem.replace("vecnormalize_", "") == file.stem]
    return next(iter([*twins, *found]), None)


def _function_policy(function: Any, observations: ObservationCodec, actions: ActionCodec) -> FunctionPolicy:
    """Return the adapter of a function, which is tried on two observations to see what it takes."""
    draws, problems = _takes_rng(function), []
    for single in (False, True):
        policy = FunctionPolicy(function, observations, actions, single, draws)
        problem = _problem_with(policy, observations, actions)
        if problem is None:
            return policy
        problems.append(problem)
    raise PolicyError(
        f"the function {getattr(function, '__qualname__', function)!r} takes neither a batch of observations "
        f"({problems[0]}) nor a single one ({problems[1]}); it must return an action of {actions.space} for each"
    )


def _problem_with(policy: Policy, observations: ObservationCodec, actions: ActionCodec) -> str | None:
    """Return what happens if a policy acts on two observations of the space, if it cannot; else None."""
    space = copy.deepcopy(observations.space)
    space.seed(0)
    flat = np.stack([np.asarray(spaces.flatten(space, space.sample()), dtype=float) for _ in range(2)])
    try:
        actions.checked(policy.act(flat, np.random.default_rng(0)), 2)
    except (Exception, SystemExit) as error:  # it may raise anything for what it does not take
        return f"{type(error).__name__}: {shortened(error, 200)}"
    return None


def _takes_rng(function: Any) -> bool:
    """Return whether a callable takes a second argument: the random generator."""
    if not callable(function):
        return False
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    required = [p for p in parameters if p.kind in kinds and (p.default is p.empty or p.name == "rng")]
    return len(required) >= 2


def _is_module(policy: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(policy, torch.nn.Module)


def _is_sb3(policy: Any) -> bool:
    kinds = {cls.__module__.split(".")[0] for cls in type(policy).__mro__}
    return "stable_baselines3" in kinds and callable(getattr(policy, "predict", None))


def _algorithm(module: str, data: dict[str, Any]) -> Any:
    """Return the class of Stable-Baselines3 that saved a model; None if it cannot be told."""
    try:
        sb3 = import_module("stable_baselines3")
    except ImportError as error:
        raise MissingExtraError(
            'a model of Stable-Baselines3 needs that package, which is not installed; pip install "steadyrl[sb3]"'
        ) from error
    parts = module.split(".")
    if parts[0] != "stable_baselines3" or len(parts) < 2:
        return None
    if parts[1] != "common":  # SAC, TD3 (and DDPG, which is TD3 with other settings) and DQN have policies of their own
        return getattr(sb3, parts[1].upper(), None)
    return sb3.PPO if "clip_range" in data else sb3.A2C


@contextlib.contextmanager
def _seeded_torch(rng: np.random.Generator) -> Iterator[None]:
    """Seed torch's global generator from `rng`, and give it back its state afterwards."""
    import torch

    with torch.random.fork_rng():
        torch.manual_seed(int(rng.integers(2**63)))
        yield


def _as_array(values: Any) -> Any:
    return values.detach().cpu().numpy() if hasattr(values, "detach") else np.asanyarray(values)  # masks are refused


def _as_actions(values: Any, actions: ActionCodec, batch: int) -> Any:
    """Return actions as an array in the shape of the space; whole numbers stay whole."""
    found = _as_array(values)
    shape = (batch if batch >= 0 else len(found), *actions.shape)
    if found.shape != shape and found.size == int(np.prod(shape)) and found.ndim > 0 and len(found) == shape[0]:
        found = found.reshape(shape)
    if (
        actions.low is None
        and found.dtype.kind in "fb"
        and np.isfinite(found).all()
        and (found == np.rint(found)).all()
    ):
        found = found.astype(np.int64)
    return found


def _row(batch: Any, i: int) -> Any:
    return {key: _row(part, i) for key, part in batch.items()} if isinstance(batch, dict) else batch[i]


def is_zip(path: str | os.PathLike[str]) -> bool:
    """Return whether a file is a zip archive, as Stable-Baselines3's models are."""
    return os.path.isfile(path) and zipfile.is_zipfile(path)
