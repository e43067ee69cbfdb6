"""The arrows of the design: which package may import which, and what the lower ones may import at all."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import steadyrl

SOURCE = Path(steadyrl.__file__).parent
ORDER = [
    "errors",
    "common",
    "numerics",
    "exact",
    "lengths",
    "live",
    "environments",
    "policies",
    "wrappers",
    "integrations",
    "rollouts",
    "diagnosis",
    "sspg",
    "experiments",
    "cli",
]
"""From the bottom up: a package imports itself and those before it."""
ARRAYS_ONLY = ("errors", "common", "numerics", "exact", "lengths", "live")


def imports():
    """Yield (package, module, imported name) for every import at the top level of a module."""
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        if parts[0] in ("__init__", "__main__"):
            continue
        for node in ast.parse(path.read_text()).body:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [f"steadyrl.{a.name}" for a in node.names] if node.module == "steadyrl" else [node.module]
            for name in names:
                yield parts[0], ".".join(parts), name


def test_every_package_imports_only_those_before_it():
    for package, module, name in imports():
        if name.startswith("steadyrl.") and name != "steadyrl.__version__":
            allowed = ORDER[: ORDER.index(package) + 1]
            assert name.split(".")[1] in allowed, f"{module} imports {name}, which comes after {package}"


def test_what_works_on_arrays_imports_numpy_and_scipy_only():
    for package, module, name in imports():
        root = name.split(".")[0]
        if package in ARRAYS_ONLY:
            allowed = {*sys.stdlib_module_names, "numpy", "scipy", "steadyrl"}
            allowed |= {"array_api_compat"} if package == "live" else set()
            assert root in allowed, f"{module} imports {name}"


@pytest.mark.parametrize(
    ("statement", "unwanted"),
    [
        (
            "import steadyrl.lengths",
            ["gymnasium", "torch", "steadyrl.exact", "steadyrl.rollouts", "steadyrl.numerics.absorbing"],
        ),
        ("import steadyrl.exact", ["gymnasium", "torch", "steadyrl.lengths"]),
        ("import steadyrl; steadyrl.StaggeredVectorEnv", ["torch", "ray", "envpool", "matplotlib", "steadyrl.exact"]),
        ("import steadyrl; steadyrl.collect_episodes", ["torch", "ray", "envpool", "matplotlib"]),
    ],
)
def test_what_is_not_needed_is_not_loaded(statement, unwanted):
    code = f"import sys; {statement}; print([m for m in {unwanted} if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert result.stdout.strip() == "[]"


@pytest.mark.parametrize("first", ["gymnasium", "steadyrl"])
def test_the_state_sweep_is_registered_whoever_is_imported_first(first):
    second = {"gymnasium": "steadyrl", "steadyrl": "gymnasium"}[first]
    code = f"import {first}, {second}; print(gymnasium.make('steadyrl/StateSweep-v0', n=7).unwrapped.n)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert result.stdout.strip() == "7"


def test_every_public_name_is_there_and_every_package_says_what_it_is():
    for name in steadyrl.__all__:
        assert getattr(steadyrl, name) is not None
    for package in ORDER[1:]:
        text = ast.get_docstring(ast.parse((SOURCE / package / "__init__.py").read_text()))
        rooms = {path.stem for path in (SOURCE / package).iterdir() if path.suffix == ".py" or path.is_dir()}
        rooms -= {"__init__", "__pycache__", "page"}
        assert all(f"`{room}`" in text for room in rooms), (
            f"{package} does not list {sorted(r for r in rooms if f'`{r}`' not in text)}"
        )
