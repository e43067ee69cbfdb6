"""Text on a terminal: whatever came from outside is shown as text and controls nothing.

Environment ids, file names, the content of files and other libraries' messages may hold escape sequences that set the
window's title or clear the screen, control characters, marks that reverse the reading direction or have no width, or
what rich would take for markup (`[bold]`, `:x:`). `clean` removes the former; a `console` made here never interprets
the latter. Styles are given as rich `Text`, never as markup.
"""

from __future__ import annotations

import io
import os
import re
import shlex
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

_SEQUENCES = re.compile(
    r"(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c\r\n]*(?:\x07|\x1b\\|\x9c)"  # titles, links, device strings
    r"|(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # colours, cursor, clearing
    r"|\x1b[ -/]*[0-~]"  # all others, two characters or a few
)
_DIRECTIONS = (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
_INVISIBLE = (  # with them, two different names look alike: soft hyphens, fillers, tags, selectors of variants, ...
    *(0x00AD, 0x034F, 0x115F, 0x1160, 0x180E, 0x200B, 0x3164, 0xFEFF, 0xFFA0),
    *range(0x2060, 0x2066),
    *range(0x206A, 0x2070),
    *range(0xFE00, 0xFE10),
    *range(0xFFF9, 0xFFFC),
    *range(0x13430, 0x13440),
    *range(0x1BCA0, 0x1BCA4),
    *range(0x1D173, 0x1D17B),
    *range(0xE0000, 0xE0200),
)
_CONTROLS = {
    code: None for code in (*range(0x20), *range(0x7F, 0xA0), *_DIRECTIONS, *_INVISIBLE) if chr(code) not in "\n\t"
}
_SEPARATORS = {0x2028: " ", 0x2029: " "}
_UNPRINTABLE = {**_CONTROLS, **_SEPARATORS}
_ESCAPED = {code: f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}" for code in _UNPRINTABLE}
_SURROGATES = re.compile("[\ud800-\udfff]")


def clean(text: object) -> str:
    r"""Return text without escape sequences and control characters; only line breaks and tabs stay.

    Bytes of a file name that are not UTF-8 become a replacement character.

    Example:
        >>> clean("\x1b]0;owned\x07CartPole\x1b[2J-v1")
        'CartPole-v1'
    """
    return _SURROGATES.sub("\ufffd", _SEQUENCES.sub("", str(text)).translate(_UNPRINTABLE))


def clean_line(text: object) -> str:
    r"""Return text as `clean` does, and on one line, so that it cannot pass for a line of ours.

    Example:
        >>> clean_line("Walk-v0\nerror: none")
        'Walk-v0 error: none'
    """
    return " ".join(clean(text).split())


def clean_code(code: str) -> str:
    r"""Return Python code with escapes in place of what `clean` removes, so that names in it stay as they are.

    Python's repr escapes control characters, but not all that is invisible: a file name may have a selector of
    variants, as most emoji do, and the code to paste without it would read another file.

    Example:
        >>> clean_code("lengths = steadyrl.load_lengths('sun\ufe0f.csv')")
        "lengths = steadyrl.load_lengths('sun\\ufe0f.csv')"
    """
    return clean(code.translate(_ESCAPED))


def clean_command(words: Iterable[str]) -> str:
    r"""Return a shell command with escapes in place of what `clean` removes, so that names in it stay as they are.

    Example:
        >>> print(clean_command(["steadyrl", "diagnose", "--from", "sun\ufe0f it's.csv", "a b.csv"]))
        steadyrl diagnose --from $'sun\ufe0f it\'s.csv' 'a b.csv'
    """
    return " ".join(shlex.quote(word) if _is_plain(word) else f"$'{_escaped(word)}'" for word in words)


def _is_plain(word: str) -> bool:
    return clean_line(f".{word}.") == f".{word}."


def _escaped(word: str) -> str:
    plain = word.replace("\\", r"\\").replace("'", r"\'").translate(_ESCAPED | {9: r"\t", 10: r"\n", 13: r"\r"})
    return _SURROGATES.sub(lambda found: f"\\x{ord(found[0]) & 0xFF:02x}", plain)


def console(*, stderr: bool = False) -> Console:
    """Return a rich console that takes strings as they are: no markup, no emoji codes, no highlighting."""
    from rich.console import Console

    return Console(stderr=stderr, markup=False, emoji=False, highlight=False)


def styled(text: object, style: str) -> Text:
    """Return cleaned text in a rich style, as in "bold red"."""
    from rich.text import Text

    return Text(clean(text), style=style)


def say(*parts: Any, stderr: bool = True) -> None:
    """Print a message, on standard error unless told otherwise: strings are cleaned, rich texts keep their style.

    It is lost if an environment has closed standard error.
    """
    from rich.text import Text

    if stderr and getattr(sys.stderr, "closed", False):
        return
    text = Text()
    for part in parts:
        text.append(part if isinstance(part, Text) else clean(part))
    console(stderr=stderr).print(text, soft_wrap=True)


def never_fail_to_print() -> None:
    """Have standard output and error write what their encoding lacks as an escape, instead of raising.

    What standard error cannot take, because its disk is full or its terminal has gone, is lost: messages are not worth
    a run. A reader that has gone still ends the program, and so does an answer that cannot be written.
    """
    try:
        number = sys.stderr.fileno()
    except (OSError, ValueError, AttributeError):  # there is none, or a test has put its own into its place
        number = -1
    if number == 2:
        raw = io.BufferedWriter(_Messages(2, "w", closefd=False))
        sys.stderr = io.TextIOWrapper(raw, encoding=sys.stderr.encoding, write_through=True)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def forget_impossible_sizes() -> None:
    """Have a terminal whose size is not given by a number of a few digits, 1 or more, be one of unknown size.

    With no columns rich prints nothing, and it cannot deal with thousands of digits or with characters such as a raised
    two, which Python takes for digits and not for numbers.
    """
    for name in ("COLUMNS", "LINES"):
        size = os.environ.get(name, "80")
        if not (size.isascii() and size.isdigit() and len(size) < 6 and int(size)):
            del os.environ[name]


class _Messages(io.FileIO):
    """Standard error, on which a write that fails is a message that is lost."""

    def write(self, content: Any) -> int:
        try:
            return super().write(content)
        except BrokenPipeError:
            raise
        except OSError:
            return len(content)
