"""The arrows of the design: which module may import which, and what the core may import at all."""

import ast
import subprocess
import sys
from pathlib import Path

import steadyrl

SOURCE = Path(steadyrl.__file__).parent

# From the bottom up: a module may import those of earlier lines (and helpers of its own line are listed in order).
ORDER = [
    "errors",
    "storage",
    "arrays",
    "numerics.elimination",
    "numerics.multigrid",
    "numerics.graphs",
    "numerics.powers",
    "numerics.convolution",
    "numerics.absorbing",
    "layers",
    "toytext",
    "process",
    "tabular",
    "chain",
    "conditions",
    "stationary",
    "mixing",
    "values",
    "gradients",
    "perturbation",
    "renewal",
    "bands",
    "confidence",
    "moments",
    "batches",
    "delays",
    "lifetable",
    "phase",
    "resets",
    "restaggering",
    "cuts",
    "strategies",
    "gallery",
    "summary",
    "figures",
    "environments",
    "wrappers.acting",
    "wrappers.arguments",
    "wrappers.vectors",
    "wrappers.perturbed_starts",
    "wrappers.staggered_start",
    "wrappers.pre_rolled_start",
    "wrappers.stationary_start",
    "wrappers.staggered_vector_env",
    "wrappers.pre_roll",
    "wrappers.phase_monitor",
    "rollouts.seeding",
    "rollouts.sources",
    "rollouts.codecs",
    "rollouts.policies",
    "rollouts.envpools",
    "rollouts.lanes",
    "rollouts.engine",
    "rollouts.blocks",
    "rollouts.schedule",
    "rollouts.worker",
    "rollouts.processes",
    "rollouts.clusters",
    "rollouts.checkpoints",
    "rollouts.progress",
    "rollouts.files",
    "rollouts.episodes",
    "rollouts.samples",
    "rollouts.planning",
    "rollouts.jumping",
    "rollouts.collect",
    "wrappers.pools",
    "wrappers.envpool_vector",
    "integrations.sb3.envpool",
    "integrations.sb3.staggering",
    "integrations.sb3.making",
    "integrations.sb3.callback",
    "gathering",
    "lengthfiles",
    "convergence",
    "diagnosis",
    "screen",
    "report",
    "policies",
    "sspg.settings",
    "sspg.line",
    "sspg.streams",
    "sspg.estimator",
    "sspg.returns",
    "sspg.normaliser",
    "sspg.critic",
    "sspg.learner",
    "sspg.copies",
    "sspg.online",
    "sspg.fresh",
    "sspg.drawing",
    "sspg.checkpoints",
    "sspg.display",
    "sspg.training",
    "sspg.evaluation",
    "experiments.lab",
    "experiments.frame",
    "experiments.pages",
    "experiments.running",
    "experiments.convergence_curves",
    "experiments.ascent",
    "experiments.illustration",
    "experiments.unification",
    "experiments.gradient_check",
    "experiments.mixing_figures",
    "experiments.sweep",
    "experiments.discounting",
    "experiments.stages",
    "experiments.elsewhere",
    "experiments.catalogue",
    "commands.options",
    "commands.check",
    "commands.collect",
    "commands.diagnose",
    "commands.reproduce",
    "commands.train",
    "commands.evaluate",
    "cli",
    "__main__",
]
EXACT = ORDER[: ORDER.index("summary") + 1]


def modules():
    for path in sorted(SOURCE.rglob("*.py")):
        name = ".".join(path.relative_to(SOURCE).with_suffix("").parts)
        if not name.endswith("__init__"):
            yield name, ast.parse(path.read_text())


def imports(tree, *, top_level):
    nodes = tree.body if top_level else list(ast.walk(tree))
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            if node.module in ("steadyrl", "steadyrl.numerics", "steadyrl.experiments"):
                yield from (f"{node.module}.{alias.name}" for alias in node.names)
            else:
                yield node.module


def test_every_module_has_its_place_and_imports_point_down():
    for name, tree in modules():
        assert name in ORDER, f"{name} has no place in the order of modules"
        below = ORDER[: ORDER.index(name)]
        for imported in imports(tree, top_level=True):
            if imported.startswith("steadyrl.") and imported != "steadyrl.__version__":
                assert imported.removeprefix("steadyrl.") in below, f"{name} imports {imported}"


def test_exact_modules_import_numpy_and_scipy_only():
    for name, tree in modules():
        if name in EXACT:
            for imported in imports(tree, top_level=True):
                root = imported.split(".")[0]
                assert root in {*sys.stdlib_module_names, "numpy", "scipy", "steadyrl"}, f"{name} imports {imported}"


def test_importing_steadyrl_loads_no_heavy_library():
    # Gymnasium is loaded: since its 1.0 an environment is registered by an import, and StateSweep-v0 is by ours.
    code = "import sys, steadyrl; print([m for m in ('torch', 'ray', 'envpool', 'matplotlib') if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert result.stdout.strip() == "[]"
