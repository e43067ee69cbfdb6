"""Sources of environments: a Gymnasium id, a spec, a factory function, or a learning process.

A source can be sent to another process (by cloudpickle, so that functions from a script or a notebook work) and makes
the same environment there.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec, load_env_creator

from steadyrl.common.checks import as_keywords, check_id, in_words, shortened, shown
from steadyrl.common.identity import fingerprint, named_identity, readable_name
from steadyrl.common.machine import Process
from steadyrl.common.own_code import held_code, is_own
from steadyrl.common.terminal import clean
from steadyrl.environments.process_env import ProcessEnv
from steadyrl.errors import MissingExtraError, RolloutError, SteadyrlError
from steadyrl.exact.process import LearningProcess

LONGEST = 100_000
"""Number of actions after which an episode without a time limit counts as one that never ends."""


@dataclass(frozen=True)
class Source:
    """An environment that can be made anywhere, any number of times."""

    name: str
    id: str | None
    """The Gymnasium id, if the environment was given by one."""
    arguments: Mapping[str, Any]
    """Keyword arguments for gymnasium.make."""
    factory: Callable[[], Any] = field(compare=False)
    digest: str = ""
    """Fingerprint of a factory's or a spec's content; "" where the name says it all."""

    def make(self) -> Any:
        """Return a new environment."""
        process = Process()
        try:
            env = self.factory()
        except SystemExit as error:
            raise RolloutError(
                f"{self.name} called sys.exit({error.code!r}) while it was made; have it raise an error instead"
            ) from error
        except (SteadyrlError, MemoryError, KeyboardInterrupt):
            raise
        except BaseException as error:
            raise RolloutError(
                f"{self.name} raised {in_words(error)} while it was made; repair the environment"
            ) from error
        finally:
            process.back()
        if not isinstance(env, gymnasium.Env):
            raise RolloutError(
                f"the function {self.name} returned {type(env).__name__}, not a gymnasium.Env; a vector environment "
                "cannot be used, since every block of episodes makes its own copies"
            )
        return env

    def described(self, description: Description) -> Source:
        """Return the source with what its environment was found to be made of in its digest.

        A factory that names its identity (`steadyrl_identity`) is taken at its word.
        """
        if named_identity(self.factory) is not None or not description.content:
            return self
        return replace(self, digest=fingerprint((self.digest, description.content)))


@dataclass(frozen=True)
class Description:
    """What is known about an environment before anything is run in it."""

    observation_space: Any
    action_space: Any
    max_episode_steps: int | None
    fixed_episode: Any
    """Observations and rewards of every episode if all episodes are the same (StateSweep-v0), or None."""
    module: str
    """The module in which the environment's class is defined."""
    content: str
    """Fingerprint of its classes that are not an installed package's, and of what it was registered with; or ""."""


def as_source(environment: Any, make_arguments: Mapping[str, Any] | None = None) -> Source:
    """Return the source of an environment given as an id, a spec, a LearningProcess or a function."""
    arguments = as_keywords("make_arguments", make_arguments, RolloutError)
    if isinstance(environment, str):
        return Source(environment, environment, arguments, partial(_make, environment, arguments))
    if isinstance(environment, EnvSpec):
        identity = fingerprint(environment)
        return Source(environment.id, None, arguments, partial(_make, environment, arguments), identity)
    if arguments:
        raise RolloutError(
            f"make_arguments {sorted(arguments)} are passed to gymnasium.make, so they need an id or a spec; with a "
            "function, let the function pass them itself"
        )
    if isinstance(environment, LearningProcess):
        return Source(f"{environment!r} {environment.digest}", None, {}, partial(ProcessEnv, environment))
    if isinstance(environment, gymnasium.Env):
        raise RolloutError(
            f"{environment} is one environment, but collecting needs fresh copies; give its id, its spec "
            "(env.spec), or a function that makes it"
        )
    if callable(environment):
        return Source(readable_name(environment), None, {}, environment, fingerprint(environment))
    raise RolloutError(
        f"environment is {shown(environment)}; it must be a Gymnasium id, a spec, a LearningProcess, or a function "
        "that returns an environment"
    )


def describe(source: Source) -> Description:
    """Make the environment once and read its spaces and limits."""
    env = source.make()
    try:
        for name in ("observation_space", "action_space"):
            if not isinstance(getattr(env, name, None), gymnasium.Space):
                raise RolloutError(f"{source.name} has no {name} that is a gymnasium.Space; set it in its constructor")
        limit = getattr(env.unwrapped, "max_episode_steps", None) if env.spec is None else env.spec.max_episode_steps
        fixed = getattr(env.unwrapped, "fixed_episode", None)
        episode = None if fixed is None else fixed()
        module, content = type(env.unwrapped).__module__, _content(env, source)
        return Description(env.observation_space, env.action_space, limit, episode, module, content)
    finally:
        close_quietly(env)


def _content(env: Any, source: Source) -> str:
    """Return a fingerprint of what no name and no version tells of an environment; "" if there is nothing of the kind.

    An id, or a function that calls gymnasium.make or imports a module when it is called, stays the same when the class
    behind it is edited, or is registered with other arguments, or when the simulator that it makes by a name is edited.
    """
    layers = [env]
    while isinstance(layers[-1], gymnasium.Wrapper):
        layers.append(layers[-1].env)
    entry = None if env.spec is None else env.spec.entry_point
    entry = load_env_creator(entry) if isinstance(entry, str) else entry
    makers = [entry, *map(type, layers)]
    kinds = [maker for maker in makers if is_own(maker)]
    held = held_code(value for layer in layers for value in getattr(layer, "__dict__", {}).values())
    further = frozenset(code for code in held if not any(code is kind for kind in kinds))
    kinds += [further] if further else []
    if env.spec is None:
        return fingerprint(kinds) if kinds else ""
    arguments = {key: value for key, value in env.spec.kwargs.items() if key not in source.arguments}
    wrappers = [(wrapper.name, wrapper.kwargs) for wrapper in env.spec.additional_wrappers]
    if not (kinds or arguments or wrappers):
        return ""
    return fingerprint((kinds, arguments, wrappers, env.spec.max_episode_steps))


def close_quietly(env: Any) -> None:
    """Close an environment whose results are already collected, and ignore errors that it raises while closing."""
    process = Process()
    try:
        env.close()
    except KeyboardInterrupt:
        raise
    except BaseException:
        pass
    finally:
        process.back()


def _make(id_or_spec: Any, arguments: Mapping[str, Any]) -> Any:
    name = id_or_spec if isinstance(id_or_spec, str) else id_or_spec.id
    check_id(id_or_spec, RolloutError)
    if isinstance(id_or_spec, str) and name.split("/")[-1].split("-v")[0].endswith("BulletEnv") and ":" not in name:
        _import_bullet()
    try:
        return gymnasium.make(id_or_spec, disable_env_checker=True, **arguments)
    except gymnasium.error.DependencyNotInstalled as error:
        raise MissingExtraError(_extra_line(name, error)) from error
    except (gymnasium.error.Error, ModuleNotFoundError) as error:
        raise RolloutError(
            f"Gymnasium cannot make {shown(name, 300)} ({shortened(clean(error))}); if a package registers it, name "
            "it too, as in 'package:Name-v0'"
        ) from error
    except Exception as error:
        if not arguments:  # then it is the environment's own affair
            raise
        raise RolloutError(_arguments_line(id_or_spec, name, arguments, error)) from error


def _arguments_line(id_or_spec: Any, name: str, arguments: Mapping[str, Any], error: Exception) -> str:
    """Return the message about arguments that an environment does not take, or not with these values."""
    known = _constructor_arguments(id_or_spec)
    given = ", ".join(f"{key}={value!r}" for key, value in arguments.items())
    unknown = [key for key in arguments if f"unexpected keyword argument '{key}'" in in_words(error)]
    if unknown:
        text = f"{name} takes no argument {unknown[0]!r} (of those for gymnasium.make: {given})"
    else:
        text = f"{name} cannot be made with {given} ({in_words(error)})"
    takes = f"it takes {', '.join(known)}, and " if known else "besides its own, "
    return f"{text}; {takes}every environment takes max_episode_steps: correct or leave out --make (make_arguments)"


def _constructor_arguments(id_or_spec: Any) -> list[str]:
    """Return the names of what a constructor takes; none if that cannot be found out."""
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    try:  # the module in module:Name-v0 has been imported
        spec = gymnasium.spec(id_or_spec.rpartition(":")[2]) if isinstance(id_or_spec, str) else id_or_spec
        entry: Any = load_env_creator(spec.entry_point) if isinstance(spec.entry_point, str) else spec.entry_point
        return [found.name for found in inspect.signature(entry).parameters.values() if found.kind in kinds]
    except Exception:
        return []


def _import_bullet() -> None:
    try:
        import pybullet_envs_gymnasium  # noqa: F401  (registers the environments)
    except ImportError as error:
        raise MissingExtraError(
            "the Bullet environments need PyBullet; install them with: pip install 'steadyrl[bullet]'"
        ) from error


def _extra_line(name: str, error: Exception) -> str:
    return (
        f"{name} needs a package that is not installed ({error}); for MuJoCo: pip install 'steadyrl[mujoco]', for "
        "classic control and toy-text rendering: pip install 'gymnasium[classic-control,toy-text]'"
    )
