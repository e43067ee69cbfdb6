"""Episode lengths from the files that people have, and whether they drift over a log."""

import io
import json
import zipfile

import numpy as np
import pytest

from steadyrl import EpisodeLengths, audit_log
from steadyrl.common import storage
from steadyrl.errors import FileFormatError, LengthsError, MissingExtraError
from steadyrl.lengths import find_drift, read_lengths
from steadyrl.lengths.log_files import _beyond

LENGTHS = [12, 15, 11, 19, 30, 12]
MONITOR = '#{"t_start": %s, "env_id": "Hopper-v5"}\nr,l,t\n'


def lines(values):
    return "".join(f"{value}\n" for value in values)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("semicolon.csv", "return;ep_len\n" + lines(f"1,5;{n}" for n in LENGTHS)),
        ("tab.tsv", "Episode Length\treturn\n" + lines(f"{n}\t1.5" for n in LENGTHS)),
        ("space.txt", "return  LENGTH\n" + lines(f"1.5  {n}" for n in LENGTHS)),
        ("quoted.csv", '"name","charts/episodic_length"\n' + lines(f'"a, b",{n}' for n in LENGTHS)),
        ("bom.csv", "\ufefflength,r\n" + lines(f"{n},1" for n in LENGTHS)),
        ("commented.txt", "# made by hand\n" + lines(LENGTHS)),
        ("trailing.csv", "l,r,\n" + lines(f"{n},1" for n in LENGTHS)),
        ("padded.csv", "l,r\n" + lines(f"{n},1,," for n in LENGTHS)),
        ("prompts.csv", "l,prompt,r\n" + lines(f'{n},"one\ntwo, three",1' for n in LENGTHS)),
        ("windows.csv", "l,r\r\n" + "".join(f"{n},1\r\n" for n in LENGTHS)),
        ("list.json", json.dumps(LENGTHS)),
        ("pretty.json", json.dumps(LENGTHS, indent=2)),
        ("records.json", json.dumps([{"return": 1.0, "length": n} for n in LENGTHS])),
        ("nested.json", json.dumps([{"episode": {"r": 1.0, "l": n, "t": 0.1}} for n in LENGTHS], indent=1)),
        ("columns.json", json.dumps({"returns": [1.0] * 6, "episode_lengths": LENGTHS})),
        ("named.json", json.dumps({f"episode {i}": {"ep_length": n} for i, n in enumerate(LENGTHS)})),
        ("inside.json", json.dumps({"env": "X", "episodes": [{"length": n} for n in LENGTHS]})),
        ("records.jsonl", lines(json.dumps({"r": 1.0, "l": n}) for n in LENGTHS)),
        ("sparse.jsonl", lines(json.dumps({"l": n}) + '\n{"loss": 0.5}' for n in LENGTHS)),
    ],
)
def test_lengths_are_read_whatever_the_separator_or_the_notation(tmp_path, name, content):
    (tmp_path / name).write_text(content, encoding="utf-8", newline="")
    found = read_lengths(tmp_path / name)
    assert found.lengths.tolist() == LENGTHS
    assert found.ordered
    assert found.truncated is None  # no such file tells what ended an episode
    assert found.truncated_share is None
    assert EpisodeLengths.from_file(tmp_path / name) == EpisodeLengths.from_gymnasium(LENGTHS)


def test_a_headerless_table_is_refused_until_its_column_is_named(tmp_path):
    file = tmp_path / "three.csv"
    file.write_text(lines(f"3.2,{n},9.5" for n in LENGTHS))
    with pytest.raises(FileFormatError, match=r"3 columns and no header.*column=1"):
        read_lengths(file)
    assert read_lengths(file, column=1).lengths.tolist() == LENGTHS
    with pytest.raises(FileFormatError, match="from 0 to 2"):
        read_lengths(file, column=3)
    with pytest.raises(FileFormatError, match="has no header"):
        read_lengths(file, column="l")


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ("5.0,200,3.1\n7.0,2", "row 2 has 2 cells, and the first line 3"),  # of 217: the run was killed
        ("5.0,2200.0,200,3.5\n7.0,217,4.2\n", "row 1 has 4 cells"),  # killed, then continued
    ],
)
def test_rows_that_were_cut_or_ran_into_one_are_not_taken_for_other_lengths(tmp_path, rows, words):
    (tmp_path / "log.csv").write_text("r,l,t\n" + rows)
    with pytest.raises(FileFormatError, match=words):
        read_lengths(tmp_path / "log.csv")


def test_rows_that_ran_into_one_are_not_audited(tmp_path):
    (tmp_path / "monitor.csv").write_text("r,l,t\n" + "5.0,2200.0,200,3.5\n" + "7.0,217,4.2,\n" * 9)
    with pytest.raises(FileFormatError, match="row 1 has more cells than there are names"):
        audit_log(tmp_path / "monitor.csv")


def test_a_column_of_any_name_can_be_given(tmp_path):
    file = tmp_path / "mine.csv"
    file.write_text("duration,score\n" + lines(f"{n},1" for n in LENGTHS))
    with pytest.raises(FileFormatError, match=r"'duration', 'score'.*column="):
        read_lengths(file)
    assert read_lengths(file, column="Duration").lengths.tolist() == LENGTHS
    assert read_lengths(file, column=0).lengths.tolist() == LENGTHS
    with pytest.raises(FileFormatError, match="no column 'speed'"):
        read_lengths(file, column="speed")


def test_means_over_episodes_are_not_lengths(tmp_path):
    file = tmp_path / "progress.csv"
    file.write_text("time/iterations,rollout/ep_len_mean\n1,20.5\n2,30.5\n")
    with pytest.raises(FileFormatError, match=r"rollout/ep_len_mean.*mean over several episodes"):
        read_lengths(file)


def test_episodes_of_several_monitors_are_merged_in_the_order_in_which_they_ended(tmp_path):
    (tmp_path / "0.monitor.csv").write_text(MONITOR % 100.0 + "1,10,1.0\n1,20,5.0\n1,30,9.0\n")
    (tmp_path / "1.monitor.csv").write_text(MONITOR % 101.0 + "1,11,1.5\n1,21,3.0\n1,31,20.0\n")
    found = read_lengths(tmp_path)
    assert found.lengths.tolist() == [10, 11, 21, 20, 30, 31]
    assert found.ordered
    assert found.environment == "Hopper-v5"
    both = read_lengths([tmp_path / "1.monitor.csv", tmp_path / "0.monitor.csv"])
    assert both.lengths.tolist() == found.lengths.tolist()


def test_files_without_times_follow_each_other_and_their_order_is_unknown(tmp_path):
    (tmp_path / "a.txt").write_text("1\n2\n")
    (tmp_path / "b.txt").write_text("3\n4\n")
    found = read_lengths([tmp_path / "b.txt", tmp_path / "a.txt"])
    assert found.lengths.tolist() == [3, 4, 1, 2]
    assert not found.ordered
    with pytest.raises(FileFormatError, match="no files"):
        read_lengths([])
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileFormatError, match="the directory"):
        read_lengths(tmp_path / "empty")


def test_rllib_repeats_episodes_for_smoothing_and_each_is_counted_once(tmp_path):
    windows = [[5, 6, 7], [6, 7, 8, 9], [7, 8, 9, 4]]  # new: all three, then two, then one
    for wrap in (lambda record: record, lambda record: {"env_runners": record}):
        for counted in (True, False):
            file = tmp_path / "result.json"
            news = [3, 2, 1]
            records = [
                wrap({"hist_stats": {"episode_lengths": w}} | ({"episodes_this_iter": new} if counted else {}))
                for w, new in zip(windows, news, strict=True)
            ]
            file.write_text(lines(json.dumps(record) for record in records))
            assert read_lengths(file).lengths.tolist() == [5, 6, 7, 8, 9, 4]
    file.write_text(lines(json.dumps({"env_runners": {"episode_len_mean": 12.5}}) for _ in range(3)))
    with pytest.raises(FileFormatError, match="mean over several episodes"):
        read_lengths(file)


def test_evaluations_of_stable_baselines3_are_read(tmp_path):
    np.savez(
        tmp_path / "evaluations.npz",
        timesteps=[1000, 2000],
        results=np.zeros((2, 3)),
        ep_lengths=np.array(LENGTHS).reshape(2, 3),
    )
    assert read_lengths(tmp_path / "evaluations.npz").lengths.tolist() == LENGTHS
    assert read_lengths(tmp_path).lengths.tolist() == LENGTHS  # the directory of an EvalCallback


def test_tensorboard_scalars_of_single_episodes_are_read_and_means_are_refused(tmp_path):
    writer = pytest.importorskip("torch.utils.tensorboard").SummaryWriter
    with writer(tmp_path / "episodes") as log:
        for step, length in enumerate(LENGTHS):
            log.add_scalar("charts/episodic_length", length, step)
            log.add_scalar("eval/episodic_length", 99, step)
            log.add_scalar("losses/value_loss", 0.5, step)
    found = read_lengths(tmp_path / "episodes")
    assert found.lengths.tolist() == LENGTHS
    assert read_lengths(tmp_path / "episodes", column="eval/episodic_length").lengths.tolist() == [99] * 6
    with writer(tmp_path / "means") as log:
        log.add_scalar("rollout/ep_len_mean", 20.5, 1)
    with pytest.raises(FileFormatError, match=r"rollout/ep_len_mean.*mean over several episodes"):
        read_lengths(tmp_path / "means")


def test_a_tensorboard_file_that_was_cut_is_read_up_to_there_and_a_damaged_one_is_refused(tmp_path):
    writer = pytest.importorskip("torch.utils.tensorboard").SummaryWriter
    with writer(tmp_path) as log:
        for step in range(60):
            log.add_scalar("charts/episodic_length", step + 5, step)
    file = next(tmp_path.iterdir())
    content = file.read_bytes()
    for cut in (5, 14, 30):
        file.write_bytes(content[:-cut])  # as a run that was killed while it wrote leaves it
        assert read_lengths(file).lengths.tolist() == [*range(5, 64)]
    place, events = 0, []
    while place < len(content):
        events.append(place)
        place += 16 + int.from_bytes(content[place : place + 8], "little")
    for i in (0, 4, 8, 11, 12, 25):  # length, its checksum, the event
        damaged = bytearray(content)
        damaged[events[30] + i] ^= 64
        file.write_bytes(damaged)
        with pytest.raises(FileFormatError, match=f"damaged at byte {events[30]:,} of {len(content):,}.*head -c"):
            read_lengths(file)
    file.write_bytes(content[: events[30]])
    assert read_lengths(file).lengths.tolist() == [*range(5, 34)]


def test_without_tensorboard_its_files_name_the_line_that_installs_it(tmp_path, monkeypatch):
    file = tmp_path / "events.out.tfevents.1.host"
    file.write_bytes(b"x")
    monkeypatch.setitem(__import__("sys").modules, "tensorboard.backend.event_processing.event_accumulator", None)
    with pytest.raises(MissingExtraError, match="pip install tensorboard"):
        read_lengths(file)


@pytest.mark.parametrize("content", [lines(LENGTHS), json.dumps(LENGTHS), "l,r\n" + lines(f"{n},1" for n in LENGTHS)])
def test_standard_input_is_a_file_too(content, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content.encode())))
    found = read_lengths("-")
    assert found.lengths.tolist() == LENGTHS
    assert found.environment == "standard input"


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.json", "[1, 2", "not valid JSON"),
        ("a.json", "[" * 100_000, "not valid JSON"),
        ("a.json", '["long"]', "entry 0 is 'long'"),
        ("a.json", "[true]", "entry 0 is True"),
        ("a.json", "[1, {}]", "mixes"),
        ("a.json", "[]", "no lengths"),
        ("a.json", "[900000000]", "cannot be a length"),
        ("a.json", f"[{'9' * 400}]", "cannot be lengths"),
        ("a.jsonl", '{"l": 3}\n{"l": \n', "line 2"),
        ("a.csv", "l,r\n", "no lengths"),
        ("a.csv", "900000000\n3\n", "cannot be a length"),
        ("a.csv", "l,r\n5\n1,2\n,\n", "not a list of lengths"),
    ],
)
def test_nonsense_is_refused_with_a_sentence(tmp_path, name, content, words):
    (tmp_path / name).write_text(content)
    with pytest.raises(FileFormatError, match=words):
        read_lengths(tmp_path / name)


def test_the_latest_episodes_can_be_taken_alone(tmp_path):
    (tmp_path / "a.txt").write_text(lines(LENGTHS))
    found = read_lengths(tmp_path / "a.txt")
    assert found.last(2).lengths.tolist() == LENGTHS[-2:]
    assert found.last(100) is found
    with pytest.raises(LengthsError, match="episodes is 0"):
        found.last(0)


KINDS = {
    "geometric": lambda rng, n: rng.geometric(0.05, n),
    "hardly varying": lambda rng, n: 200 - (rng.random(n) < 0.03),
    "two values": lambda rng, n: rng.choice([19, 199], n),
    "heavy tail": lambda rng, n: np.minimum(rng.pareto(1.1, n) * 20, 1e5).astype(int),
    "many blocks": lambda rng, n: rng.integers(10, 50, 9 * n + 7),
}


@pytest.mark.parametrize("kind", KINDS)
def test_lengths_without_a_drift_raise_an_alarm_no_more_often_than_stated(kind):
    # 150 logs at a rate of 0.05: 7.5 alarms expected at most; more than 18 have probability 2e-4 (binomial).
    rng = np.random.default_rng(3)
    alarms = sum(find_drift(KINDS[kind](rng, 150), false_alarms=0.05, rng=rng).found for _ in range(150))
    assert alarms <= 18


def test_a_log_of_a_whole_training_drifts_and_its_end_is_found():
    # lengths grow from 20 to 500 over 2,000 episodes, and then 1,000 follow under the final policy
    for seed in range(5):
        rng = np.random.default_rng(seed)
        mean = np.concatenate([np.linspace(20, 500, 2000), np.full(1000, 500)])
        log = np.maximum(rng.normal(mean, 0.1 * mean), 1).astype(int)
        found = find_drift(log)
        assert found.found
        assert 1800 <= found.start <= 2300
        assert found.latest_mean == pytest.approx(500, rel=0.02)
        assert "drift" in found.message
    steady = np.linspace(20, 500, 300).astype(int)  # no noise, and no end: only its last part is kept
    assert find_drift(steady).latest < 60
    assert type(find_drift(steady).p_value) is float


def test_a_change_of_spread_alone_is_a_drift():
    rng = np.random.default_rng(0)
    log = np.concatenate([rng.integers(95, 106, 400), rng.integers(60, 141, 400)])
    found = find_drift(log)
    assert found.found
    assert abs(found.start - 400) < 40


def test_few_or_equal_lengths_never_drift():
    assert not find_drift([1, 500] * 10).found
    assert not find_drift([200] * 1000).found
    assert find_drift([200] * 1000).p_value == 1.0
    with pytest.raises(LengthsError, match="level"):
        find_drift([1, 2], false_alarms=0)


def test_monitors_of_runs_one_after_the_other_are_not_merged(tmp_path):
    (tmp_path / "a.csv").write_text(MONITOR % 100.0 + "1,10,1.0\n1,20,5.0\n")
    (tmp_path / "b.csv").write_text(MONITOR % 200.0 + "1,11,1.5\n1,21,3.0\n")
    found = read_lengths([tmp_path / "b.csv", tmp_path / "a.csv"])
    assert found.lengths.tolist() == [11, 21, 10, 20]
    assert found.runs == (2, 2)


def test_long_names_of_columns_are_not_repeated_in_full(tmp_path):
    (tmp_path / "log.csv").write_text("y" * 5000 + ",z\n1,2\n3,4\n")
    with pytest.raises(FileFormatError, match="has no column") as found:
        read_lengths(tmp_path / "log.csv", column="x" * 5000)
    assert len(str(found.value)) < 500


def test_a_first_line_that_is_no_row_of_a_table_ends_in_a_sentence(tmp_path):
    file = tmp_path / "blob.csv"
    file.write_text(f"l,{'x' * 200_000}\n3,1\n4,2\n")
    with pytest.raises(FileFormatError, match="first line cannot be read"):
        read_lengths(file)


@pytest.mark.parametrize("seed", range(50))
def test_what_an_iteration_repeats_is_found_as_by_trying_every_number(seed):
    rng = np.random.default_rng(seed)
    before, now = (rng.integers(0, 2, rng.integers(0, 9)).tolist() for _ in range(2))
    sizes = [size for size in range(min(len(before), len(now)) + 1) if before[len(before) - size :] == now[:size]]
    assert _beyond(before, now) == len(now) - max(sizes)


@pytest.mark.parametrize("mark", [",", ";", "\t", " "])
def test_a_quote_that_is_not_closed_does_not_swallow_the_rows_after_it(tmp_path, mark):
    rows = [f"{n}{mark}1.5{mark}run" for n in LENGTHS]
    rows[2] = rows[2].replace("run", '"run')
    (tmp_path / "log.csv").write_text("\n".join([f"l{mark}r{mark}name", *rows, ""]))
    with pytest.raises(FileFormatError, match="quote"):
        read_lengths(tmp_path / "log.csv")
    if mark == ",":
        with pytest.raises(FileFormatError, match="cannot be read as csv"):
            audit_log(tmp_path / "log.csv")


def test_rows_after_a_quote_are_checked_for_cut_cells_too(tmp_path):
    (tmp_path / "log.csv").write_text('l,r,name\n12,1.5,"a, b"\n1\n15,2.5,c\n')
    with pytest.raises(FileFormatError, match="row 2 has 1 cells"):
        read_lengths(tmp_path / "log.csv")


@pytest.mark.parametrize("shape", ["(60,)", "(4,)", "(6000000000000,)"])
def test_an_array_whose_header_does_not_fit_the_file_is_refused(shape, tmp_path):
    np.save(tmp_path / "lengths.npy", np.arange(1, 7))
    content = (tmp_path / "lengths.npy").read_bytes()
    assert content.count(b"(6,)") == 1
    blanks = b" " * (len(shape) - len("(6,)"))
    changed = content.replace(b"(6,), }" + blanks, shape.encode() + b", }")
    assert len(changed) == len(content)
    (tmp_path / "lengths.npy").write_bytes(changed)
    with pytest.raises(FileFormatError, match="does not fit its size"):
        read_lengths(tmp_path / "lengths.npy")


def test_a_file_of_several_arrays_is_not_read_as_its_first(tmp_path):
    with open(tmp_path / "lengths.npy", "wb") as file:
        np.save(file, [3, 4])
        np.save(file, [500, 600])
    with pytest.raises(FileFormatError, match="does not fit its size"):
        read_lengths(tmp_path / "lengths.npy")


def test_a_small_archive_that_unpacks_to_far_more_than_a_log_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(storage, "MOST", 1 << 20)
    content = io.BytesIO()
    np.save(content, np.ones(1 << 20, dtype=np.int64))
    with zipfile.ZipFile(tmp_path / "evaluations.npz", "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("ep_lengths.npy", content.getvalue())
    with pytest.raises(FileFormatError, match="would unpack to"):
        read_lengths(tmp_path / "evaluations.npz")
