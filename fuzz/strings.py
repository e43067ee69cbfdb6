"""Puts hostile text wherever text comes from outside: nothing of it reaches the terminal or the page unescaped.

Escape sequences, control characters, rich markup, emoji codes, HTML and scripts stand in the env_id of a monitor.csv,
in column names, names of files, environment ids, messages of environments and the metadata of policies.
"""

from __future__ import annotations

import html.parser
import json
import re
import subprocess
import sys
from pathlib import Path

from common import Trial, main

PIECES = [
    "\x1b]0;owned\x07", "\x1b[2J", "\x1b[31m", "\x9b1m", "\x1bPq\x1b\\", "\r", "\x08" * 9, "\x7f", "\x00", "\u202e",
    "\u2028", "\x1b]8;;http://x\x1b\\", "[bold red]", "[/]", "[link=x]", ":skull:", ":x:", "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>", '"><b>', "' onload='x", "</style>", "</script>", "&lt;", "{{7*7}}", "%s%n",
    "`id`", "$(id)", "\nerror: forged", "\ud800", "\\x1b[2J", "🦄", "é",
]  # fmt: skip
FORBIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
ENVIRONMENT = """
import gymnasium
class Rude(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (1,))
    action_space = gymnasium.spaces.Discrete(2)
    def __init__(self):
        raise RuntimeError({text!r})
gymnasium.register("{name}-v0", entry_point=Rude)
"""


class Page(html.parser.HTMLParser):
    """Counts the tags and attributes of a page that could run something."""

    def __init__(self) -> None:
        super().__init__()
        self.active: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note scripts and handlers."""
        if tag in ("script", "iframe", "object", "embed"):
            self.active.append(tag)
        self.active += [name for name, _ in attrs if name.startswith("on")]


def active(page: Path) -> list[str]:
    """Return what could run in a page."""
    parser = Page()
    parser.feed(page.read_text())
    return sorted(parser.active)


RUNNER = """
import json, os, sys
from steadyrl.cli import main
for number, (folder, words) in enumerate(json.load(open(sys.argv[1]))):
    os.chdir(folder)
    sys.path.insert(0, folder)
    sys.argv = ["steadyrl", *words]
    with open(f"said{number}", "wb") as said:
        os.dup2(said.fileno(), 1)
        os.dup2(said.fileno(), 2)
        status = 0
        try:
            main()
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else 1 if end.code else 0
        except BaseException as error:
            print("Traceback", repr(error))
            status = 1
        sys.stdout.flush()
        sys.stderr.flush()
        os.fsync(1)
    open(f"status{number}", "w").write(str(status))
"""


def run(commands: list[tuple[Path, list[str]]], plan: Path) -> list[tuple[int, str]]:
    """Run commands one after the other in one process; return their status and all that they would show."""
    plan.write_text(json.dumps([(str(folder), words) for folder, words in commands]))
    subprocess.run([sys.executable, "-c", RUNNER, str(plan)], timeout=600, check=False)
    found = []
    for number, (folder, _) in enumerate(commands):
        status = folder / f"status{number}"
        said = (folder / f"said{number}").read_bytes() if status.exists() else b""
        found.append((int(status.read_text()) if status.exists() else -1, said.decode(errors="replace")))
    return found


def write(folder: Path, text: str, module: str, rows: str) -> dict[str, list[str]]:
    """Write files with the text in them; return the commands that read it."""
    from steadyrl.policies.tensors import write_safetensors

    folder.mkdir()
    clean = text.replace("\x00", "").encode("utf-8", "replace").decode()
    (folder / "monitor.csv").write_text(f"#{json.dumps({'t_start': 1.0, 'env_id': text})}\nr,l,t\n{rows}")
    name = clean.replace("/", "_")[:60]
    (folder / f"{name}.csv").write_text("l\n" + "3\n5\n" * 20)
    (folder / f"{name}.monitor.csv").write_text(f"r,l,t\n{rows}")
    quoted = clean.replace('"', '""')
    body = "".join(f'{3 * i},3,1.0,"{quoted}"\n' for i in range(1, 41))
    (folder / "environments.csv").write_text(f"step,l,r,env\n{body}")
    (folder / "damaged.csv").write_text(f'step,l,r\n3,3,"{quoted}"\n6,3,1\n')
    (folder / "column.csv").write_text(f'"{clean}",b\n1,2\n')
    (folder / f"{module}.py").write_text(ENVIRONMENT.format(text=text, name=module), errors="backslashreplace")
    write_safetensors(folder / "p.safetensors", {"a": [1.0]}, dict.fromkeys(("format", "kind", "environment"), clean))
    return {
        "env_id of a monitor.csv": ["diagnose", "--from", "monitor.csv", "--out", "report"],
        "name of a file": ["diagnose", "--from", f"{name}.csv"],
        "name of a column": ["diagnose", "--from", "column.csv"],
        "message of an environment": ["diagnose", f"{module}:{module}-v0"],
        "metadata of a policy": ["evaluate", "CartPole-v1", "p.safetensors", "--episodes", "2"],
        "environment id": ["collect", clean, "--episodes", "2", "--out", "a.npz"],
        "name of a log of episodes": ["audit", f"{name}.monitor.csv"],
        "environment in a log of episodes": ["audit", "environments.csv", "--json"],
        "damaged row of a log of episodes": ["audit", "damaged.csv"],
    }


def attack(trial: Trial) -> None:
    """Try `trial.count` texts in every place."""
    rows = "".join(f"{n}.0,{n},{i}.5\n" for i, n in enumerate([3, 4, 5, 9] * 20))
    plain = trial.folder / "plain"
    places = [(plain, "Walk-v0", "", next(iter(write(plain, "Walk-v0", "walk", rows).values())))]
    for number in range(trial.count):
        generator = trial.generator(number)
        text = "a" + "".join(generator.sample(PIECES, generator.randrange(1, 5)))
        folder = trial.folder / str(number)
        for place, words in write(folder, text, f"rude{number}", rows).items():
            places.append((folder, text, place, words))
    said = run([(folder, words) for folder, _, _, words in places], trial.folder / "plan")
    expected = active(trial.folder / "plain" / "report" / "report.html")
    for (folder, text, place, _), (status, shown) in zip(places[1:], said[1:], strict=True):
        trial.tried[f"texts as {place}"] += 1
        bad = FORBIDDEN.findall(shown)
        if bad or "Traceback" in shown or status not in (0, 2):
            trial.found(f"{place}, {text!r}: status {status}, {bad}: {shown[-300:]!r}")
        if ":skull:" in text and "\u2620" in shown:
            trial.found(f"{place}, {text!r}: an emoji code was taken for an emoji")
        page = folder / "report" / "report.html"
        if place.startswith("env_id"):
            trial.tried["pages"] += 1
            if not page.exists() or active(page) != expected:
                trial.found(f"page, {text!r}: it runs other things than a harmless one, or there is none")


if __name__ == "__main__":
    main("strings", attack, count=60, seconds=600)
