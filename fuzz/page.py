"""Writes the table of docs/promises.md from fuzz/results.json: what is promised, and how often it was tried."""

from __future__ import annotations

import collections
import json
from pathlib import Path
from typing import Any

from common import RESULTS

PAGE = Path(__file__).parent.parent / "docs" / "promises.md"
MARKS = ("<!-- What follows is written by `python fuzz/page.py`. -->", "<!-- Up to here. -->")
PROMISES = {
    "flips": "A file that was damaged loads as it was written, or is refused with a sentence. It never loads as other "
    "numbers, and never asks for more memory than it has reason to. (Logs of other programs carry no digests: a "
    "changed digit is another length there, and only a sentence or lengths are promised.)",
    "contents": "A file or state whose digests fit, but which holds what it cannot hold, is refused with a sentence. "
    "It never crashes the interpreter, and never reads or writes beyond its arrays.",
    "calls": "A public function, constructor or method that is called with wrong arguments raises a `SteadyrlError` "
    "with a sentence, whatever the arguments are.",
    "signals": "A run that is killed or interrupted at any moment loses at most its unfinished block or update, goes "
    "on with `--resume` to the same bytes, and leaves no temporary file. A second run into the same place is refused.",
    "strings": "Text from outside controls neither the terminal nor the page.",
    "environments": "An environment that misbehaves is named in an error, or its episodes are left out if that was "
    "asked for. It does not hang, end or falsify a run, and what it prints does not spoil `--json`.",
}


def table(results: dict[str, dict[str, Any]]) -> list[str]:
    """Return the table, and the commands that made it."""
    lines = ["| promise | tried | times | found | of these mended |", "|---|---|---:|---:|---:|"]
    for name, promise in PROMISES.items():
        tried: collections.Counter[str] = collections.Counter()
        found = mended = 0
        for key, result in results.items():
            if key.split()[0] == name:
                tried.update(result["tried"])
                found += len(result["findings"])
                mended += len(result.get("mended", {}))
        if "functions, constructors and methods" in tried:
            tried["functions, constructors and methods"] = max(
                result["tried"].get("functions, constructors and methods", 0) for result in results.values()
            )
        for i, (what, number) in enumerate(sorted(tried.items())):
            first, last = (promise, f"{found} | {mended}") if i == 0 else ("", " | ")
            lines.append(f"| {first} | {what} | {number:,} | {last} |")
    lines += ["", "Commands that made this table, each with its seed:", ""]
    lines += [f"- `{result['command']}` (steadyrl {result['version']})" for result in results.values()]
    lines += ["", "What they found, and the test that holds it since; a fuzzer's own fault is named as such:", ""]
    for name, result in results.items():
        for number, text in enumerate(result["findings"]):
            holds = result.get("mended", {}).get(str(number), "not mended yet")
            lines.append(f"- {name}: `{shown(text)}`: {holds}")
    return [*lines, ""]


def shown(text: str, most: int = 160) -> str:
    """Return a finding in one line without backquotes or bars."""
    plain = " ".join(text.replace("`", "'").replace("|", "/").split())
    return plain if len(plain) <= most else f"{plain[:110]} ... {plain[-45:]}"


def page(text: str, results: dict[str, dict[str, Any]]) -> str:
    """Return the text of the page with the table of these results between its marks."""
    before, _, rest = text.partition(MARKS[0])
    after = rest.partition(MARKS[1])[2]
    middle = "\n".join(table(results))
    return f"{before}{MARKS[0]}\n\n{middle.strip()}\n\n{MARKS[1]}{after}"


def main() -> None:
    """Write the table between its marks."""
    PAGE.write_text(page(PAGE.read_text(), json.loads(RESULTS.read_text())))


if __name__ == "__main__":
    main()
