"""A diagnosis as one self-contained HTML page: no request leaves it, and it opens from disk.

The curves are drawn by some two hundred lines of JavaScript in the page rather than by a plotting library: that is
kilobytes instead of megabytes, it follows the reader's light or dark theme and the width of a phone, and the slider
has to run the renewal recursion in the page anyway. Whatever a user supplied (names, commands) is escaped, or goes in
as JSON and is only ever set as text.
"""

from __future__ import annotations

import json
import math
import os
import platform
from html import escape
from importlib.metadata import version
from importlib.resources import files
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steadyrl.common.storage import write_atomically
from steadyrl.diagnosis.analysis import Diagnosis, Marginals
from steadyrl.diagnosis.wording import rows, steps, verdict
from steadyrl.lengths.strategies import Strategy, names_to_come

Array = NDArray[np.float64]

_AGES = 400  # ages that the page computes with; longer lengths in units of several steps
_POINTS = 240
_SPAN = 10.0  # average episode lengths shown
_SHOWN = ("nothing", "recursive-epsilon", "uniform-pre-roll", "pre-roll", "stagger")


def write_report(found: Diagnosis, path: str | os.PathLike[str], *, command: str = "") -> None:
    """Write the page, all or nothing."""
    write_atomically(path, render(found, command=command).encode())


def render(found: Diagnosis, *, command: str = "") -> str:
    """Return the page."""
    pages = files("steadyrl.diagnosis") / "page"
    style, script = ((pages / name).read_text(encoding="utf-8") for name in ("report.css", "report.js"))
    # "<" cannot occur in JSON but inside strings, where \u003c says the same and ends no script element
    data = json.dumps(_data(found), allow_nan=False).replace("<", "\\u003c").replace("\u2028", "\\u2028")
    title = escape(f"{found.environment}: is its data at steady state?")
    knob = _KNOB if found.epsilon is not None else ""
    body = f"""<h1>{title}</h1>
<p class="verdict" id="verdict">{escape(verdict(found))}</p>
<div class="do" id="code"><code>{"<br>".join(map(escape, found.code.splitlines()))}</code>{_to_come(found.code)}</div>
{"".join(f'<p class="warning">{escape(text)}</p>' for text in found.warnings)}
<div class="scroll"><table><tbody>{"".join(_row(name, text) for name, text in rows(found))}</tbody></table></div>
<h2>Episode lengths</h2>
<figure id="lengths"></figure>
<h2>Distance to the steady state</h2>
<p class="soft">Total variation between the ages of many copies and the steady ones: no distribution of states is
further off. The band around "as it is" holds the truth with {found.confidence.level:.0%}. The dashed line follows
the slider.</p>
<div class="legend" id="legend" role="group" aria-label="Curves shown"></div>
<figure id="distance"></figure>
{knob}
<h2>Ways to get there</h2>
<p class="soft">Best first. A step is one of one copy. Times are in average episode lengths, E[T] =
{found.lengths.mean:.4g}.</p>
<div class="scroll">{_table(found)}</div>
{_marginal_section(found.marginals, found.lengths.mean)}
<h2>What was run</h2>
<div class="scroll"><table><tbody>{"".join(_row(*entry) for entry in _run(found, command))}</tbody></table></div>
"""
    return _PAGE.format(title=title, style=style, body=body, data=data, script=script)


def _data(found: Diagnosis) -> dict[str, Any]:
    """What the page's script works with; no number that JSON does not have."""
    f, unit = _coarse(found.lengths.probabilities)
    mean = found.lengths.mean
    c = found.confidence
    curves = []
    for way in found.recommendation.strategies:
        curve = _curve(way, mean, found.tolerance)
        if way.name == "nothing":
            at = np.clip(np.rint(np.array(curve["x"]) * mean).astype(int), 1, len(c.distance) - 1)
            within = at < len(c.distance) - 1
            curve["low"] = np.where(within, c.distance_low[at], curve["y"]).tolist()
            curve["high"] = np.where(within, c.distance_high[at], curve["y"]).tolist()
        curves.append(curve)
    result: dict[str, Any] = {
        "mean": mean,
        "tolerance": found.tolerance,
        "epsilon": found.epsilon,
        "lengths": {"f": _short(f), "unit": unit},
        "histogram": _histogram(found.lengths.probabilities),
        "strategies": curves,
        "marginals": None if found.marginals is None else _marginal_data(found.marginals, unit, mean),
    }
    return result


def _curve(way: Strategy, mean: float, tolerance: float) -> dict[str, Any]:
    last = int(min(_SPAN * mean, len(way.distance)))
    at = np.unique(np.linspace(1, max(last, 1), _POINTS).astype(int))
    return {
        "name": way.name,
        "title": way.title,
        "hidden": way.name not in _SHOWN,
        "x": _short(at / mean),
        "y": _short(np.maximum(way.distance[at - 1], 1e-9)),
    }


def _histogram(probabilities: Array) -> dict[str, Any]:
    first = int(np.flatnonzero(probabilities)[0])
    span = len(probabilities) - first
    width = max(1, -(-span // 60))
    binned = np.add.reduceat(probabilities[first:], np.arange(0, span, width))
    return {"x": _short(first + width * np.arange(len(binned)) + (width - 1) / 2), "y": _short(binned), "width": width}


def _coarse(probabilities: Array) -> tuple[Array, int]:
    """P(T = k) in units of steps such that there are at most 400 ages."""
    unit = -(-(len(probabilities) - 1) // _AGES)
    binned: Array = np.bincount(-(-np.arange(len(probabilities)) // unit), probabilities).astype(float)
    return binned, unit


def _marginal_data(marginals: Marginals, unit: int, mean: float) -> dict[str, Any]:
    sums = marginals.sums
    ages = -(-len(sums.count) // unit)
    place = np.arange(len(sums.count)) // unit + 1
    survival = np.bincount(place, sums.count / sums.count[0] / unit, minlength=ages + 1)
    raw, changed = marginals.raw, marginals.perturbed
    dimensions = []
    for j, slow in enumerate(marginals.dimensions):
        g = np.bincount(place, sums.total[:, j] / sums.count[0] / unit, minlength=ages + 1)
        error, changed_error = (np.nan_to_num(1.645 * m.mean_error[:, j]) for m in (raw, changed))
        middle = np.where(np.isfinite(changed.mean[:, j]), changed.mean[:, j], raw.stationary_mean[j])
        dimensions.append(
            {
                "index": slow.index,
                "mean": float(raw.stationary_mean[j]),
                "raw": _short(raw.mean[:, j]),
                "low": _short(raw.mean[:, j] - error),
                "high": _short(raw.mean[:, j] + error),
                "perturbed": _short(middle),
                "perturbedLow": _short(middle - changed_error),
                "perturbedHigh": _short(middle + changed_error),
                "g": _short(g),
            }
        )
    return {"x": _short(raw.times / mean), "survival": _short(survival), "dimensions": dimensions}


def _marginal_section(marginals: Marginals | None, mean: float) -> str:
    if marginals is None:
        return '<div id="marginals" hidden></div>'
    figures = "".join(
        f'<div><p class="soft">observed value {d.index}: settles '
        f"{'not in the times shown' if math.isinf(d.settles) else f'after {escape(steps(d.settles, mean))}'}</p>"
        f'<figure id="marginal-{j}"></figure></div>'
        for j, d in enumerate(marginals.dimensions)
    )
    return f"""<h2>Means of observed values over time</h2>
<p class="soft">The slowest ones: as it is, with the paper's perturbation, and (dashed) at the slider's epsilon; bands
hold the truth with 90% at each time. Computed from single episodes, by the renewal equation.</p>
<div class="small" id="marginals">{figures}</div>"""


def _table(found: Diagnosis) -> str:
    ways, mean = found.recommendation.strategies, found.lengths.mean
    costs = max([way.one_off_cost / mean for way in ways if math.isfinite(way.one_off_cost)] + [1e-9])
    lines = []
    for way in ways:
        after, once = way.steady_after / mean, way.one_off_cost / mean
        marked = ' class="chosen"' if way is found.recommendation.chosen else ""
        note = f'<br><span class="soft">{escape(way.note)}</span>' if way.note else ""
        lines.append(
            f"<tr{marked}><td>{escape(way.title)}{note}</td>"
            + _cell("never" if math.isinf(after) else f"{after:.3g}", min(after, _SPAN) / _SPAN, "")
            + _cell("-" if math.isinf(once) else f"{once:.2g}", 0.0 if math.isinf(once) else once / costs, " waste")
            + _cell(f"{way.waste:.1%}", way.waste, " waste")
            + "</tr>"
        )
    heads = "".join(
        f'<th scope="col">{name}</th>'
        for name in ("way", "steady after, E[T]", "thrown away once, E[T]", "wasted for ever")
    )
    return f"<table id='ways'><thead><tr>{heads}</tr></thead><tbody>{''.join(lines)}</tbody></table>"


def _cell(text: str, share: float, kind: str) -> str:
    bar = f'<span class="bar{kind}" style="width:{100 * share:.1f}%"></span>' if share > 0 else ""
    return f'<td class="num">{escape(text)}{bar}</td>'


def _run(found: Diagnosis, command: str) -> list[tuple[str, str]]:
    versions = found.provenance.get("versions") or {
        "steadyrl": version("steadyrl"),
        "python": platform.python_version(),
    }
    result = [("command", command)] if command else []
    result += [
        ("episodes", f"{found.episodes:,}{_truncated(found.truncated)}"),
        ("seed", "none: read from a file" if found.seed is None else str(found.seed)),
        ("versions", ", ".join(f"{name} {number}" for name, number in sorted(versions.items()))),
    ]
    return result


def _to_come(code: str) -> str:
    names = names_to_come(code)
    return f"<p>{', '.join(names)}: not in this version of steadyrl yet.</p>" if names else ""


def _row(name: str, text: str) -> str:
    return f'<tr><th scope="row">{escape(name.strip())}</th><td>{escape(text)}</td></tr>'


def _short(values: Any) -> list[float]:
    """Six digits: no reader sees more, and the file stays small."""
    return [float(f"{value:.6g}") for value in np.asarray(values, dtype=float).ravel()]


_KNOB = """<div class="knob"><label for="epsilon">Recursive perturbation, epsilon =
<output id="epsilon-value" for="epsilon"></output></label>
<input type="range" id="epsilon" min="0" max="1000" step="1">
<div>steady after <output id="tstar" for="epsilon" aria-live="polite"></output>, null steps
<output id="null-share" for="epsilon"></output></div></div>"""

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:">
<link rel="icon" href="data:,">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<main>
{body}
</main>
<script type="application/json" id="data">{data}</script>
<script>{script}</script>
</body>
</html>
"""


def _truncated(share: float | None) -> str:
    return "" if share is None else f", of which {share:.0%} were ended by a time limit"
