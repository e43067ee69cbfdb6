"""What new users of `diagnose` ran into: logs that drift, few episodes, random policies, contradictions, markup."""

import json
import subprocess
import sys

import gymnasium
import numpy as np
import pytest

from steadyrl import EpisodeLengths, collect_episodes, diagnose, diagnose_lengths
from steadyrl.diagnosis.analysis import analyse
from steadyrl.diagnosis.report import render
from steadyrl.diagnosis.selection import select_episodes
from steadyrl.diagnosis.wording import advice, how_sure, rows, strategies, verdict
from steadyrl.errors import FileFormatError, LengthsError, PolicyError
from steadyrl.lengths.drift import find_drifts
from steadyrl.lengths.files import read_lengths, write_lengths
from test_cli import assert_one_helpful_line, run

RNG = np.random.default_rng(0)
EARLY = RNG.integers(15, 30, 300)
LATE = np.where(RNG.random(300) < 0.7, 500, RNG.integers(200, 500, 300))


def monitor(path, lengths, name="Hopper-v5", start=0.0):
    header = json.dumps({"t_start": start, "env_id": name})
    path.write_text(f"#{header}\nr,l,t\n" + "".join(f"1.0,{n},{i}\n" for i, n in enumerate(lengths)))
    return path


@pytest.mark.slow
def test_of_a_drifting_log_the_latest_stretch_is_analysed_and_it_says_so(tmp_path):
    records = read_lengths(monitor(tmp_path / "monitor.csv", np.concatenate([EARLY, LATE])))
    taken, selection = select_episodes(records)
    assert abs(len(taken) - 300) <= 5
    assert "drift" in selection
    assert "--all" in selection
    found = analyse(taken, rng=np.random.default_rng(0), selection=selection)
    assert found.lengths.mean > 400
    pooled, words = select_episodes(records, everything=True)
    assert len(pooled) == 600
    assert "drift" in words
    few, words = select_episodes(records, last=50)
    assert len(few) == 50
    assert "latest 50 of 600" in words
    with pytest.raises(LengthsError, match="one of the two"):
        select_episodes(records, last=50, everything=True)


def write(path, lengths):
    path.write_text("".join(f"{n}\n" for n in lengths))
    return path


def test_of_several_drifting_logs_each_gives_its_latest_stretch(tmp_path):
    one = write(tmp_path / "one.txt", np.concatenate([EARLY, LATE[:150]]))
    other = write(tmp_path / "other.txt", np.concatenate([EARLY, LATE[150:]]))
    steady = write(tmp_path / "steady.txt", LATE[75:225])
    taken, selection = select_episodes(read_lengths([one, other, steady]))
    assert taken.runs[2] == 150
    assert all(abs(count - 150) <= 5 for count in taken.runs)
    assert taken.lengths.min() >= 200
    assert "drift within one.txt (mean 4" in selection
    assert "and other.txt" in selection
    assert "steady.txt" not in selection
    pooled, words = select_episodes(read_lengths([one, other, steady]), everything=True)
    assert len(pooled) == 1050
    assert "describes none of their policies" in words
    assert (taken.policy, pooled.policy) == ("unknown", "several")
    few, _ = select_episodes(read_lengths([one, other, steady]), last=105)
    assert few.runs == (45, 45, 15)  # in proportion
    np.testing.assert_array_equal(few.lengths[:45], LATE[105:150])


def test_logs_that_differ_from_each_other_are_said_to(tmp_path):
    one, other = write(tmp_path / "one.txt", EARLY[:150]), write(tmp_path / "other.txt", LATE)
    taken, selection = select_episodes(read_lengths([one, other]))
    assert len(taken) == 450
    assert taken.policy == "several"
    assert "differ from each other (mean length 2" in selection
    alike = write(tmp_path / "alike.txt", EARLY[150:])
    # a false alarm in 100, for these fixed lengths none
    assert select_episodes(read_lengths([one, alike]))[1] == ""


def test_many_logs_without_a_drift_raise_no_more_alarms_than_one():
    # each alarm has probability 0.01: more than 4 of 100 are less than 0.4% likely, and this seed is fixed
    rng = np.random.default_rng(3)
    alarms = 0
    for _ in range(100):
        runs = [rng.geometric(0.1, 60) for _ in range(4)]
        alarms += any(drift.found for drift in find_drifts(runs))
    assert alarms <= 4
    drifting = [
        *(rng.geometric(0.1, 60) for _ in range(3)),
        np.concatenate([rng.geometric(0.1, 60), rng.geometric(0.01, 60)]),
    ]
    assert [drift.found for drift in find_drifts(drifting)] == [False, False, False, True]


def test_the_last_of_a_sorted_list_are_not_the_latest(tmp_path):
    write_lengths(EpisodeLengths.from_gymnasium(LATE), len(LATE), tmp_path / "lengths.txt")
    with pytest.raises(LengthsError, match="sorted by length"):
        select_episodes(read_lengths(tmp_path / "lengths.txt"), last=50)
    assert select_episodes(read_lengths(tmp_path / "lengths.txt"))[1] == ""


def test_a_list_that_drifts_is_said_to_in_python_too():
    found = diagnose_lengths(np.concatenate([EARLY, LATE]))
    assert "diagnose the last 300 alone" in str(found)
    assert "under several policies, pooled:" in verdict(found)
    assert diagnose_lengths(LATE).selection == ""


def test_a_log_that_does_not_drift_is_taken_whole_without_a_word(tmp_path):
    # a false alarm in 100, for this fixed seed none
    taken, selection = select_episodes(read_lengths(monitor(tmp_path / "monitor.csv", LATE)))
    assert (len(taken), selection) == (300, "")


@pytest.mark.slow
def test_several_files_and_standard_input_are_all_taken(tmp_path):
    first, second = monitor(tmp_path / "0.monitor.csv", LATE[:150]), monitor(tmp_path / "1.monitor.csv", LATE[150:])
    both = run("diagnose", "--from", first, "--from", second, "--json", "--all")
    assert json.loads(both.stdout)["episodes"] == 300
    folder = run("diagnose", "--from", tmp_path, "--json", "--all")
    assert json.loads(folder.stdout)["episodes"] == 300
    piped = subprocess.run(
        [sys.executable, "-m", "steadyrl", "diagnose", "--from", "-", "--column", "l", "--last", "40", "--json"],
        input=first.read_text(),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert json.loads(piped.stdout)["episodes"] == 40


def test_nothing_is_said_about_time_limits_that_a_log_does_not_tell(tmp_path):
    found = analyse(read_lengths(monitor(tmp_path / "monitor.csv", LATE)), rng=np.random.default_rng(0))
    assert found.truncated is None
    assert "time limit" not in " ".join(text for _, text in rows(found))


def test_too_few_episodes_are_an_answer_without_a_cure():
    found = diagnose_lengths([3, 9])
    assert not found.enough
    assert "too few episodes to tell" in verdict(found)
    assert "at least 30 are needed" in verdict(found)
    assert strategies(found, paper=True) == []
    assert found.code.startswith("# too few episodes")
    written = found.as_json()
    assert written["recommendation"]["strategy"] is None
    assert written["strategies"] == []
    assert written["average_episode_length"]["low"] is None
    assert "-25" not in " ".join(text for _, text in rows(found))


def test_the_headline_lies_inside_its_own_interval():
    for seed in range(5):
        found = diagnose_lengths(8 + np.random.default_rng(seed).geometric(0.07, 512))
        assert found.mixing_time.low <= found.mixing_time.value <= found.mixing_time.high
        raw = next(way for way in strategies(found, paper=False) if way.name == "nothing")
        assert raw is not None


def test_lockstep_and_leave_it_as_it_is_come_with_the_reason_why_it_is_harmless():
    found = diagnose_lengths(8 + np.random.default_rng(0).geometric(0.07, 512))
    assert found.phase_locked
    assert found.recommendation.strategy == "nothing"
    assert "harmless" in advice(found)
    assert "harmlessly" in dict(rows(found))["first batches"]
    assert "phase-locked" not in verdict(found)


def test_a_recommendation_that_more_episodes_might_change_says_so():
    unsure = diagnose_lengths(8 + np.random.default_rng(0).geometric(0.07, 60))
    assert unsure.recommendation.strategy == "anytime"  # of many episodes it is "nothing", as above
    assert not unsure.sure
    assert "This is not certain" in verdict(unsure)
    assert "might recommend leaving it as it is" in verdict(unsure)
    assert unsure.as_json()["recommendation"]["sure"] is False
    sure = diagnose_lengths(8 + np.random.default_rng(0).geometric(0.07, 1000))
    assert sure.recommendation.strategy == "nothing"
    assert "not certain" not in verdict(sure)
    assert how_sure(sure).startswith("all of the 90% band")
    assert how_sure(unsure) in render(unsure)


@pytest.mark.slow
def test_what_is_said_to_be_sure_does_not_change_with_more_episodes():
    # 90% bands on both sides of the decision: 5% are wrong at most; more than 5 of 30 then have probability 0.3%
    rng = np.random.default_rng(1)
    for law, truth in (
        (lambda n: 8 + rng.geometric(0.07, n), "nothing"),
        (lambda n: rng.integers(20, 80, n), "anytime"),
    ):
        found = [diagnose_lengths(law(60)) for _ in range(30)]
        assert diagnose_lengths(law(20_000)).recommendation.strategy == truth
        assert sum(one.sure and one.recommendation.strategy != truth for one in found) <= 5


def test_users_of_stable_baselines3_are_shown_its_code(tmp_path):
    sb3 = pytest.importorskip("stable_baselines3")
    from stable_baselines3.common.env_util import make_vec_env

    file = monitor(tmp_path / "monitor.csv", np.full(60, 200), name="Pendulum-v1")
    found = analyse(read_lengths(file), rng=np.random.default_rng(0))
    scope = {"venv": make_vec_env("Pendulum-v1", 2)}
    exec(found.code, scope)
    assert type(scope["env"]).__name__ == "SteadyVecEnv"
    lines = found.code_of(found.recommendation["stagger"]).splitlines()
    assert lines[0].startswith("lengths = ")
    assert "design_delays(lengths" in lines[-1]
    ended = run("diagnose", "--from", str(file))
    assert "env = SteadyVecEnv(venv)" in ended.stdout
    assert "StaggeredVectorEnv" not in ended.stdout
    model = sb3.PPO("MlpPolicy", "Pendulum-v1", device="cpu")
    assert "SteadyVecEnv(venv)" in diagnose("Pendulum-v1", model, episodes=30, backend="serial").code
    # anybody else is shown Gymnasium's, and where SB3's is
    plain = run("diagnose", "steadyrl/StateSweep-v0", "--episodes", "40")
    assert "do  envs = steadyrl.StaggeredVectorEnv(envs)" in plain.stdout
    assert "In Stable-Baselines3: env = steadyrl.integrations.sb3.SteadyVecEnv(venv)" in plain.stdout


def test_a_diagnosis_prints_in_a_few_lines():
    found = diagnose("CartPole-v1", episodes=64, backend="serial")
    assert len(str(found)) < 700
    assert "under a random policy" in str(found)


class Limit(gymnasium.Env):
    """Ends after 20 steps, or at once if action 1 is ever taken."""

    observation_space = gymnasium.spaces.Box(-1, 1, (3,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(3, dtype=np.float32), {}

    def step(self, action):
        self.steps += 1
        return np.zeros(3, dtype=np.float32), 0.0, bool(action == 1), self.steps >= 20, {}


def test_a_function_of_a_batch_or_of_one_observation_is_a_policy():
    def batch(observations):
        assert observations.shape[1:] == (3,)
        assert observations.dtype == np.float32
        return np.zeros(len(observations), dtype=int)

    def single(observation):
        return int(observation[0] > 0.5)

    for policy in (batch, single, lambda observations, rng: rng.integers(0, 1, len(observations))):
        assert set(collect_episodes(Limit, policy, 8, backend="serial").lengths) == {20}
    with pytest.raises(PolicyError, match="takes neither a batch"):
        collect_episodes(Limit, lambda observations: "left", 8, backend="serial")


def test_torch_modules_are_policies():
    torch = pytest.importorskip("torch")

    class CleanRL(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.actor = torch.nn.Linear(3, 2)

        def get_action_and_value(self, x, action=None):
            chosen = torch.distributions.Categorical(logits=self.actor(x)).sample()
            return chosen, None, None, None

    class Actor(torch.nn.Module):
        def act(self, x):
            return torch.zeros(len(x), dtype=torch.int64)

    module = CleanRL()
    before = torch.random.get_rng_state()
    drawn = [collect_episodes(Limit, module, 200, backend="serial", seed=1).lengths for _ in range(2)]
    assert torch.equal(before, torch.random.get_rng_state()), "the user's own random numbers are left alone"
    np.testing.assert_array_equal(*drawn)
    assert drawn[0].min() == 1
    assert set(collect_episodes(Limit, Actor(), 8, backend="serial").lengths) == {20}
    logits = torch.nn.Linear(3, 2)
    with torch.no_grad():
        logits.bias.copy_(torch.tensor([0.0, -np.log(9.0)]))  # action 1 with probability 0.1
    lengths = collect_episodes(Limit, logits, 4000, backend="serial", seed=2).lengths
    # P(length = 1) = 0.1; the standard error is 0.0047, and 4.5 of them give a false alarm in 150,000
    assert abs((lengths == 1).mean() - 0.1) < 4.5 * 0.0048
    again = collect_episodes(Limit, logits, 4000, backend="serial", seed=2).lengths
    np.testing.assert_array_equal(lengths, again)
    with pytest.raises(PolicyError, match="must return 2 logits"):
        collect_episodes(Limit, torch.nn.Linear(3, 5), 8, backend="serial")


def test_sb3_models_and_their_zip_files_are_policies(tmp_path):
    sb3 = pytest.importorskip("stable_baselines3")
    lengths = []
    for algorithm in (sb3.PPO, sb3.A2C, sb3.DQN):
        model = algorithm("MlpPolicy", "CartPole-v1", seed=0, device="cpu")
        model.save(tmp_path / "model.zip")
        direct = collect_episodes("CartPole-v1", model, 40, backend="serial", seed=1)
        loaded = collect_episodes("CartPole-v1", tmp_path / "model.zip", 40, backend="serial", seed=1)
        np.testing.assert_array_equal(direct.lengths, loaded.lengths)
        lengths.append(direct.lengths)
    found = diagnose("CartPole-v1", str(tmp_path / "model.zip"), episodes=40, backend="serial")
    assert "under the policy model.zip" in verdict(found)
    with pytest.raises(PolicyError, match="takes observations"):
        collect_episodes("Acrobot-v1", model, 4, backend="serial")
    (tmp_path / "other.zip").write_bytes((tmp_path / "model.zip").read_bytes()[:200])
    with pytest.raises((FileFormatError, PolicyError)):
        collect_episodes("CartPole-v1", tmp_path / "other.zip", 4, backend="serial")


def test_a_model_of_another_number_of_states_is_refused(tmp_path):
    sb3 = pytest.importorskip("stable_baselines3")
    model = sb3.PPO("MlpPolicy", "FrozenLake-v1", seed=0, device="cpu", n_steps=8, batch_size=8)
    with pytest.raises(
        PolicyError, match=r"takes observations Discrete\(16\), and this environment has Discrete\(64\)"
    ):
        collect_episodes("FrozenLake8x8-v1", model, 4, backend="serial")
    model.save(tmp_path / "model.zip")
    ended = run("diagnose", "FrozenLake8x8-v1", "--policy", str(tmp_path / "model.zip"), "--episodes", "40")
    assert_one_helpful_line(ended, "takes observations Discrete(16)")


def test_a_model_of_another_number_of_actions_is_refused():
    sb3 = pytest.importorskip("stable_baselines3")

    class Two(gymnasium.ActionWrapper):
        """Left and right only."""

        action_space = gymnasium.spaces.Discrete(2)

    model = sb3.PPO("MlpPolicy", "FrozenLake-v1", seed=0, device="cpu", n_steps=8, batch_size=8)
    with pytest.raises(PolicyError, match=r"gives actions Discrete\(4\), and this environment has Discrete\(2\)"):
        collect_episodes(lambda: Two(gymnasium.make("FrozenLake-v1")), model, 4, backend="serial")


def test_a_model_trained_in_a_vec_normalize_gets_no_verdict_without_its_statistics(tmp_path):
    sb3 = pytest.importorskip("stable_baselines3")
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import VecNormalize

    env = VecNormalize(make_vec_env("CartPole-v1", 2, seed=0))
    model = sb3.PPO("MlpPolicy", env, seed=0, device="cpu", n_steps=64).learn(128)
    model.save(tmp_path / "model.zip")
    with pytest.raises(PolicyError, match=r"statistics are in a file of its own; .*'vecnormalize.pkl'"):
        diagnose("CartPole-v1", tmp_path / "model.zip", episodes=40, backend="serial")
    env.save(str(tmp_path / "my_vecnormalize.pkl"))
    ended = run("diagnose", "CartPole-v1", "--policy", str(tmp_path / "model.zip"), "--episodes", "40")
    assert_one_helpful_line(ended, "my_vecnormalize.pkl")
    # what the message says to do gives the episodes of the model as it was trained
    again = VecNormalize.load(str(tmp_path / "my_vecnormalize.pkl"), make_vec_env("CartPole-v1"))
    loaded = sb3.PPO.load(tmp_path / "model.zip", env=again, device="cpu")
    first = collect_episodes("CartPole-v1", model, 40, backend="serial", seed=1)
    np.testing.assert_array_equal(
        collect_episodes("CartPole-v1", loaded, 40, backend="serial", seed=1).lengths, first.lengths
    )
    with pytest.raises(PolicyError, match="trained in a VecNormalize"):
        diagnose("CartPole-v1", sb3.PPO.load(tmp_path / "model.zip", device="cpu"), episodes=40, backend="serial")
    bare = collect_episodes("CartPole-v1", sb3.PPO.load(tmp_path / "model.zip").policy, 40, backend="serial", seed=1)
    assert bare.lengths.tolist() != first.lengths.tolist()


def test_an_environment_in_the_current_directory_is_found(tmp_path):
    (tmp_path / "mypkg.py").write_text(
        "import gymnasium\n"
        "from gymnasium.envs.classic_control import CartPoleEnv\n"
        "gymnasium.register('Walk-v0', entry_point=CartPoleEnv, max_episode_steps=30)\n"
    )
    script = "import sys; sys.path[:] = [p for p in sys.path if p]; from steadyrl.cli import main; main()"
    result = subprocess.run(
        [sys.executable, "-P", "-c", script, "diagnose", "mypkg:Walk-v0", "--episodes", "40", "--backend", "serial"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 0, result.stderr
    assert "Walk-v0 under a random policy" in " ".join(result.stdout.split())


def test_emoji_codes_and_control_characters_in_a_log_are_text(tmp_path):
    path = monitor(tmp_path / "monitor.csv", LATE, name="\x1b]0;owned\x07:x:[bold]\x1b[2J")
    result = run("diagnose", "--from", path)
    assert result.returncode == 0, result.stderr
    assert ":x:[bold]" in result.stdout
    assert "\x1b" not in result.stdout
    assert "owned" not in result.stdout


def test_options_for_logs_need_a_log():
    assert_one_helpful_line(run("diagnose", "CartPole-v1", "--last", 5), "they need --from")


def test_collecting_stops_once_the_recommendation_cannot_change():
    class Trained:
        """Keeps the pole up: most episodes run into the limit of 500 steps, which leaves the mixing time unknown."""

        def act(self, observations, rng):
            push = observations[:, 2] + 0.5 * observations[:, 3] + 0.05 * observations[:, 0] > 0
            return np.where(rng.random(len(push)) < 0.02, rng.integers(0, 2, len(push)), push.astype(int))

    found = diagnose("CartPole-v1", Trained(), backend="serial", max_episodes=2000)
    assert found.recommendation.strategy != "nothing"
    assert found.episodes <= 512
