"""The examples run, with and without the cure, and the cure is the few lines that are marked as such."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from steadyrl.errors import PhaseLockWarning

pytestmark = pytest.mark.slow  # these take long together; continuous integration runs them

EXAMPLES = Path(__file__).parents[1] / "examples"
SHORT = {
    "gymnasium_loop": ["--batches", "60"],
    "cleanrl_ppo": ["--num-envs", "16", "--updates", "30", "--epochs", "1"],
    "sb3_ppo": ["--n-envs", "16", "--updates", "30"],
}
FEW = {"gymnasium_loop": [], "cleanrl_ppo": ["--updates", "3"], "sb3_ppo": ["--updates", "3"]}
MARK = "  # cure"


def source(name):
    return (EXAMPLES / f"{name}.py").read_text()


def run(name, text, options, monkeypatch):
    """Run an example in this process, and return what its main does."""
    monkeypatch.setattr(sys, "argv", [f"{name}.py", *SHORT[name], *options])
    torch.set_num_threads(1)
    space = {"__name__": name}
    exec(compile(text, f"{name}.py", "exec"), space)
    return space["main"]()


def numbers(result):
    """What a run has learned or measured."""
    if isinstance(result, list):
        return np.array(result)
    return np.concatenate([values.detach().numpy().ravel() for values in result.policy.parameters()])


def test_every_example_is_tested():
    assert {path.stem for path in EXAMPLES.glob("*.py")} == {*SHORT, "jax_ppo"}  # which tests_jax has


@pytest.mark.parametrize("name", SHORT)
@pytest.mark.filterwarnings("ignore::steadyrl.errors.PhaseLockWarning")
def test_the_cure_is_at_most_five_lines(name, monkeypatch):
    # What is left without the marked lines is a whole script that knows no cure and does the very same as the
    # example without --cure: so these lines are all the difference.
    lines = source(name).splitlines()
    marked = [line for line in lines if line.endswith(MARK)]
    assert 1 <= len(marked) <= 5
    rest = "\n".join(line for line in lines if not line.endswith(MARK))
    assert not any(word in rest for word in ("StaggeredVectorEnv", "SteadyVecEnv", "make_steady_vec_env", "args.cure"))
    without, bare = (numbers(run(name, text, FEW[name], monkeypatch)) for text in (source(name), rest))
    np.testing.assert_array_equal(without, bare)


def test_the_code_for_stable_baselines3_in_the_documentation_runs():
    page = (EXAMPLES.parent / "docs" / "cures.md").read_text()
    codes = [code for code in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "stable_baselines3" in code]
    assert len(codes) == 3
    for code in codes:  # each by itself: test_docs.py runs the whole page, in which one may lean on another
        exec(re.sub(r"\b100_000|1_000_000", "1", code).replace("n_envs=256", "n_envs=64"), {})


@pytest.mark.filterwarnings("ignore::steadyrl.errors.PhaseLockWarning")
def test_the_single_file_takes_discrete_actions(monkeypatch, capsys):
    few = ["--env-id", "CartPole-v1", "--updates", "4"]
    assert len(run("cleanrl_ppo", source("cleanrl_ppo"), few, monkeypatch)) == 4
    assert "fair" in capsys.readouterr().out


def test_both_arms_of_the_stable_baselines3_example_run_on_the_same_backend(monkeypatch):
    few = ["--updates", "1"]
    raw, cured = (run("sb3_ppo", source("sb3_ppo"), [*few, *options], monkeypatch) for options in ([], ["--cure"]))
    assert type(raw.get_env().unwrapped) is type(cured.get_env().unwrapped)
    assert type(raw.get_env()) is not type(cured.get_env())


def test_the_plain_loop_swings_without_the_cure_and_settles_with_it(monkeypatch):
    raw, cured = (run("gymnasium_loop", source("gymnasium_loop"), options, monkeypatch) for options in ([], ["--cure"]))
    assert np.std(raw[30:]) > 3
    assert np.std(cured[30:]) < 0.3
    assert np.mean(cured[30:]) == pytest.approx(10.0, abs=0.5)  # rewards 2, ..., 19, 0: of 19 actions


def test_the_single_file_comes_to_steady_state_with_the_cure_only(monkeypatch):
    raw, cured = (run("cleanrl_ppo", source("cleanrl_ppo"), options, monkeypatch) for options in ([], ["--cure"]))
    assert np.median(raw[20:]) > 0.5
    assert max(cured[-3:]) < 0.2


def test_stable_baselines3_comes_to_steady_state_with_the_cure_only(monkeypatch, capsys):
    with pytest.warns(PhaseLockWarning):
        run("sb3_ppo", source("sb3_ppo"), [], monkeypatch)
    raw = capsys.readouterr().out
    run("sb3_ppo", source("sb3_ppo"), ["--cure"], monkeypatch)
    cured = capsys.readouterr().out
    raw, cured = ([float(line.split("|")[2]) for line in out.splitlines() if "phase_d" in line] for out in (raw, cured))
    assert raw[-1] > 0.5
    assert cured[-1] < 0.2
