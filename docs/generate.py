"""What the site writes itself: the reference and the map from docstrings, and the table of contents of the guides.

`make docs` calls what it needs. The rest is committed, and made by

python docs/generate.py                  writes the pages of docs/reproduction again from the results beside them
python docs/generate.py RESULTS          brings the results of `steadyrl reproduce` in that folder into them
python docs/generate.py pictures         draws docs/lockstep.svg, the picture of the first screen
python docs/generate.py map              writes the map in CONTRIBUTING.md again from the packages' docstrings
python docs/generate.py stacks           writes the table of docs/stacks.md again from benchmarks/results/stacks
"""

import importlib
import inspect
import json
import re
import textwrap
from importlib.util import find_spec
from pathlib import Path

import steadyrl

DOCS = Path(__file__).parent
GUIDES = (
    "diagnose",
    "evidence",
    "cures",
    "staggering",
    "fair",
    "sspg",
    "rollouts",
    "scaling",
    "stacks",
    "jax",
    "torch",
    "league",
)
"""Pages of the section Guides, in order; further pages come after them."""
ELSEWHERE = ("index", "start", "concepts", "questions", "theory", "map")
MAP = ("<!-- What follows is written by `python docs/generate.py map`. -->", "<!-- Up to here. -->")
"""What stands before and after the generated part of CONTRIBUTING.md."""
STACKS = ("<!-- What follows is written by `python docs/generate.py stacks`. -->", "<!-- Up to here. -->")
"""What stands before and after the generated part of docs/stacks.md."""
FIRST_STACKS = ("gymnasium", "envpool", "sb3", "cleanrl", "rsl_rl", "torchrl", "skrl")
"""Stacks at the top of the table, in this order; the others come after them, those that were not run last."""


def guides(folder: Path) -> None:
    """Write the table of contents of the guides: those that there are."""
    found = [path.stem for path in sorted(folder.glob("*.md")) if path.stem not in ELSEWHERE]
    order = [name for name in GUIDES if name in found] + [name for name in found if name not in GUIDES]
    _write(folder / "generated" / "guides.md", ["```{toctree}", ":hidden:", ":caption: Guides", "", *order, "```"])


def packages() -> dict[str, str]:
    """Return the packages from the bottom up, each with its docstring."""
    found = {}
    for line in re.findall(r"^    ([a-z]+(?:, [a-z]+)*)  +\S", inspect.getdoc(steadyrl), re.MULTILINE):
        for name in line.split(", "):
            found[name] = inspect.getdoc(importlib.import_module(f"steadyrl.{name}")) or ""
            if name == "integrations":
                source = DOCS.parent / "src" / "steadyrl" / name
                for inner in sorted(path.parent for path in source.glob("*/__init__.py")):
                    text = inner.joinpath("__init__.py").read_text()
                    found[f"{name}/{inner.name}"] = inspect.cleandoc(text.split('"""')[1])
    return found


def module_map() -> str:
    """Return the map of packages: what each is about, and a line for each of its modules."""
    lines = []
    for name, docstring in packages().items():
        summary, _, rest = docstring.partition("\n")
        lines += ["", f"### `{name}/`", "", summary]
        paragraphs = re.split(r"\n\s*\n", rest.strip("\n"))
        for paragraph in paragraphs:
            if paragraph.strip() and not paragraph.startswith("    "):
                lines += ["", paragraph.strip("\n")]
    return "\n".join(lines).strip("\n")


def stacks(results: Path) -> str:
    """Return the table of stacks, the lines to write in each, and what some have of their own, from results."""
    found = {path.stem: json.loads(path.read_text()) for path in sorted(results.glob("*.json"))}
    rank = {name: place for place, name in enumerate(FIRST_STACKS)}
    order = sorted(found, key=lambda name: (not found[name]["tested"], rank.get(name, len(rank)), name))
    lines = [
        "| stack | version | stagger | monitor | fair statistics | distance (bound) after 1 mean length | after 2 "
        "| cost a step |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name in order:
        entry = found[name]
        marks = ["yes" if entry["supported"][what] else "no" for what in ("stagger", "monitor", "fair statistics")]
        distances = [_distance(entry["distance"].get(after)) for after in ("1", "2")]
        label = entry["stack"] + ("" if entry["tested"] else " (untested)")
        lines.append(f"| {' | '.join([label, entry['version'], *marks, *distances, str(entry['cost']) or '-'])} |")
    peers = [entry for entry in found.values() if "peers" in entry]
    if peers:
        lines += ["", "## Beside what stacks have of their own", ""]
        lines += ["| stack | way | distance (bound) after 1 mean length | after 2 |", "|---|---|---|---|"]
        for entry in peers:
            for way, at in {"steadyrl": entry["distance"], **entry["peers"]}.items():
                lines.append(f"| {entry['stack']} | {way} | {_distance(at['1'])} | {_distance(at['2'])} |")
    lines += ["", "## The lines to write"]
    for name in order:
        entry = found[name]
        if entry["lines"]:
            lines += [
                "",
                f"{entry['stack']}{'' if entry['tested'] else ', untested'}:",
                "",
                "```text",
                *entry["lines"],
                "```",
            ]
        if entry.get("note"):
            lines += ["", entry["note"]]
    return "\n".join(lines)


def _distance(pair: list[float] | None) -> str:
    return "-" if not pair else f"{pair[0]:.3f} ({pair[1]:.3f})"


def write_part(path: Path, marks: tuple[str, str], text: str) -> None:
    """Replace the generated part of a page."""
    before, _, rest = path.read_text().partition(marks[0])
    _, _, after = rest.partition(marks[1])
    _write(path, [f"{before}{marks[0]}\n\n{text}\n\n{marks[1]}{after.rstrip()}"])


def reference(folder: Path) -> None:
    """Write a page for each package with public names, from its docstrings, and an index."""
    folder.mkdir(exist_ok=True)
    pages: dict[str, list[tuple[str, object]]] = {}
    for name in steadyrl.__all__:
        thing = getattr(steadyrl, name)
        module = thing.__name__ if inspect.ismodule(thing) else thing.__module__
        pages.setdefault(module.split(".")[1], []).append((name, thing))
    pages["policies"] = [("policies", importlib.import_module("steadyrl.policies"))]
    if find_spec("stable_baselines3"):
        from steadyrl.integrations import sb3

        pages["integrations"] += [(f"integrations.sb3.{name}", getattr(sb3, name)) for name in sb3.__all__]
    order = [name for name in ("errors", *packages()) if name in pages]
    for package in order:
        source = importlib.import_module(f"steadyrl.{package}")
        lines = [f"# {package}", "", *_text(inspect.getdoc(source) or "")]
        for name, thing in pages[package]:
            lines += _module(name, thing) if inspect.ismodule(thing) else _entry(name, thing)
        _write(folder / f"{package}.md", lines)
    index = ["# Reference", "", "Every public name, by package, from the bottom up; all are in `steadyrl`.", ""]
    index += ["| package | names |", "|---|---|"]
    for package in order:
        listed = ", ".join(f"`{name}`" for name, _ in pages[package])
        index.append(f"| [{package}]({package}.md) | {listed} |")
    index += ["", "```{toctree}", ":hidden:", "", *order, "```"]
    _write(folder / "index.md", index)
    for path in folder.glob("*.md"):  # of a layout that is no more
        if path.stem not in ("index", *order):
            path.unlink()


def _module(name: str, module) -> list[str]:
    """A module with the public names that are reached through it."""
    public = [n for n in getattr(module, "__all__", vars(module)) if not n.startswith("_")]
    lines = ["", f"## {name}", "", *_text((inspect.getdoc(module) or "").splitlines()[0])]
    for inner in public:
        value = getattr(module, inner)
        own = getattr(value, "__module__", "").startswith(module.__name__)
        if own and inner not in steadyrl.__all__ and (inspect.isfunction(value) or inspect.isclass(value)):
            lines += _entry(f"{name}.{inner}", value)
    return lines


def _entry(name, thing) -> list[str]:
    """A name with its signature and docstring; a class with its public methods and documented fields."""
    lines = [
        "",
        f"## {name}",
        "",
        "```python",
        f"{name}{_signature(thing)}",
        "```",
        "",
        *_text(inspect.getdoc(thing) or ""),
    ]
    if inspect.isclass(thing) and not issubclass(thing, BaseException):
        for inner, value in vars(thing).items():
            function = value.__func__ if isinstance(value, classmethod | staticmethod) else value
            if inner.startswith("_") or not inspect.getdoc(function):
                continue
            if inspect.isfunction(function):
                lines += ["", f"### {name}.{inner}", "", "```python", f"{inner}{_signature(function)}", "```", ""]
                lines += _text(inspect.getdoc(function))
            elif isinstance(value, property):
                lines += ["", f"### {name}.{inner}", "", *_text(inspect.getdoc(value))]
    return lines


def _signature(thing) -> str:
    try:
        text = re.sub(r"<[^>]*>", "...", str(inspect.signature(thing)))
        text = re.sub(r"'([^']*)'", lambda m: m[1] if f": {m[0]}" in text or f"-> {m[0]}" in text else m[0], text)
        return re.sub(r"^\((self|cls)(, )?", "(", text).removesuffix(" -> None")
    except (TypeError, ValueError):
        return ""


def _text(docstring: str) -> list[str]:
    """A docstring as Markdown: sections become bold, indented lines and examples code, arguments a list."""
    lines, section = [], ""
    for block in re.split(r"\n\s*\n", docstring):
        if not block.strip():
            continue
        head = block.splitlines()[0].strip()
        if head in ("Args:", "Returns:", "Raises:", "Example:", "Examples:"):
            section = head
            lines += ["", f"**{head[:-1]}**", ""]
            block = "\n".join(block.splitlines()[1:])
            if not block.strip():
                continue
        elif not block.startswith(" "):
            section = ""
        body = textwrap.dedent(block)
        if section in ("Args:", "Raises:"):
            lines += _items(body)
        elif section in ("Example:", "Examples:") or (not section and block.startswith("    ")) or ">>>" in body:
            fence = "```pycon" if ">>>" in body else "```text"
            lines += ["", fence, body, "```", ""]
        else:
            lines += ["", _escape(body), ""]
    return lines


def _items(body: str) -> list[str]:
    """`name: text` entries, continued on indented lines, as a list."""
    items = re.split(r"\n(?=\S)", body)
    found = []
    for item in items:
        name, _, text = " ".join(item.split()).partition(": ")
        found.append(f"- `{name}`: {_escape(text)}" if text else f"- {_escape(name)}")
    return [*found, ""]


def _escape(text: str) -> str:
    """Escape what Markdown would take for its own, outside of code and *emphasis*."""
    parts = re.split(r"(`[^`]*`|(?<![\w*])\*\w[^*\n]*\*(?![\w*]))", text)
    kept = ("`", "*")
    return "".join(part if part.startswith(kept) else re.sub(r"([\\*_<\[|$])", r"\\\1", part) for part in parts)


def _write(path: Path, lines: list[str]) -> None:
    text = "\n".join(lines) + "\n"
    if not path.exists() or path.read_text() != text:  # Sphinx builds again what has changed
        path.write_text(text)


def reproduction(results: Path) -> None:
    """Bring results of `steadyrl reproduce` into the documentation, or write its pages again from what is there."""
    from steadyrl.experiments.catalogue import EXPERIMENTS
    from steadyrl.experiments.running import document

    document(EXPERIMENTS, results, DOCS / "reproduction")


def main(argument: str | None) -> None:
    """Write what the command line asks for."""
    if argument == "pictures":
        import pictures

        pictures.committed(DOCS)
    elif argument == "map":
        write_part(DOCS.parent / "CONTRIBUTING.md", MAP, module_map())
    elif argument == "stacks":
        write_part(DOCS / "stacks.md", STACKS, stacks(DOCS.parent / "benchmarks" / "results" / "stacks"))
    else:
        reproduction(DOCS / "reproduction" if argument is None else Path(argument))


if __name__ == "__main__":
    import sys

    main(sys.argv[1] if len(sys.argv) > 1 else None)
