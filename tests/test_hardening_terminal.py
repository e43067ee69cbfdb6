"""What an attack on the command line found: control characters, signals, exit codes, raw errors, mixed runs."""

import io
import os
import sys

import pytest

from steadyrl.common.files import locked
from steadyrl.common.tables import two_columns
from steadyrl.common.terminal import clean, clean_line, console
from steadyrl.errors import RolloutError
from steadyrl.experiments.running import UNFINISHED, reproduce
from test_reproduce import scripted

HOSTILE = "\x1b]0;owned\x07\x1b[2J\x1b[31m\x9b1m\x1bPq\x1b\\\r\x00\x7f\u202e"


def test_text_from_outside_holds_nothing_that_a_terminal_obeys():
    assert clean(f"a{HOSTILE}b") == "ab"
    assert clean("line\n\ttabbed") == "line\n\ttabbed"
    assert clean_line("Walk-v0\nerror: forged") == "Walk-v0 error: forged"
    assert clean(os.fsdecode(b"caf\xe9.csv")) == "caf\ufffd.csv"
    assert clean("\x1b]0;never closed") == "0;never closed", "our own words after it must not be swallowed"


def test_no_console_takes_markup_or_emoji_codes(monkeypatch):
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stdout", stream)
    console().print("[bold]:x:[/] [red]")
    console().print(two_columns([("name", "[link=x]:x:")]))
    assert "[bold]:x:[/] [red]" in stream.getvalue()
    assert "[link=x]:x:" in stream.getvalue()


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
