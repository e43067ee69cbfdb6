"""An experiment's result as a page: claim, command, figure, numbers, verdicts; and an index of all of them.

The same content as HTML, self-contained and readable from disk, and as Markdown for the documentation.
"""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files

from steadyrl.common.checks import in_words, shortened, shown
from steadyrl.errors import FileFormatError
from steadyrl.experiments.experiment import Experiment, Finding, Result


@dataclass(frozen=True)
class Page:
    """The content of a page."""

    name: str
    title: str
    claim: str
    command: str
    findings: Sequence[Finding]
    rows: Sequence[tuple[str, str]]
    departures: Sequence[str]
    run: str

    @property
    def verdict(self) -> str:
        """The verdicts of all findings, in one line."""
        return verdict(self.findings)


def page_of(experiment: Experiment, result: Result) -> Page:
    """Return the content of a result's page."""
    versions = ", ".join(f"{name} {number}" for name, number in sorted(result.versions.items()))
    with understood(experiment, result):
        return Page(
            name=experiment.name,
            title=experiment.title,
            claim=experiment.claim,
            command=result.command,
            findings=experiment.findings(result),
            rows=experiment.rows(result),
            departures=experiment.departures(result),
            run=f"Scale {result.scale}, seed {result.seed}; {versions}.",
        )


@contextlib.contextmanager
def understood(experiment: Experiment, result: Result) -> Iterator[None]:
    """Raise FileFormatError if a result holds other things than this version of its experiment writes."""
    try:
        if result.experiment != experiment.name:
            raise ValueError(f"experiment: {shown(result.experiment)}")
        yield
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RuntimeError) as error:
        raise FileFormatError(
            f"the result {experiment.name}.npz was made by another version of steadyrl, or it is damaged "
            f"({shortened(in_words(error), 200)} is not as expected); delete it, or make it again with: "
            f"steadyrl reproduce {experiment.name} --scale {result.scale}"
        ) from error


def verdict(findings: Sequence[Finding]) -> str:
    """Return how many findings agree, differ, and cannot be told."""
    counts = {word: sum(found.verdict == word for found in findings) for word in ("agrees", "differs", "cannot tell")}
    for word, count in counts.items():
        if count == len(findings):
            return word if count == 1 else f"{word}, in all {count} claims"
    parts = {"agrees": "agrees in {}", "differs": "differs in {}", "cannot tell": "cannot tell in {}"}
    said = ", ".join(parts[word].format(count) for word, count in counts.items() if count)
    return f"{said} of {len(findings)} claims"


def render_html(page: Page, svg: str) -> str:
    """Return the page as one self-contained HTML file."""
    picture = base64.b64encode(svg.encode()).decode()
    rows = "".join(f'<tr><th scope="row">{escape(a)}</th><td>{escape(b)}</td></tr>' for a, b in page.rows)
    table = f'<h2>Numbers</h2><div class="scroll"><table><tbody>{rows}</tbody></table></div>' if rows else ""
    findings = "".join(_finding(found) for found in page.findings)
    departures = "".join(f"<li>{escape(text)}</li>" for text in page.departures)
    body = f"""<p class="soft"><a href="index.html">All experiments</a></p>
<h1>{escape(page.title)}</h1>
<p class="verdict">{escape(page.claim)}</p>
<p><b>{escape(page.verdict)}</b></p>
<pre><code>{escape(page.command)}</code></pre>
<figure><img alt="{escape(page.title)}: {escape(page.verdict)}" style="width:100%;background:#fff"
 src="data:image/svg+xml;base64,{picture}"></figure>
<h2>Claim by claim</h2>
<div class="scroll"><table><thead><tr><th scope="col">the paper</th><th scope="col">measured</th>
<th scope="col">verdict</th></tr></thead><tbody>{findings}</tbody></table></div>
{table}
{f"<h2>Departures from the paper</h2><ul>{departures}</ul>" if departures else ""}
<p class="soft">{escape(page.run)} The figure and every verdict follow from <a href="{page.name}.npz">the result
file</a>; its numbers are also in <a href="{page.name}.json">{page.name}.json</a>.</p>"""
    return _html(page.title, body)


def render_index(pages: Sequence[Page]) -> str:
    """Return the HTML index of all pages."""
    rows = "".join(
        f'<tr><td><a href="{page.name}.html">{escape(page.title)}</a></td><td>{escape(page.claim)}</td>'
        f"<td>{escape(page.verdict)}</td></tr>"
        for page in pages
    )
    body = f"""<h1>The paper's figures, tables and claims, measured again</h1>
<p>Steady State Analysis of Episodic Reinforcement Learning (Huang, NeurIPS 2020), by steadyrl.</p>
<div class="scroll"><table><thead><tr><th scope="col">item</th><th scope="col">the paper's claim</th>
<th scope="col">verdict</th></tr></thead><tbody>{rows}</tbody></table></div>"""
    return _html("The paper, measured again", body)


def render_markdown(page: Page) -> str:
    """Return the page as Markdown, for the documentation; its picture is NAME.svg beside it."""
    lines = [
        f"# {page.title}",
        "",
        f"**The paper:** {_md(page.claim)}",
        "",
        f"**Measured again:** {page.verdict}.",
        "",
        "```bash",
        page.command,
        "```",
        "",
        f"![{_md(page.title)}]({page.name}.svg)",
        "",
        "## Claim by claim",
        "",
        "| the paper | measured | verdict |",
        "|---|---|---|",
    ]
    for found in page.findings:
        why = f": {_md(found.why)}" if found.why else ""
        lines.append(f"| {_md(found.claim)} | {_md(found.measured)} | **{found.verdict}**{why} |")
    if page.rows:
        lines += ["", "## Numbers", "", "| | |", "|---|---|"]
        lines += [f"| {_md(name)} | {_md(text)} |" for name, text in page.rows]
    if page.departures:
        lines += ["", "## Departures from the paper", ""]
        lines += [f"- {_md(text)}" for text in page.departures]
    lines += ["", f"{page.run} The figure and the verdicts follow from the result file `{page.name}.npz` alone.", ""]
    return "\n".join(lines)


def render_markdown_index(pages: Sequence[Page]) -> str:
    """Return the Markdown index of all pages."""
    lines = [
        "# Reproduction",
        "",
        "Every figure, table and claim of the paper, measured again with one command and set beside what it says:",
        "",
        "```bash",
        "steadyrl reproduce all --scale laptop --out results",
        "```",
        "",
        "`quick` takes minutes, `laptop` about 80 minutes on two cores, `paper` has the paper's own sizes and wants a",
        "Ray cluster (`--backend ray --address auto`; the cost is shown before it starts). Ctrl-C keeps what is",
        "finished and `--resume` goes on. Figures and verdicts below are computed from the committed result files.",
        "",
        "| item | the paper's claim | verdict |",
        "|---|---|---|",
    ]
    lines += [f"| [{page.title}]({page.name}.md) | {_md(page.claim)} | {page.verdict} |" for page in pages]
    lines += ["", "```{toctree}", ":hidden:", "", *(page.name for page in pages), "```", ""]
    return "\n".join(lines)


def _finding(found: Finding) -> str:
    why = f'<br><span class="soft">{escape(found.why)}</span>' if found.why else ""
    return (
        f"<tr><td>{escape(found.claim)}</td><td>{escape(found.measured)}</td><td><b>{found.verdict}</b>{why}</td></tr>"
    )


def _md(text: str) -> str:
    """Escape characters that have a meaning in Markdown."""
    for mark in ("\\", "|", "*", "_", "<", "[", "$"):
        text = text.replace(mark, "\\" + mark)
    return text


def _html(title: str, body: str) -> str:
    style = (files("steadyrl.diagnosis") / "page" / "report.css").read_text(encoding="utf-8")
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<link rel="icon" href="data:,">
<title>{escape(title)}</title>
<style>{style}</style>
</head>
<body>
<main>
{body}
</main>
</body>
</html>
"""
