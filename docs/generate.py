"""What the site draws and writes itself: the pictures of the concepts, and the reference from docstrings."""

import importlib
import inspect
import re
import textwrap
from pathlib import Path

import numpy as np

import steadyrl
from steadyrl.common.figures import PERTURBED, QUIET, RAW, new_figure, save_figure

COPIES, STEPS = 24, 120
GUIDES = ("diagnose", "cures", "league", "sspg", "rollouts", "scaling")
"""Pages of the section Guides, in order; further pages come after them."""
ELSEWHERE = ("index", "start", "concepts", "questions", "theory")


def guides(folder: Path) -> None:
    """Write the table of contents of the guides: those that there are."""
    found = [path.stem for path in sorted(folder.glob("*.md")) if path.stem not in ELSEWHERE]
    order = [name for name in GUIDES if name in found] + [name for name in found if name not in GUIDES]
    _write(folder / "generated" / "guides.md", ["```{toctree}", ":hidden:", ":caption: Guides", "", *order, "```"])


def pictures(folder: Path) -> None:
    """Draw the pictures of the concepts."""
    import matplotlib

    folder.mkdir(exist_ok=True)
    for name, draw in {"loop": _loop, "phase": _phase, "length": _length, "distance": _distance}.items():
        with matplotlib.rc_context({"svg.hashsalt": name, "svg.fonttype": "none", "font.size": 9.0}):
            save_figure(draw(), folder / f"{name}.svg", ".svg")


def _lengths() -> steadyrl.EpisodeLengths:
    """About 20 steps, give or take 2: much like Bullet's Humanoid under a random policy."""
    k = np.arange(60)
    weights = np.exp(-0.5 * ((k - 20) / 2) ** 2)
    weights[0] = 0.0
    return steadyrl.EpisodeLengths(weights / weights.sum())


def _ages(delays: np.ndarray, lengths: steadyrl.EpisodeLengths, steps: int, seed: int) -> np.ndarray:
    """The age of each copy over time, if its first episode is cut after its delay (0: not at all)."""
    rng = np.random.default_rng(seed)
    drawn = rng.choice(len(lengths.probabilities), (len(delays), steps), p=lengths.probabilities)
    result = np.zeros((len(delays), steps))
    for copy, delay in enumerate(delays):
        age, episode, left = 0, 0, int(drawn[copy, 0])
        for t in range(steps):
            age += 1
            result[copy, t] = age
            if age >= left or (delay and t + 1 == delay):
                episode, age = episode + 1, 0
                left = int(drawn[copy, episode])
    return result


def _loop():
    """One copy: its age over time, episode after episode."""
    figure, [axes] = new_figure(size=(8.0, 2.4))
    ages = _ages(np.zeros(1), _lengths(), 90, 3)[0]
    axes.plot(np.arange(1, 91), ages, color=PERTURBED, marker=".", markersize=4, linewidth=0.8)
    ends = np.flatnonzero(np.append(np.diff(ages) < 0, False))
    axes.plot(ends + 1, ages[ends], "o", color=RAW, markersize=6, label="terminal state; the next step is the reset")
    axes.set_xlabel("time t, steps")
    axes.set_ylabel("age in the episode")
    axes.set_ylim(0, 32)
    axes.legend(frameon=False, loc="upper right")
    return figure


def _phase():
    """Many copies: rows are copies, colour is age; in step as they are, and staggered."""
    figure, axes = new_figure(1, 2, (10.0, 3.2))
    lengths = _lengths()
    designed = steadyrl.design_delays(lengths).draw(COPIES, rng=np.random.default_rng(1))
    for axis, delays, title in (
        (axes[0], np.zeros(COPIES), "reset together: in step"),
        (axes[1], designed, "staggered"),
    ):
        axis.imshow(_ages(delays, lengths, STEPS, 2), aspect="auto", cmap="viridis", interpolation="nearest")
        axis.set_title(f"{title} (colour: age)", fontsize=9)
        axis.set_xlabel("time t, steps")
        axis.grid(False)
    axes[0].set_ylabel("copy")
    return figure


def _length():
    """Lengths of episodes, their mean, and the ages at steady state."""
    figure, axes = new_figure(1, 2, (9.0, 2.8))
    lengths = _lengths()
    k = np.arange(lengths.longest + 1)
    axes[0].bar(k, lengths.probabilities, color=PERTURBED)
    axes[0].axvline(lengths.mean, color=RAW, linestyle="--")
    axes[0].set_title(f"episode length T; dashed: AEL = E[T] = {lengths.mean:.3g}", fontsize=9)
    axes[1].bar(k[1:], lengths.survival[1:] / lengths.mean, color=PERTURBED)
    axes[1].set_title("age at steady state: P(T >= k) / E[T]", fontsize=9)
    for axis in axes:
        axis.set_xlim(0, 32)
        axis.set_xlabel("steps")
    return figure


def _distance():
    """The distance of many copies' ages from the steady ones over time."""
    figure, [axes] = new_figure(size=(8.0, 3.2))
    lengths = _lengths()
    steps = int(30 * lengths.mean)
    paper = steadyrl.Perturbation.for_average_episode_length(lengths.mean)
    time = np.arange(steps + 1) / lengths.mean
    axes.plot(time, steadyrl.phase_distance(lengths, steps), color=RAW, label="as it is")
    axes.plot(
        time,
        np.maximum(steadyrl.phase_distance(lengths, steps, paper), 1e-5),
        color=PERTURBED,
        label="perturbed starts",
    )
    axes.axhline(0.01, color=QUIET, linestyle="--", linewidth=0.8)
    axes.set_yscale("log")
    axes.set_ylim(1e-4, 1.5)
    axes.set_xlim(0, 30)
    axes.set_xlabel("time in average episode lengths, t / E[T]")
    axes.set_ylabel("distance to steady state")
    axes.legend(frameon=False)
    return figure


def reference(folder: Path) -> None:
    """Write a page for each module with public names, from its docstrings, and an index."""
    folder.mkdir(exist_ok=True)
    pages = {}
    for name in steadyrl.__all__:
        thing = getattr(steadyrl, name)
        module = name if inspect.ismodule(thing) else thing.__module__.removeprefix("steadyrl.")
        pages.setdefault(module, []).append((name, thing))
    for module, things in pages.items():
        source = importlib.import_module(f"steadyrl.{module}")
        lines = [f"# {module}", "", *_text(inspect.getdoc(source) or "")]
        for name, thing in things:
            if inspect.ismodule(thing):
                inside = [(n, t) for n, t in vars(thing).items() if not n.startswith("_") and _own(thing, t)]
                for inner, value in inside:
                    lines += _entry(f"{name}.{inner}", value)
            else:
                lines += _entry(name, thing)
        _write(folder / f"{module.replace('.', '-')}.md", lines)
    names = sorted(pages)
    index = ["# Reference", "", "Every public name, by the module that defines it; all are in `steadyrl`.", ""]
    index += ["| module | names |", "|---|---|"]
    for module in names:
        listed = ", ".join(f"`{name}`" for name, _ in pages[module])
        index.append(f"| [{module}]({module.replace('.', '-')}.md) | {listed} |")
    index += ["", "```{toctree}", ":hidden:", "", *(module.replace(".", "-") for module in names), "```"]
    _write(folder / "index.md", index)


def _own(module, value) -> bool:
    return (inspect.isfunction(value) or inspect.isclass(value)) and value.__module__ == module.__name__


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

    document(EXPERIMENTS, results, Path(__file__).parent / "reproduction")


if __name__ == "__main__":
    import sys

    reproduction(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "reproduction")
