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
from steadyrl.common.terminal import clean, clean_code, clean_line
from steadyrl.diagnosis import wording
from steadyrl.diagnosis.logged_bias import logged_bias, logged_bias_text
from steadyrl.diagnosis.observed import Marginals
from steadyrl.diagnosis.result import Diagnosis
from steadyrl.lengths.anytime import least_distance
from steadyrl.lengths.distance_bands import FEW_EPISODES
from steadyrl.lengths.strategies import Strategy

Array = NDArray[np.float64]

_AGES = 400  # ages that the page computes with; longer lengths in units of several steps
_POINTS = 240
_SPAN = 10.0  # average episode lengths shown
_SHOWN = ("nothing", "uniform-pre-roll", "pre-roll", "stagger", "anytime")
_PAPER_SHOWN = ("nothing", "recursive-epsilon")


def write_report(found: Diagnosis, path: str | os.PathLike[str], *, command: str = "") -> None:
    """Write the page, all or nothing."""
    write_atomically(path, render(found, command=command).encode())


def render(found: Diagnosis, *, command: str = "") -> str:
    """Return the page."""
    pages = files("steadyrl.diagnosis") / "page"
    style, script = ((pages / name).read_text(encoding="utf-8") for name in ("report.css", "report.js"))
    # "<" cannot occur in JSON but inside strings, where \u003c says the same and ends no script element
    data = json.dumps(_data(found), allow_nan=False).replace("<", "\\u003c").replace("\u2028", "\\u2028")
    title = escape(f"{clean_line(found.environment)}: is its data at steady state?")
    hint = f'<p class="soft">{escape(wording.POLICY_HINT)}</p>' if wording.is_random(found) else ""
    elsewhere = f'<p class="soft">{escape(wording.in_sb3(found))}</p>' if wording.in_sb3(found) else ""
    selection = f'<p id="selection">{escape(clean(found.selection))}</p>' if found.selection else ""
    body = f"""<h1>{title}</h1>
<p class="soft">{escape(wording.WHY)}</p>
<p class="verdict" id="verdict">{escape(clean(wording.verdict(found)))}</p>
{selection}
<div class="do" id="code"><code>{"<br>".join(map(escape, map(clean_code, found.code.splitlines())))}</code></div>
{elsewhere}
{"".join(f'<p class="warning">{escape(clean(text))}</p>' for text in found.warnings)}
{hint}
{_rows(wording.rows(found) + ([("how sure", wording.how_sure(found))] if found.enough else []))}
<p class="soft">{escape(wording.MONITOR)}</p>
{f'<p class="soft" id="ages">{escape(wording.seen_ages_text(found))}</p>' if found.seen_ages and found.enough else ""}
<h2>Episode lengths</h2>
<figure id="lengths"></figure>
{_curves(found) if found.enough else ""}
<h2>What was run</h2>
{_rows(_run(found, command))}
"""
    return _PAGE.format(title=title, style=style, body=body, data=data, script=script)


def _curves(found: Diagnosis) -> str:
    """Return the sections on strategies and observed values, and what only readers of the paper need."""
    few = found.confidence.episodes < FEW_EPISODES
    early = f"; before one mean episode length it is too narrow, since {found.confidence.episodes} episodes are few"
    return f"""<h2>How far batches are from the long run</h2>
<p class="soft">Total variation between the ages (steps since the last reset) of many environments and those of the long
run: an upper bound on the distance of the state distribution. The band around "as it is" holds the truth with
{found.confidence.level:.0%}{early if few else ""}. The shaded region is out of reach for every strategy
that starts with a reset and throws nothing away: no environment can be older than the time since then.</p>
<div class="legend" id="legend" role="group" aria-label="Curves shown"></div>
<figure id="distance"></figure>
<h2>Strategies</h2>
<p class="soft">{escape(wording.RANKING)} Times are in mean episode lengths ({found.lengths.mean:.4g} steps, the reset
included), for one environment.</p>
<div class="scroll">{_table(found, wording.strategies(found, paper=False))}</div>
{_log_section(found)}
{_marginal_section(found.marginals, found.lengths.mean)}
{_paper_section(found) if found.epsilon is not None else ""}"""


def _log_section(found: Diagnosis) -> str:
    curves = logged_bias(found.lengths)
    if curves is None:
        return ""
    text = escape(logged_bias_text(curves))
    return f'<h2>What your log will show</h2>\n<p class="soft">{text}</p>\n<figure id="log"></figure>'


def _paper_section(found: Diagnosis) -> str:
    """Return the part for readers of the paper: E[T], the perturbation, the slider for epsilon."""
    figures, ways = "", found.recommendation.strategies
    if found.marginals is not None:
        figures = "".join(
            f'<div><p class="soft">observed value {d.index}</p><figure id="paper-marginal-{j}"></figure></div>'
            for j, d in enumerate(found.marginals.dimensions)
        )
    return f"""<section id="paper"><h2>In the paper's terms</h2>
<p class="soft">The paper perturbs every episode start by a detour through a null state, whose steps are thrown away.
T is Gymnasium's length + 1, and E[T] the average episode length.</p>
{_rows(wording.paper_rows(found))}
<div class="scroll">{_table(found, [way for way in ways if way.name in wording.PAPER_STRATEGIES])}</div>
<p class="soft">Distance as it is, with the paper's epsilon, and (dashed) with the slider's.</p>
<figure id="paper-distance"></figure>
{_KNOB}
<div class="small" id="paper-marginals">{figures}</div></section>"""


def _rows(entries: list[tuple[str, str]]) -> str:
    lines = "".join(_row(name, text) for name, text in entries)
    return f'<div class="scroll"><table><tbody>{lines}</tbody></table></div>'


def _data(found: Diagnosis) -> dict[str, Any]:
    """Return what the page's script works with, without numbers that JSON lacks."""
    f, unit = _coarse(found.lengths.probabilities)
    mean = found.lengths.mean
    c = found.confidence
    curves = []
    for way in found.recommendation.strategies:
        curve = _curve(way, mean)
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
        "bound": _bound(found),
        "log": logged_bias(found.lengths),
        "marginals": None if found.marginals is None else _marginal_data(found.marginals, unit, mean),
    }
    return result


def _bound(found: Diagnosis) -> dict[str, list[float]]:
    """Return P(A > t), below which no strategy can be that starts with a reset and throws nothing away."""
    mean = found.lengths.mean
    at = np.unique(np.linspace(1, max(int(_SPAN * mean), 1), _POINTS).astype(int))
    return {"x": _short(at / mean), "y": _short(least_distance(found.lengths, int(at[-1]))[at - 1])}


def _curve(way: Strategy, mean: float) -> dict[str, Any]:
    last = int(min(_SPAN * mean, len(way.distance)))
    at = np.unique(np.linspace(1, max(last, 1), _POINTS).astype(int))
    return {
        "name": way.name,
        "title": way.title,
        "hidden": way.name not in _SHOWN,
        "paper": way.name in wording.PAPER_STRATEGIES,
        "beside": way.name in _PAPER_SHOWN,
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
    """Return P(T = k) in units of as many steps as leave at most 400 ages, and the unit."""
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
        f'<div><p class="soft">observed value {d.index}: {escape(wording.settling(d, mean))}</p>'
        f'<figure id="marginal-{j}"></figure></div>'
        for j, d in enumerate(marginals.dimensions)
    )
    return f"""<h2>Means of observed values over time</h2>
<p class="soft">The values whose means settle last, if nothing is done; bands hold the truth with 90% at each time. They
are computed from single episodes, by the renewal equation.</p>
<div class="small" id="marginals">{figures}</div>"""


def _table(found: Diagnosis, ways: list[Strategy]) -> str:
    mean = found.lengths.mean
    costs = max([way.one_off_cost / mean for way in ways if math.isfinite(way.one_off_cost)] + [1e-9])
    lines = []
    for way in ways:
        after, once = wording.steady_after(found, way) / mean, way.one_off_cost / mean
        fair, thrown, wasted = wording.strategy_cells(found, way)
        marked = ' class="chosen"' if way is found.recommendation.chosen else ""
        note = f'<br><span class="soft">{escape(way.note)}</span>' if way.note else ""
        lines.append(
            f"<tr{marked}><td>{escape(way.title)}{note}</td>"
            + _cell(fair, min(after, _SPAN) / _SPAN, "")
            + _cell(thrown, 0.0 if math.isinf(once) else once / costs, " waste")
            + _cell(wasted, way.waste, " waste")
            + "</tr>"
        )
    within = f"within {100 * found.tolerance:g}% after"
    heads = "".join(
        f'<th scope="col">{name}</th>' for name in ("strategy", within, "thrown away once", "thrown away for ever")
    )
    return f"<table><thead><tr>{heads}</tr></thead><tbody>{''.join(lines)}</tbody></table>"


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
        ("episodes", f"{found.episodes:,}{wording.truncated_text(found)}"),
        ("seed", "none: read from a file" if found.seed is None else str(found.seed)),
        ("versions", ", ".join(f"{name} {number}" for name, number in sorted(versions.items()))),
    ]
    return result


def _row(name: str, text: str) -> str:
    return f'<tr><th scope="row">{escape(clean(name.strip()))}</th><td>{escape(clean(text))}</td></tr>'


def _short(values: Any) -> list[float]:
    """Return numbers with six digits: no reader sees more, and the file stays small."""
    return [float(f"{value:.6g}") for value in np.asarray(values, dtype=float).ravel()]


_KNOB = """<div class="knob"><label for="epsilon">Recursive perturbation, epsilon =
<output id="epsilon-value" for="epsilon"></output></label>
<input type="range" id="epsilon" min="0" max="1000" step="1">
<div>within the tolerance after <output id="tstar" for="epsilon" aria-live="polite"></output>, null steps
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
