"""Registers steadyrl's environments with Gymnasium without importing it.

Since Gymnasium 1.0 an environment is registered when its package is imported. Importing Gymnasium takes longer than all
of `steadyrl.lengths`, which does not need it. So `import steadyrl` registers at once if Gymnasium has been imported
already, and otherwise as soon as anybody imports it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType

STATE_SWEEP = "steadyrl/StateSweep-v0"


def register_environments() -> None:
    """Register steadyrl's environments now, or as soon as Gymnasium is imported."""
    if "gymnasium.envs.registration" in sys.modules:
        _register()
    elif not any(isinstance(finder, _AfterGymnasium) for finder in sys.meta_path):
        sys.meta_path.insert(0, _AfterGymnasium())


def _register() -> None:
    from gymnasium.envs.registration import register, registry

    if STATE_SWEEP not in registry:
        register(id=STATE_SWEEP, entry_point="steadyrl.environments:StateSweepEnv")


class _AfterGymnasium(MetaPathFinder):
    """Finds Gymnasium like the usual import system, and registers the environments once it has been loaded."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return Gymnasium's spec, with a loader that registers the environments afterwards; None for other modules."""
        if fullname != "gymnasium":
            return None
        sys.meta_path.remove(self)
        spec = find_spec(fullname)
        if spec is None or spec.loader is None:
            return spec
        load = spec.loader.exec_module

        def load_and_register(module: ModuleType) -> None:
            load(module)
            _register()

        spec.loader.exec_module = load_and_register  # type: ignore[method-assign]
        return spec
