"""The documentation says the truth: its Python runs, its commands exist, and so do all names in theory and map."""

import ast
import doctest
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import typer

import steadyrl
from steadyrl.cli import app

DOCS = Path(__file__).parent.parent / "docs"
PAGES = sorted(DOCS.glob("*.md"))
BLOCK = re.compile(r"(?:<!-- in the tests: (?P<changes>[^\n]*?) -->\n+)?```(?P<kind>\w+)\n(?P<code>.*?)```", re.DOTALL)


SMALLER = {"sspg": {"steps=100_000": "steps=2_000"}}
"""What the tests make smaller on a page, beside what its own comments say."""


def blocks(page, *kinds):
    """The code of a page, with what the tests make smaller: `<!-- in the tests: this => that; ... -->`."""
    for match in BLOCK.finditer(page.read_text()):
        if match["kind"] in kinds:
            code = match["code"]
            for change in filter(None, (match["changes"] or "").split(";")):
                old, new = (part.strip() for part in change.split("=>"))
                assert old in code, f"{page.name}: {old!r} is not in the sample below its comment"
                code = code.replace(old, new)
            for old, new in SMALLER.get(page.stem, {}).items():
                code = code.replace(old, new)
            yield match["kind"], code, page.read_text()[: match.start()].count("\n") + 1


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_python_sample_runs_and_prints_what_it_says(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    scope = {}
    for kind, code, line in blocks(page, "python", "pycon"):
        if kind == "python":
            exec(compile("\n" * line + code, str(page), "exec"), scope)
            continue
        found = doctest.DocTestParser().get_doctest(code, scope, page.stem, str(page), line)
        said = []
        runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
        runner.run(found, out=said.append, clear_globs=False)
        scope = found.globs
        assert runner.summarize(verbose=False).failed == 0, "".join(said)


def commands():
    """Every command line of steadyrl in the documentation, as words: on lines of their own, and within the text."""
    for page in [*PAGES, *DOCS.glob("reproduction/*.md"), DOCS.parent / "README.md"]:
        text = re.sub(r"\\\n\s*", "", page.read_text())
        lines = [line for _, code, _ in blocks(page, "bash", "console") for line in code.splitlines()]
        found = re.findall(r"^(?:\$ |    )steadyrl (.+)$", text, re.MULTILINE)
        found += re.findall(r"^steadyrl (.+)$", re.sub(r"\\\n\s*", "", "\n".join(lines)), re.MULTILINE)
        found += re.findall(r"`steadyrl ([^`]* [^`]*)`", text)
        for line in dict.fromkeys(found):
            words = [word for word in shlex.split(line, comments=True) if word != "..."]
            if words[-1] != "--help":
                yield page.stem, words


@pytest.mark.parametrize(("page", "words"), [pytest.param(*found, id=" ".join(found[1])) for found in commands()])
def test_every_command_parses(page, words):
    name, *rest = words
    context = typer.main.get_command(app).commands[name].make_context(name, rest)
    assert context.args == [], f"{page}: what is left over"
    given = {key for key in context.params if context.get_parameter_source(key).name == "COMMANDLINE"}
    assert len(given) >= sum(word.startswith("--") for word in rest)


def test_the_documentation_shows_every_command():
    assert {words[0] for _, words in commands()} == set(typer.main.get_command(app).commands)


def test_theory_to_code_names_functions_and_tests_that_exist():
    tests = {
        f"{path.name}::{node.name}"
        for path in Path(__file__).parent.glob("test_*.py")
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef)
    }
    rows = re.findall(r"^\|.*\| `([\w.]+)` \| `([\w.:]+)` \|$", (DOCS / "theory.md").read_text(), re.MULTILINE)
    assert len(rows) >= 25
    for function, test in rows:
        found = steadyrl
        for part in function.split("."):
            found = getattr(found, part)
        assert callable(found)
        assert test in tests, test


def test_theory_to_code_has_every_statement_of_the_paper():
    text = (DOCS / "theory.md").read_text()
    statements = [f"Theorem {n}" for n in (1, 2, 3, 4, 5)] + ["Definition 1", "Definition 2", "Algorithm 1"]
    statements += [f"Lemma {n}" for n in ("1.1", "1.2", "2.1")] + [f"Proposition {n}" for n in (1, 2, 3, 4)]
    for statement in statements:
        assert re.search(rf"^\| {re.escape(statement)}\b", text, re.MULTILINE), statement


def defined(path):
    """The functions and classes of a module, and the methods of its classes."""
    found = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
            found |= {f"{node.name}.{inner.name}" for inner in node.body if isinstance(inner, ast.FunctionDef)}
    return found


def test_the_map_names_files_and_functions_that_exist():
    text = (DOCS.parent / "CONTRIBUTING.md").read_text()
    source = DOCS.parent / "src" / "steadyrl"
    named = re.findall(r"`([\w/]+\.py)(?::([\w.]+))?`", text)
    assert len(named) >= 40
    for file, name in named:
        path = DOCS.parent / file if file.startswith("tests/") else source / file
        assert path.exists(), file
        assert not name or name in defined(path), f"{file} has no {name}"


def test_the_map_has_every_package_as_it_describes_itself(monkeypatch):
    monkeypatch.syspath_prepend(str(DOCS))
    import generate

    text = (DOCS.parent / "CONTRIBUTING.md").read_text()
    assert generate.module_map() in text, "run: python docs/generate.py map"
    folders = {path.parent.name for path in (DOCS.parent / "src" / "steadyrl").glob("*/__init__.py")}
    assert folders == {name for name in generate.packages() if "/" not in name}


def test_the_table_of_stacks_is_that_of_the_results(monkeypatch):
    monkeypatch.syspath_prepend(str(DOCS))
    import generate

    results = DOCS.parent / "benchmarks" / "results" / "stacks"
    assert generate.stacks(results) in (DOCS / "stacks.md").read_text(), "run: python docs/generate.py stacks"
    for path in results.glob("*.json"):
        entry = json.loads(path.read_text())
        assert set(entry["supported"]) == {"stagger", "monitor", "fair statistics"}
        assert len(entry["lines"]) <= 5
        for line in entry["lines"]:
            assert len(line) <= 120
        if entry["tested"] and entry["distance"]:
            assert {name: len(pair) for name, pair in entry["distance"].items()} == {"1": 2, "2": 2}
        imports = [line for line in entry["lines"] if line.startswith("from steadyrl")]
        for line in imports if "jax" not in path.stem and ".jax" not in "".join(imports) else []:
            exec(line, {})


def test_the_map_is_part_of_the_site():
    assert "{include} ../CONTRIBUTING.md" in (DOCS / "map.md").read_text()
    start = re.search(r":start-after: (.*)", (DOCS / "map.md").read_text())[1]
    assert start in (DOCS.parent / "CONTRIBUTING.md").read_text()


def test_relative_links_lead_somewhere():
    made = {"generated", "api"}  # when the site is built
    for page in [*PAGES, *DOCS.glob("reproduction/*.md")]:
        for target in re.findall(r"\]\(([^)#\s]+)", page.read_text()):
            if "://" in target or target.split("/")[0] in made:
                continue
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_reference_has_every_public_name(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(DOCS))
    import generate

    generate.reference(tmp_path)
    text = "\n".join(path.read_text() for path in tmp_path.glob("*.md"))
    for name in steadyrl.__all__:
        assert re.search(rf"^## {name}\b", text, re.MULTILINE), name


def test_the_site_builds_without_a_warning_and_fetches_nothing(tmp_path):
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html", str(DOCS), str(tmp_path)]
    built = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert built.returncode == 0, built.stderr
    for page in tmp_path.rglob("*.html"):
        fetched = re.findall(r'<(?:script|img|link|iframe)[^>]*(?:src|href)="(https?://[^"]*)', page.read_text())
        assert fetched == [], page.name
    for style in tmp_path.rglob("*.css"):
        assert not re.search(r"@import|url\(.?https?:", style.read_text()), style.name
