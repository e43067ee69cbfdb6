"""Short versions of the fuzzers in the folder fuzz, with fixed seeds: they find nothing."""

import collections
import json
import os
import signal
import sys
from pathlib import Path

import numpy as np
import pytest

from steadyrl import load_lengths
from steadyrl.errors import FileFormatError

ALL_TESTS = "".join(file.read_text() for file in Path(__file__).parent.glob("test_*.py"))
FUZZ = Path(__file__).parent.parent / "fuzz"
sys.path.insert(0, str(FUZZ))

import calls  # noqa: E402
import common  # noqa: E402
import contents  # noqa: E402
import environments  # noqa: E402
import flips  # noqa: E402
import page  # noqa: E402
import signals  # noqa: E402
import strings  # noqa: E402


def trial(name, tmp_path, count):
    return common.Trial(name, seed=7, count=count, seconds=900, folder=tmp_path)


def test_every_call_of_the_fuzzer_starts_from_arguments_that_work(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for function, arguments in calls.targets().values():
        good = arguments()
        if good:  # results are made by functions; without arguments, all of theirs are hostile
            value = function(**{key: calls.made(item) for key, item in good.items()})
            if hasattr(value, "close"):
                value.close()


def test_calls_with_hostile_arguments_give_values_or_sentences(tmp_path):
    short = trial("calls", tmp_path, 300)
    calls.attack(short)
    assert not short.findings
    assert sum(n for what, n in short.tried.items() if what.startswith("calls")) == 300


def test_damaged_files_load_as_written_or_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(flips, "limit_memory", lambda gigabytes: None)  # it would stay for the other tests
    short = trial("flips", tmp_path, 8)
    flips.attack(short)
    assert not short.findings


def test_files_with_impossible_content_are_refused(tmp_path):
    short = trial("contents", tmp_path, 12)
    contents.attack(short)
    assert not short.findings
    assert len(short.tried) == 9


def test_a_process_that_crashes_is_a_finding(tmp_path):
    short = trial("contents", tmp_path, 1)
    contents.batch(short, "a kind", lambda _: os.kill(os.getpid(), signal.SIGKILL), {3: ({}, {})})
    assert short.findings == ["a kind, number 3: the process ended with status -9"]


def test_a_run_that_is_killed_goes_on_to_the_same_bytes(tmp_path):
    short = trial("signals", tmp_path, 1)
    words = ["collect", "CartPole-v1", "--episodes", "400", "--block-size", "20", "--backend", "serial"]
    signals.attack(short, {"collect, serial": [*words, "--out", "a.npz"]})
    assert not short.findings
    assert short.tried["collect, serial: results compared"] == 1


def test_hostile_text_reaches_neither_the_terminal_nor_the_page(tmp_path):
    short = trial("strings", tmp_path, 1)
    strings.attack(short)
    assert not short.findings


@pytest.mark.slow
def test_environments_that_misbehave_are_named(tmp_path, monkeypatch):
    monkeypatch.setattr(environments, "APART", ())
    monkeypatch.setattr(environments, "loud", lambda trial: None)
    short = trial("environments", tmp_path, 8)
    environments.attack(short)
    assert not short.findings


def test_a_fuzzer_that_finds_something_says_so(tmp_path, capsys):
    short = trial("calls", tmp_path, 1)
    short.found("a raw error")
    assert short.findings == ["a raw error"]
    assert "FOUND a raw error" in capsys.readouterr().out


def test_the_page_of_promises_is_what_the_results_say():
    text = page.PAGE.read_text()
    assert all(text.count(mark) == 1 for mark in page.MARKS)
    assert text == page.page(text, json.loads(common.RESULTS.read_text()))
    assert all((FUZZ / f"{name}.py").exists() for name in page.PROMISES)


def test_a_page_that_says_another_number_is_noticed():
    results = json.loads(common.RESULTS.read_text())
    text = page.PAGE.read_text()
    first = next(iter(results.values()))
    first["tried"] = {name: number + 1 for name, number in first["tried"].items()}
    assert text != page.page(text, results)


def test_what_was_tried_is_as_much_as_was_promised_and_what_was_found_is_held_by_a_test():
    """500 flipped bits for each type of file, 10,000 calls, 130 signals; each with its command, seed and version."""
    results = json.loads(common.RESULTS.read_text())
    tried = {name: collections.Counter() for name in page.PROMISES}
    for key, result in results.items():
        assert result.get("mended", {}).keys() == {str(i) for i in range(len(result["findings"]))}
        for holds in result.get("mended", {}).values():
            assert holds.startswith("the fuzzer's own") or f"def {holds}(" in ALL_TESTS
        assert {"command", "seed", "version"} <= result.keys()
        tried[key.split()[0]].update(result["tried"])
    flipped = {what: number for what, number in tried["flips"].items() if what.endswith("bits flipped")}
    assert len(flipped) >= 14
    assert min(flipped.values()) >= 500
    assert sum(number for what, number in tried["calls"].items() if what.startswith("calls")) >= 10_000
    assert sum(number for what, number in tried["signals"].items() if ": SIG" in what) >= 130


@pytest.mark.parametrize("name", ["ep_lengths", "steadyrl"])
def test_an_archive_with_an_unknown_compression_is_refused_with_a_sentence(tmp_path, name):
    path = tmp_path / "evaluations.npz"
    np.savez(path, **{name: np.arange(3, 9)})
    content = bytearray(path.read_bytes())
    content[content.rfind(b"PK\x01\x02") + 10] = 77  # the method in the directory
    content[content.find(b"PK\x03\x04") + 8] = 77
    path.write_bytes(content)
    with pytest.raises(FileFormatError):
        load_lengths(path)
