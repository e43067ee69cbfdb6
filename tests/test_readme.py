"""The README is one screen or two, its Python runs, and it says the truth."""

import json
import re
from pathlib import Path

import gymnasium
import pytest

import steadyrl
from steadyrl.diagnosis.wording import verdict

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
HOME = (ROOT / "docs" / "index.md").read_text()


def example(number):
    return re.findall(r"```python\n(.*?)```", README, re.DOTALL)[number]


def test_the_two_commands_for_a_fresh_machine_are_named():
    assert "\n    make demo " in README
    assert "\n    make test " in README
    assert "\nmake test\n" in (ROOT / ".ci" / "run").read_text()


def test_the_readme_is_at_most_ninety_lines():
    assert len(README.splitlines()) <= 90


def test_what_is_installed_in_a_clone_is_the_clone():
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "examples").glob("*.py")]
    assert any('pip install ".[' in page.read_text() for page in pages)
    for page in pages:  # this would ask the package index
        assert not re.search(r"pip install [\"']?steadyrl", page.read_text()), page.name


def test_the_readmes_links_lead_somewhere():
    for target in re.findall(r"\]\(([^)#\s]+)", README):
        assert (ROOT / target).exists(), target


def test_the_readmes_cure_brings_environments_to_steady_state(capsys):
    code = example(0)
    exec(code, {})
    assert capsys.readouterr().out.strip() == "at steady state"
    assert "# at steady state; without the cure: in lockstep" in code


def test_without_the_readmes_cure_environments_are_in_lockstep():
    code = example(0).replace("StaggeredVectorEnv(envs)", "PhaseMonitor(envs, warn=False)")
    scope = {}
    exec(code, scope)
    assert scope["envs"].phase.verdict == "in lockstep"


def test_the_readmes_cure_works_for_gymnasiums_own_vectorised_environments():
    envs = steadyrl.StaggeredVectorEnv(gymnasium.make_vec("CartPole-v1", num_envs=8))
    envs.reset(seed=0)
    for _ in range(30):
        envs.step(envs.action_space.sample())
    assert envs.cuts > 0
    envs.close()


def test_the_readmes_code_for_stable_baselines3_runs():
    code = example(1)
    assert "100_000" in code
    exec(code.replace("100_000", "1").replace("n_envs=64", "n_envs=16"), {})


def test_the_readmes_screen_is_what_the_command_prints():
    found = steadyrl.diagnose("steadyrl/StateSweep-v0", backend="serial")
    shown = " ".join(README.split())
    assert " ".join(verdict(found).split()) in shown
    assert f"do {found.recommendation.code}" in shown


def mean_lengths_until_fair(environment, way):
    """Mean episode lengths until the measured distance stays below 1%, as the league has it; infinity for never."""
    cells = json.loads((ROOT / "benchmarks" / "results" / "league.json").read_text())["cells"]
    found = cells[environment][way]["measured_ael"]
    return float("inf") if found is None else float(found)


def test_readme_and_home_page_say_what_the_league_has_measured():
    assert round(mean_lengths_until_fair("HumanoidBulletEnv-v0", "nothing")) == 25
    for name in ("HalfCheetahBulletEnv-v0", "Acrobot-v1"):
        assert mean_lengths_until_fair(name, "nothing") > 30  # which is as long as it looks
    for name in ("HumanoidBulletEnv-v0", "HalfCheetahBulletEnv-v0", "Acrobot-v1"):
        assert mean_lengths_until_fair(name, "designed delays, stagger") == pytest.approx(1, abs=0.2)
    for text in (README, HOME):
        assert "25 mean episode lengths" in " ".join(text.split())


def test_the_home_page_says_what_the_reproduction_has_found():
    agrees = claims = 0
    for path in (ROOT / "docs" / "reproduction").glob("*.json"):
        if path.stem != "elsewhere":  # beyond the paper
            page = (ROOT / "docs" / "reproduction" / "index.md").read_text()
            cell = re.search(rf"\({path.stem}\.md\).*\| ([^|]*) \|$", page, re.MULTILINE)[1]
            total = int(re.search(r"(\d+) claims", cell)[1])
            claims += total
            agrees += total if "all" in cell else int(re.search(r"agrees in (\d+)", cell)[1])
    shown = " ".join(HOME.split())
    assert f"Of {claims} claims" in shown
    assert f"{agrees} agree" in shown


def test_the_home_page_says_what_finished_episodes_show():
    lengths = steadyrl.EpisodeLengths.from_gymnasium([50, 400])
    share = steadyrl.finished_mean(lengths, 600, same_step=True)[600] / 225
    assert f"shows {share:.0%} of the truth after 600 steps" in " ".join(HOME.split())


def test_the_table_of_few_environments_is_that_of_the_results():
    results = (ROOT / "benchmarks" / "results" / "stagger.md").read_text()
    table = re.search(r"^\| lengths \| 8 .*?(?=\n\n)", results, re.DOTALL | re.MULTILINE)[0]
    assert table in (ROOT / "docs" / "staggering.md").read_text()


def test_the_claim_about_taxi():
    process = steadyrl.LearningProcess.from_gymnasium("Taxi-v4")
    policy = steadyrl.uniform_policy(process)
    mean = steadyrl.average_episode_length(process, policy)
    assert steadyrl.mixing_time(process, policy) / mean == pytest.approx(100, rel=0.01)
    perturbed = steadyrl.perturb(process, steadyrl.Perturbation.for_average_episode_length(mean))
    given = steadyrl.mixing_time(perturbed, steadyrl.uniform_policy(perturbed), given_not_null=True)
    assert given / mean < 3
