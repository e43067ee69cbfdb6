"""EnvPool's pools keep the contract of gymnasium.vector.VectorEnv."""

import sys

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers.vector import RecordEpisodeStatistics

from steadyrl import MissingExtraError
from steadyrl.errors import PoolError, ResetMaskError
from steadyrl.integrations.envpool.vector_env import EnvPoolVectorEnv

TWINS = ["CartPole-v1", "FrozenLake-v1", "Pendulum-v1", "Hopper-v5"]
DICT = "FetchReach-v4"


def made(id="CartPole-v1", n=6, *, seed=3, **kwargs):
    envs = EnvPoolVectorEnv(id, n, num_threads=1, **kwargs)
    observations, _ = envs.reset(seed=seed)
    envs.action_space.seed(0)
    return envs, observations


def mask_of(n, *chosen):
    mask = np.zeros(n, dtype=bool)
    mask[list(chosen)] = True
    return mask


@pytest.mark.parametrize("id", TWINS)
def test_spaces_types_and_shapes_are_those_of_gymnasium(id):
    theirs = gymnasium.make_vec(id, 3, vectorization_mode="sync")
    ours, observations = made(id, 3)
    for name in ("single_observation_space", "observation_space", "single_action_space", "action_space"):
        assert getattr(ours, name) == getattr(theirs, name), name
    expected = [theirs.reset(seed=1)[0], *theirs.step(theirs.action_space.sample())[:4]]
    found = [observations, *ours.step(ours.action_space.sample())[:4]]
    for mine, other in zip(found, expected, strict=True):
        assert mine.shape == other.shape
        assert mine.dtype == other.dtype
    assert ours.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    assert ours.spec.max_episode_steps == theirs.spec.max_episode_steps
    theirs.close()


@pytest.mark.parametrize("id", [*TWINS, DICT, "MiniGrid-Empty-5x5-v0", "LunarLander-v3"])
def test_observations_are_in_their_space_and_infos_have_masks(id):
    envs, observations = made(id, 4)
    assert envs.observation_space.contains(observations)
    for _ in range(120):
        observations, *_, info = envs.step(envs.action_space.sample())
        assert envs.observation_space.contains(observations)
    keys = [key for key in info if not key.startswith("_")]
    assert "elapsed_step" in keys
    assert all(len(info[key]) == 4 and info[f"_{key}"].all() for key in keys)
    assert "env_id" not in info


def test_the_specification_makes_it_again():
    envs, _ = made(max_episode_steps=20)
    again = gymnasium.make_vec(envs.spec)
    assert isinstance(again, EnvPoolVectorEnv)
    assert again.spec.max_episode_steps == 20
    assert again.num_envs == 6
    assert again.single_observation_space == envs.single_observation_space


@pytest.mark.parametrize("limit", [500, 10])
def test_the_step_after_an_end_is_the_reset_and_its_action_is_ignored(limit):
    envs, twin = (made(max_episode_steps=limit)[0] for _ in range(2))
    ended = np.zeros(6, dtype=bool)
    resets = 0
    for _ in range(100):
        actions = envs.action_space.sample()
        observations, rewards, terminated, truncated, info = envs.step(actions)
        other = twin.step(np.where(ended, 1 - actions, actions))
        np.testing.assert_array_equal(observations, other[0])
        assert (rewards == np.where(ended, 0.0, 1.0)).all()
        assert ((info["elapsed_step"] == 0) == ended).all()
        assert not (ended & (terminated | truncated)).any()
        resets += ended.sum()
        ended = terminated | truncated
    assert resets > 10


def test_termination_in_the_very_step_of_the_limit_shows_both_flags():
    # The rule of CartPole is in its observations: beyond 12 degrees or 2.4, an episode terminates.
    envs, _ = made(n=64, max_episode_steps=9)
    kinds = set()
    for _ in range(60):
        observations, _, terminated, truncated, info = envs.step(np.ones(64, dtype=np.int64))
        fallen = (np.abs(observations[:, 2]) > 12 * np.pi / 180) | (np.abs(observations[:, 0]) > 2.4)
        np.testing.assert_array_equal(terminated, fallen)
        np.testing.assert_array_equal(truncated, info["elapsed_step"] == 9)
        kinds |= set(zip(terminated.tolist(), truncated.tolist(), strict=True))
    assert kinds == {(False, False), (True, False), (False, True), (True, True)}


@pytest.mark.parametrize(("id", "kwargs"), [("CartPole-v1", {}), ("Hopper-v5", {}), (DICT, {"max_episode_steps": 7})])
def test_a_masked_reset_leaves_the_other_copies_alone(id, kwargs):
    envs, _ = made(id, **kwargs)
    twin, _ = made(id, **kwargs)
    for _ in range(30):
        actions = envs.action_space.sample()
        before, *_ = envs.step(actions)
        twin.step(actions)
    options = {"reset_mask": mask_of(6, 1, 4)}
    after, info = envs.reset(options=options)
    assert list(options) == ["reset_mask"]
    assert info["_elapsed_step"].tolist() == [False, True, False, False, True, False]
    assert info["elapsed_step"][1] == 0
    assert envs.observation_space.contains(after)
    parts = [(after[key], before[key]) for key in before] if isinstance(before, dict) else [(after, before)]
    for new, old in parts:
        np.testing.assert_array_equal(new[[0, 2, 3, 5]], old[[0, 2, 3, 5]])
    assert any((new[[1, 4]] != old[[1, 4]]).any() for new, old in parts)
    actions = envs.action_space.sample()
    (ours, *_, info), (theirs, *_) = envs.step(actions), twin.step(actions)
    assert info["elapsed_step"][[1, 4]].tolist() == [1, 1]
    parts = [(ours[key], theirs[key]) for key in ours] if isinstance(ours, dict) else [(ours, theirs)]
    for mine, other in parts:
        np.testing.assert_array_equal(mine[[0, 2, 3, 5]], other[[0, 2, 3, 5]])


@pytest.mark.parametrize("limit", [500, 8])
def test_a_masked_reset_of_copies_that_have_just_ended_takes_the_place_of_their_autoreset(limit):
    envs, _ = made(max_episode_steps=limit)
    for _ in range(200):
        _, _, terminated, truncated, _ = envs.step(envs.action_space.sample())
        ended = terminated | truncated
        if ended.any():
            envs.reset(options={"reset_mask": ended})
            _, rewards, *_, info = envs.step(envs.action_space.sample())
            assert (info["elapsed_step"][ended] == 1).all()
            assert (rewards[ended] == 1.0).all()


def test_observations_changed_in_place_do_no_harm():
    envs, _ = made()
    observations, *_ = envs.step(np.ones(6, dtype=np.int64))
    kept = observations.copy()
    observations[:] = np.nan
    after, _ = envs.reset(options={"reset_mask": mask_of(6, 0)})
    np.testing.assert_array_equal(after[1:], kept[1:])
    bare, _ = made(copy=False)
    observations, *_ = bare.step(np.ones(6, dtype=np.int64))
    assert bare._observations is observations


@pytest.mark.parametrize(
    ("mask", "words"),
    [
        ([True, False], "is list; it must be a numpy array of bool"),
        (np.ones(6, dtype=int), r"int64, shape \(6,\)"),
        (np.ones(5, dtype=bool), r"bool, shape \(5,\)"),
        (np.zeros(6, dtype=bool), "selects no environment"),
    ],
)
def test_a_bad_mask_is_refused_as_gymnasium_does(mask, words):
    envs, _ = made()
    with pytest.raises(ResetMaskError, match=words) as caught:
        envs.reset(options={"reset_mask": mask})
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, TypeError)


def test_seeds_are_seed_plus_i_and_reproduce():
    envs, first = made(seed=5)
    np.testing.assert_array_equal(first, envs.reset(seed=5)[0])
    np.testing.assert_array_equal(first[1:], envs.reset(seed=6)[0][:-1])
    np.testing.assert_array_equal(first[[3, 0, 1, 1, 5, 2]], envs.reset(seed=[8, 5, 6, 6, 10, 7])[0])
    again = envs.reset()[0]
    assert (again != envs.reset()[0]).any(axis=1).all()
    mixed = envs.reset(seed=[5, None, None, None, None, None])[0]
    np.testing.assert_array_equal(mixed[0], first[0])
    assert (mixed[1:] != first[1:]).any(axis=1).all()


def test_without_a_seed_the_constructors_is_used_once_and_else_a_random_one():
    one, two, other = (EnvPoolVectorEnv("CartPole-v1", 2, seed=seed, num_threads=1) for seed in (4, 4, None))
    first = one.reset()[0]
    np.testing.assert_array_equal(first, two.reset()[0])
    assert (first != one.reset()[0]).any()
    assert (first != other.reset()[0]).any()
    assert one.reset(seed=2**40 + 1)[0].shape == (2, 4)  # Gymnasium's seeds may be larger than EnvPool's


def test_statistics_of_gymnasium_on_top_count_steps_not_resets():
    envs = RecordEpisodeStatistics(EnvPoolVectorEnv("CartPole-v1", 8, num_threads=1, max_episode_steps=6))
    envs.reset(seed=0)
    for _ in range(40):
        *_, info = envs.step(np.tile([0, 1], 4))
        if "episode" in info:
            assert (info["episode"]["l"][info["_episode"]] == 6).all()
            assert (info["episode"]["r"][info["_episode"]] == 6).all()


@pytest.mark.parametrize(
    ("id", "kwargs", "words"),
    [
        ("CartPol-v1", {}, "near names: CartPole-v1"),
        ("qqqqqqq", {}, "list_all_envs"),
        ("CartPole-v1", {"friction": 1}, "cannot make 'CartPole-v1' with the arguments"),
        ("CartPole-v1", {"batch_size": 2}, "leave them out"),
        ("CartPole-v1", {"num_envs": 0}, "num_envs is 0"),
    ],
)
def test_what_envpool_cannot_make_is_said(id, kwargs, words):
    n = kwargs.pop("num_envs", 4)
    with pytest.raises(PoolError, match=words):
        EnvPoolVectorEnv(id, n, **kwargs)


def test_calls_out_of_order_are_refused():
    envs = EnvPoolVectorEnv("CartPole-v1", 2, num_threads=1)
    with pytest.raises(PoolError, match="before the first reset"):
        envs.step(np.zeros(2, dtype=np.int64))
    with pytest.raises(PoolError, match="first reset must be of all"):
        envs.reset(options={"reset_mask": mask_of(2, 0)})
    envs.reset(seed=0)
    with pytest.raises(PoolError, match="cannot be seeded again"):
        envs.reset(seed=1, options={"reset_mask": mask_of(2, 0)})
    with pytest.raises(PoolError, match="take none but reset_mask"):
        envs.reset(options={"low": 0.1})
    with pytest.raises(PoolError, match=r"shape \(3,\)"):
        envs.step(np.zeros(3, dtype=np.int64))
    with pytest.raises(PoolError, match="2 copies"):
        envs.reset(seed=[1, 2, 3])
    envs.close()
    with pytest.raises(PoolError, match="closed"):
        envs.reset(seed=0)
    with pytest.raises(PoolError, match="closed"):
        envs.step(np.zeros(2, dtype=np.int64))


def test_without_envpool_the_pip_line_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "envpool", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'steadyrl\[envpool\]'"):
        EnvPoolVectorEnv("CartPole-v1", 2)
