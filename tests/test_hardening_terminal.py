"""What an attack on the command line found: control characters, signals, exit codes, raw errors, mixed runs."""

import ast
import html
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
import unicodedata
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest

from steadyrl import Perturbation, audit_log, collect_episodes, gallery
from steadyrl.cli import commands
from steadyrl.common.figures import check_picture
from steadyrl.common.files import locked
from steadyrl.common.tables import two_columns
from steadyrl.common.terminal import clean, clean_command, clean_line, console, say
from steadyrl.diagnosis import diagnose_lengths
from steadyrl.diagnosis.episode_logs import read_episode_log
from steadyrl.diagnosis.report import render
from steadyrl.diagnosis.screen import print_diagnosis
from steadyrl.errors import FigureError, FileFormatError, RolloutError
from steadyrl.exact.mixing_curves import mixing_curves
from steadyrl.experiments.running import UNFINISHED, reproduce
from steadyrl.lengths import read_lengths
from test_reproduce import scripted

HOSTILE = "\x1b]0;owned\x07\x1b[2J\x1b[31m\x9b1m\x1bPq\x1b\\\r\x00\x7f\u202e"


def test_text_from_outside_holds_nothing_that_a_terminal_obeys():
    assert clean(f"a{HOSTILE}b") == "ab"
    assert clean("line\n\ttabbed") == "line\n\ttabbed"
    assert clean("Cart\u200bPole\u2060-\ufeffv\xad1") == "CartPole-v1", "no two names that look alike"
    assert clean_line("Walk-v0\nerror: forged") == "Walk-v0 error: forged"
    assert clean(os.fsdecode(b"caf\xe9.csv")) == "caf\ufffd.csv"
    assert clean("\x1b]0;never closed") == "0;never closed", "our own words after it must not be swallowed"


def test_no_invisible_character_makes_two_names_look_alike():
    joiners = {0x200C, 0x200D}  # which some scripts need, and which change what is seen
    seen = {*range(0x600, 0x606), 0x6DD, 0x70F, 0x890, 0x891, 0x8E2, 0x110BD, 0x110CD}  # signs around numbers
    hidden = {c for c in range(0x110000) if unicodedata.category(chr(c)) == "Cf"} - joiners - seen
    assert [hex(c) for c in sorted(hidden) if clean(chr(c))] == []
    assert clean("Hop\u3164per\ufe0f\U000e0101") == "Hopper"


@pytest.mark.parametrize("arguments", [["diagnose", "--\u202ex"], ["--\u202ex"], ["diagnose", "--seed", "\u202e1"]])
def test_arguments_that_are_not_understood_are_shown_as_text(arguments):
    done = subprocess.run([sys.executable, "-m", "steadyrl", *arguments], capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert "\u202e" not in done.stdout + done.stderr


def test_no_console_takes_markup_or_emoji_codes(monkeypatch):
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stdout", stream)
    console().print("[bold]:x:[/] [red]")
    console().print(two_columns([("name", "[link=x]:x:")]))
    assert "[bold]:x:[/] [red]" in stream.getvalue()
    assert "[link=x]:x:" in stream.getvalue()


@pytest.mark.parametrize("name", ["[/bold]", "a[/x].npz", ":x:[nothing]"])
def test_a_model_whose_name_looks_like_markup_ends_in_a_sentence(tmp_path, name):
    """`check` showed the name in a spinner, where rich raises for a tag that is closed and was not opened."""
    done = subprocess.run(
        [sys.executable, "-m", "steadyrl", "check", name], capture_output=True, text=True, cwd=tmp_path, timeout=120
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert name in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "name", ["sun\u2600\ufe0f.csv", "Hop\u3164per.csv", "v\U000e0101.csv", "\x1b[2J\u202e.csv", "it's.csv"]
)
def test_the_code_to_paste_names_the_file_that_was_read(monkeypatch, name):
    """Invisible characters that Python prints, such as the selector in most emoji, were left out of the code."""
    lengths = np.random.default_rng(0).geometric(0.02, 200)
    found = diagnose_lengths(lengths, num_envs=4, n_steps=2)
    found = replace(found, lengths_code=f"lengths = steadyrl.load_lengths({name!r})")
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stdout", stream)
    print_diagnosis(found, console())
    (screen,) = re.findall(r"load_lengths\((.*)\)$", stream.getvalue(), re.MULTILINE)
    (page,) = re.findall(r"load_lengths\((.*?)\)<br>", render(found))
    assert ast.literal_eval(screen) == name
    assert ast.literal_eval(html.unescape(page)) == name
    assert clean(screen) == screen, "and nothing in it is invisible"


@pytest.mark.filterwarnings("ignore:.*render_mode")
@pytest.mark.parametrize("text", ["9" * 5000, "[" * 100_000], ids=["digits", "brackets"])
def test_an_argument_that_json_cannot_read_is_text_in_the_command_of_a_run(text):
    """`collect --make render_mode=999...` ended in a traceback: Python's JSON refuses thousands of digits."""
    found = collect_episodes("CartPole-v1", "uniform", 2, backend="serial", make_arguments={"render_mode": text})
    assert f"render_mode={text}" in found.provenance["command"]


def test_two_runs_into_one_folder_are_refused(tmp_path):
    with locked(tmp_path), pytest.raises(RolloutError, match="in use by another run"):
        reproduce([scripted([])], "quick", tmp_path)


@pytest.mark.parametrize("resume", [True, False])
def test_what_a_kill_at_the_very_end_leaves_behind_is_deleted(tmp_path, monkeypatch, resume):
    with monkeypatch.context() as patch:
        patch.setattr("steadyrl.experiments.running._delete_unfinished", lambda folder: None)
        reproduce([scripted([])], "quick", tmp_path)
    assert (tmp_path / UNFINISHED).exists()
    reproduce([scripted([])], "quick", tmp_path, resume=resume)
    assert not (tmp_path / UNFINISHED).exists()


HOSTILE_MODULE = """
import sys

import gymnasium


class Base(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (1,))
    action_space = gymnasium.spaces.Discrete(2)


class Raising(Base):
    def __init__(self):
        raise RuntimeError("no licence \\x1b[2J")


class Exiting(Base):
    def __init__(self):
        sys.exit(0)


class Hungry(Base):
    def __init__(self):
        raise MemoryError


class Deep(Base):
    def __init__(self):
        self.__init__()


for kind in (Raising, Exiting, Hungry, Deep):
    gymnasium.register(f"{kind.__name__}-v0", entry_point=kind)
"""


def steadyrl(*arguments, cwd):
    return subprocess.run(
        [sys.executable, "-m", "steadyrl", *arguments], cwd=cwd, capture_output=True, text=True, timeout=120
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["a:b:c-v0"], "a:b:c-v0"),
        (["hostile:Raising-v0"], "no licence"),
        (["hostile:Exiting-v0"], "sys.exit(0)"),
        (["hostile:Hungry-v0"], "memory"),
        (["hostile:Deep-v0"], "recursion"),
        (["CartPole-v1", "--seed", "-1"], "seed is -1"),
        (["CartPole-v1", "--episodes", "9" * 5000], "--episodes"),
        (["CartPole-v1", "--make", "max_episode_steps=" + "9" * 5000], "max_episode_steps"),
        (["CartPole-v1", "--num-envs", "1000000000", "--episodes", "40", "--backend", "serial"], "1000000000"),
        (["--from", "huge.txt"], "cannot be a length"),
        (["--from", "header.npy"], "not an array"),
        (["--from", "huge.txt", "--column", "9" * 5000], "column"),
    ],
)
def test_hostile_arguments_end_in_a_sentence_and_exit_code_2(tmp_path, arguments, words):
    (tmp_path / "hostile.py").write_text(HOSTILE_MODULE)
    (tmp_path / "huge.txt").write_text("900000000\n" * 40)
    (tmp_path / "header.npy").write_bytes(b'\x93NUMPY\x01\x00\x10\x00{"descr": bad   \n')
    result = steadyrl("diagnose", *arguments, cwd=tmp_path)
    assert result.returncode == 2
    assert words in result.stderr
    assert "Traceback" not in result.stderr
    assert "\x1b[2J" not in result.stderr
    assert len(result.stderr) < 20_000


def test_names_that_are_not_utf8_and_lengths_of_zero_are_no_trouble(tmp_path):
    name = os.fsdecode(b"caf\xe9.csv")
    (tmp_path / name).write_text("l\n" + "0\n" * 40)
    result = steadyrl("diagnose", "--from", name, "--out", os.fsdecode(b"r\xe9"), cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert (tmp_path / os.fsdecode(b"r\xe9") / "report.html").exists()


def test_ctrl_c_while_the_arguments_are_read_is_not_silent(monkeypatch, capsys):
    def press(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("typer.core.TyperGroup.invoke", press)
    monkeypatch.setattr(sys, "argv", ["steadyrl", "check", "FrozenLake-v1"])
    with pytest.raises(SystemExit) as ended:
        commands.run()
    assert ended.value.code == 130
    assert capsys.readouterr().err.strip() == "interrupted"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("wait", [0.6, 2.5])
def test_ctrl_c_and_sigterm_end_with_one_line_and_130(number, wait):
    command = [
        sys.executable,
        "-m",
        "steadyrl",
        "diagnose",
        "CartPole-v1",
        "--backend",
        "serial",
        "--episodes",
        "1000000",
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    time.sleep(wait)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted" in errors
    assert "Traceback" not in errors


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_after_the_end_does_not_change_the_status(number):
    """Python gives signals back to the system before it clears its modules, which takes up to a second."""
    script = f"""
import os, sys

class Late:
    def __del__(self, kill=os.kill, process=os.getpid()):
        kill(process, {int(number)})

late = Late()
sys.argv = ["steadyrl", "--version"]
from steadyrl.cli import main
main()
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout[:8], done.stderr) == (0, "steadyrl", "")


def test_an_answer_is_printed_though_its_video_cannot_be_written(monkeypatch, capsys, tmp_path):
    """The disk may be full after hours of evaluation; the answer came after the video, and was lost with it."""

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("steadyrl.cli.evaluate.record_video", full)
    words = ["evaluate", "CartPole-v1", "uniform", "--episodes", "3", "--video", str(tmp_path / "v.gif"), "--json"]
    monkeypatch.setattr(sys, "argv", ["steadyrl", *words])
    with pytest.raises(SystemExit) as end:
        commands.run()
    found = capsys.readouterr()
    assert end.value.code == 2
    assert json.loads(found.out)["episodes"] == 3
    assert "was not made ([Errno 28] No space left on device)" in found.err


@pytest.mark.parametrize(("problem", "status"), [(KeyboardInterrupt(), 130), (ValueError("empty"), 2)])
def test_neither_ctrl_c_nor_a_renderer_costs_an_evaluation_its_answer(monkeypatch, capsys, tmp_path, problem, status):
    def fail(*_, **__):
        raise problem

    monkeypatch.setattr("steadyrl.cli.evaluate.record_video", fail)
    words = ["evaluate", "CartPole-v1", "uniform", "--episodes", "3", "--video", str(tmp_path / "v.gif"), "--json"]
    monkeypatch.setattr(sys, "argv", ["steadyrl", *words])
    with pytest.raises(SystemExit) as end:
        commands.run()
    found = capsys.readouterr()
    assert end.value.code == status
    assert json.loads(found.out)["episodes"] == 3
    assert ("interrupted" if status == 130 else "was not made (ValueError: empty)") in found.err


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no device that is always full")
def test_files_are_written_though_the_answer_cannot_be_printed(tmp_path):
    """As in `diagnose ... --out report | head`: after all episodes were run, there was no report."""
    log = tmp_path / "monitor.csv"
    log.write_text("#{}\nr,l,t\n" + "".join(f"1,{10 + i % 3},{i}\n" for i in range(50)))
    for words, name in (
        (f"diagnose --from {log} --out {tmp_path / 'report'}", "report/lengths.txt"),
        (f"audit {log} --plot {tmp_path / 'a.svg'}", "a.svg"),
        (f"audit {log} --json --plot {tmp_path / 'j.svg'}", "j.svg"),  # longer than what a stream keeps
        (f"check FrozenLake-v1 --plot {tmp_path / 'c.svg'}", "c.svg"),
    ):
        done = in_a_shell(words, ">/dev/full")
        assert done.returncode == 2, done.stderr
        assert "standard output, where the answer goes: [Errno 28] No space left on device" in done.stderr
        assert (tmp_path / name).exists(), words


def test_an_answer_is_printed_though_its_picture_cannot_be_written(monkeypatch, capsys, tmp_path):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    log = tmp_path / "monitor.csv"
    log.write_text("#{}\nr,l,t\n" + "".join(f"1,{10 + i % 3},{i}\n" for i in range(50)))
    monkeypatch.setattr("steadyrl.common.figures.write_atomically", full)
    monkeypatch.setattr(sys, "argv", ["steadyrl", "audit", str(log), "--plot", str(tmp_path / "a.svg"), "--json"])
    with pytest.raises(SystemExit) as end:
        commands.run()
    assert end.value.code == 2
    assert json.loads(capsys.readouterr().out)["episodes"] == 50


@pytest.mark.parametrize(("name", "why"), [("p.svg", "it is a directory"), ("a" * 300 + ".svg", "File name too long")])
def test_a_picture_that_cannot_be_written_is_refused_before_the_work(tmp_path, name, why):
    (tmp_path / "p.svg").mkdir()
    with pytest.raises(FigureError, match=why):
        check_picture(tmp_path / name)


@pytest.mark.parametrize("kind", ["pipe", "device", "loop", "a link to a device", "long", ""])
def test_a_log_that_is_no_file_is_refused(tmp_path, kind):
    """A pipe waited for ever, and a device was read until there was no more memory."""
    path = tmp_path / "log"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind in ("loop", "a link to a device"):
        path.symlink_to(path if kind == "loop" else "/dev/zero")
    where = {"device": "/dev/zero", "long": str(path) * 300, "": ""}.get(kind, path)
    with pytest.raises(FileFormatError, match=r"is not a file or directory|is an empty name"):
        audit_log(where)
    with pytest.raises(FileFormatError, match=r"is not a file or directory|is an empty name"):
        read_lengths(where)


def test_a_time_limit_of_thousands_of_digits_is_refused_in_a_sentence(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["steadyrl", "check", "FrozenLake-v1", "--time-limit", "9" * 5000])
    with pytest.raises(SystemExit) as end:
        commands.run()
    assert end.value.code == 2
    assert "it must be 'spec', 'none', or a number of actions" in " ".join(capsys.readouterr().err.split())


def in_a_shell(words, tail=""):
    """Run a command in a shell."""
    command = f"{sys.executable} -m steadyrl {words} {tail}"
    return subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120, check=False)


def test_a_reader_that_has_gone_is_no_verdict():
    """The status was 1, which is what `check` says of a process that is not episodic."""
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {sys.executable} -m steadyrl check FrozenLake-v1 | true"],
        timeout=120,
        check=False,
    )
    assert done.returncode == 141


@pytest.mark.parametrize("words", ["--help", "--version", "check --help", "nonsense 2>&1", "check nope-v1 2>&1"])
def test_help_and_errors_whose_reader_has_gone_end_with_the_documented_status(words):
    """The status was 1 for help, and Python's own 120 for errors."""
    done = in_a_shell(f"{words} | true", "; exit ${PIPESTATUS[0]}")
    assert (done.returncode, done.stderr) == (141, "")


def test_a_program_without_standard_error_collects(tmp_path):
    out = tmp_path / "a.npz"
    done = in_a_shell(f"collect CartPole-v1 --episodes 3 --backend serial --out {out}", "2>&-")
    assert (done.returncode, out.exists()) == (0, True)


def test_without_standard_input_there_is_nothing_to_read():
    done = in_a_shell("diagnose --from -", "<&-")
    assert done.returncode == 2
    assert "there is no standard input" in done.stderr


def test_options_for_episodes_that_are_run_are_refused_with_a_log(tmp_path):
    (tmp_path / "a.csv").write_text("l\n3\n4\n")
    done = in_a_shell(f"diagnose --from {tmp_path / 'a.csv'} --policy mine.zip --make x=1")
    assert done.returncode == 2
    assert "--policy, --make: for episodes that are to be run" in done.stderr


def test_logs_of_several_environments_are_not_taken_for_those_of_one(tmp_path):
    steps, named = tmp_path / "steps.csv", tmp_path / "named.csv"
    steps.write_text("step,l,r\n" + "".join(f"{40 * i},10,1\n" for i in range(1, 20)))
    named.write_text("l,r\n3,1\n4,1\n")
    with pytest.raises(FileFormatError, match="audit each such file by itself"):
        audit_log([steps, named])
    named.write_text("env,l,r\n" + "".join(f"{i % 4},{5 + i % 4},{i % 4}\n" for i in range(80)))
    log = read_episode_log(named)
    assert (log.num_envs, "4 environments" in log.about) == (4, True)
    assert sorted(set(log.length[log.env == 2].tolist())) == [7]
    assert log.last.tolist() == [100, 120, 140, 160]
    with pytest.raises(FileFormatError, match=r"has 4 environments, but num_envs .* is 50"):
        read_episode_log(named, num_envs=50)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no device that is always full")
def test_messages_on_a_full_disk_cost_no_answer(tmp_path):
    """The status was 1, which is what `check` says of a process that is not episodic, and nothing was printed."""
    done = in_a_shell("check FrozenLake-v1", "2>/dev/full")
    assert done.returncode == 0
    assert "FrozenLake-v1" in done.stdout
    assert in_a_shell("check nowhere", "2>/dev/full").returncode == 2
    done = in_a_shell(f"collect CartPole-v1 --episodes 3 --backend serial --out {tmp_path / 'a.npz'}", "2>/dev/full")
    assert (done.returncode, (tmp_path / "a.npz").exists()) == (0, True)


def test_progress_that_cannot_be_shown_costs_no_episodes():
    closed = io.StringIO()
    closed.close()
    assert len(collect_episodes("CartPole-v1", "uniform", 3, backend="serial", progress=closed)) == 3


def test_a_command_in_a_deleted_directory_answers(tmp_path):
    gone = tmp_path / "gone"
    gone.mkdir()
    words = f"cd {gone} && rmdir {gone} && {sys.executable} -m steadyrl check FrozenLake-v1"
    done = subprocess.run(["bash", "-c", words], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, "Traceback" in done.stderr) == (0, False)


@pytest.mark.parametrize(
    "words",
    [
        "diagnose CartPole-v1 --episodes 50 --out a",
        "collect CartPole-v1 --episodes 50 --out a.npz",
        "train CartPole-v1 --updates 1 --out a",
        "reproduce figure-1 --out a",
    ],
)
def test_a_command_that_simulates_says_that_its_directory_was_deleted(tmp_path, words):
    """It said "No such file or directory" without a name, or PyTorch or a simulator crashed."""
    gone = tmp_path / "gone"
    gone.mkdir()
    words = f"cd {gone} && rmdir {gone} && {sys.executable} -m steadyrl {words}"
    done = subprocess.run(["bash", "-c", words], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, "Traceback" in done.stderr) == (2, False)
    assert "was started has been deleted" in " ".join(done.stderr.split())


def test_an_object_that_an_interrupt_left_half_made_is_no_traceback():
    """As pyparsing's, when a signal comes while matplotlib is imported."""
    code = """
from steadyrl import cli
from steadyrl.cli import commands

class Half:
    def __init__(self, error):
        self.error = error

    def __del__(self):
        raise self.error

commands.run = lambda: (Half(AttributeError("no attribute expr")), Half(OSError("the disk is full")))
cli.main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "expr" not in done.stderr
    assert "the disk is full" in done.stderr  # other errors are said


@pytest.mark.parametrize(("swallowed", "status"), [("KeyboardInterrupt", 130), ("()", 1)])
def test_an_interrupt_of_which_a_library_makes_another_error_stays_an_interrupt(swallowed, status):
    """As matplotlib's C++ code does while it draws; an error without a signal is told in full."""
    code = f"""
import os, signal, time
from steadyrl import cli
from steadyrl.cli import commands

def draw():
    try:
        if {swallowed} is KeyboardInterrupt:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(60)
    except KeyboardInterrupt:
        pass
    raise ValueError("Invalid bounding box")

commands.run = draw
cli.main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == status, done.stderr
    assert (done.stderr == "interrupted\n") == (status == 130)


@pytest.mark.parametrize(("signalled", "status"), [(True, 130), (False, 2)])
def test_an_interrupt_of_which_drawing_makes_another_error_does_not_blame_the_result(tmp_path, signalled, status):
    code = f"""
import os, signal, sys, time
from steadyrl import cli, errors
from steadyrl.cli import reproduce

def draw(*_, **__):
    try:
        if {signalled}:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(60)
    except KeyboardInterrupt:
        pass
    raise errors.FileFormatError("the result is damaged; delete it")

sys.modules["steadyrl.cli.reproduce"].run_experiments = draw
sys.argv[1:] = ["reproduce", "figure-1", "--out", "a"]
cli.main()
"""
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == status, done.stderr
    assert ("delete it" in done.stderr) == (not signalled)


def test_an_interrupted_command_ends_with_130_though_the_signal_came_inside_an_exec(tmp_path):
    """Python remembers such a signal (as of a dataclass in an import), and would end by SIGINT."""
    code = """
import sys
from steadyrl import cli
from steadyrl.cli import commands

def command():
    try:
        exec("import os, signal, time; os.kill(os.getpid(), signal.SIGTERM); time.sleep(60)")
    except KeyboardInterrupt:
        sys.exit(130)

commands.run = command
cli.main()
"""
    (tmp_path / "command.py").write_text(code)
    done = subprocess.run([sys.executable, "-m", "command"], cwd=tmp_path, capture_output=True, check=False)
    assert done.returncode == 130


@pytest.mark.parametrize("name", ["a$\\frac$", "a$b$", "\x1b[2J\n", os.fsdecode(b"\xff$x_$")])
def test_a_file_name_in_a_picture_is_text(tmp_path, name):
    """Between dollars it was taken for a formula, which ended in a traceback; control characters broke the svg."""
    pictures = [tmp_path / "a.svg", tmp_path / "a.png"]
    for picture in pictures:
        mixing_curves(*gallery.corridor(), Perturbation(0.9), picture, title=f"{name}.npz")
    assert clean_line(name).replace("\ufffd", "") in pictures[0].read_text()
    ElementTree.parse(pictures[0])


@pytest.mark.parametrize(
    ("arguments", "size"),
    [(["diagnose", "--from", "log.txt"], "0"), (["diagnose", "--from", "log.txt"], "\u00b2"), (["--help"], "9" * 20)],
)
def test_a_terminal_of_an_impossible_size_is_one_of_unknown_size(tmp_path, arguments, size):
    (tmp_path / "log.txt").write_text("10\n20\n" * 30)
    unknown = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    known = unknown | {"COLUMNS": size, "LINES": size}
    command = [sys.executable, "-m", "steadyrl", *arguments]
    one, other = (
        subprocess.run(command, capture_output=True, cwd=tmp_path, env=env, timeout=120) for env in (known, unknown)
    )
    assert one.returncode == 0, one.stderr
    assert one.stdout == other.stdout != b""


@pytest.mark.parametrize("command", [["diagnose", "--from", "log.txt"], ["train", "CartPole-v1"], ["reproduce", "all"]])
def test_an_empty_name_is_not_the_folder_that_we_are_in(tmp_path, command):
    (tmp_path / "log.txt").write_text("10\n20\n" * 30)
    command = [sys.executable, "-m", "steadyrl", *command, "--out", ""]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=120)
    assert done.returncode == 2
    assert "--out is an empty name" in done.stderr
    assert os.listdir(tmp_path) == ["log.txt"]


def test_a_message_is_lost_where_an_environment_has_closed_standard_error(monkeypatch):
    """`diagnose --out` ended with status 1, though all was printed and written."""
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stderr", closed)
    say("wrote report.html")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"backend": "x"}, "backend is 'x'"),
        ({"workers": -1}, "workers is -1"),
        ({"seed": -1}, "seed is -1"),
        ({"backend": "serial", "address": "here:1"}, "an address of a Ray cluster"),
    ],
)
def test_reproduce_refuses_options_also_where_the_experiment_takes_none(tmp_path, arguments, words):
    with pytest.raises(RolloutError, match=words):
        reproduce([scripted([])], "quick", tmp_path / "out", **arguments)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "name",
    [
        "plain",
        "a  b",
        "tab\tx",
        "line\nx",
        "a b",
        "sun\u2600\ufe0f",
        "it's\u00ad",
        "back\\slash\u200b",
        "\x1b[2Jx",
        "\udcff\u3164",
    ],
)
def test_a_command_to_paste_names_the_same_file(name):
    """The code of the shell lost what is invisible, such as the selector of variants in most emoji."""
    command = clean_command(["printf", "%s", name])
    assert clean(command) == command
    said = subprocess.run(["bash", "-c", command], capture_output=True, check=True, env={"LC_ALL": "C.UTF-8"})
    assert os.fsdecode(said.stdout) == name


def test_a_file_whose_name_is_a_dash_is_not_standard_input(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "-").write_text("5\n9\n14\n")
    monkeypatch.setattr("sys.stdin", None)
    assert read_lengths("./-").lengths.tolist() == [5, 9, 14]
    with pytest.raises(FileFormatError, match="no standard input"):
        read_lengths("-")


def test_the_command_after_training_is_one_line(tmp_path):
    """The table folded it, so that pasting ran a part of it, and then the policy file."""
    name = tmp_path / "a folder with a name of ordinary length, such as many have" / "cartpole-baseline-seed-0"
    name.parent.mkdir()
    command = ["train", "CartPole-v1", "--updates", "1", "--num-envs", "2", "--n-steps", "4", "--backend", "serial"]
    said = subprocess.run(
        [sys.executable, "-m", "steadyrl", *command, "--out", str(name)], capture_output=True, text=True, check=True
    ).stdout
    assert f"next  steadyrl evaluate CartPole-v1 '{name / 'policy.safetensors'}'\n" in said
