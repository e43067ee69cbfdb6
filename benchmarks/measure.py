"""Measurements: each in a fresh process, so that none inherits another's memory, caches or warm code.

The process that starts them stays small (no numpy): on Linux a child's peak memory counts from its parent's.
"""

from __future__ import annotations

import hashlib
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PEERS_ENVIRONMENT = HERE.parent / ".venv-peers"
PEERS_PYTHON = PEERS_ENVIRONMENT / "bin" / "python"
DEADLINE = 900.0


def attempt(name: str, *arguments: Any) -> dict[str, Any]:
    """Run one task of tasks.py; if it fails, return {"failed": why}."""
    return _run([sys.executable, str(HERE / "tasks.py"), name, *map(str, arguments)])


def task(name: str, *arguments: Any) -> dict[str, Any]:
    """Run one task of tasks.py that has to succeed."""
    found = attempt(name, *arguments)
    if "failed" in found:
        raise RuntimeError(f"benchmark task {name} {arguments}: {found['failed']}")
    return found


def peer(*arguments: Any) -> Any:
    """Run peers/run.py in the peers' environment."""
    return _run([str(PEERS_PYTHON), str(HERE / "peers" / "run.py"), *map(str, arguments)])


def prepare_peers() -> str | None:
    """Build the peers' environment, unless it is there; return why it cannot be, or None."""
    requirements = HERE / "peers" / "requirements.txt"
    stamp = PEERS_ENVIRONMENT / ".installed"
    wanted = hashlib.sha256(requirements.read_bytes()).hexdigest()
    if stamp.exists() and stamp.read_text() == wanted:
        return None
    install = [str(PEERS_PYTHON), "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "-r", requirements]
    for command in ([sys.executable, "-m", "venv", str(PEERS_ENVIRONMENT)], install):
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
            return lines[-1] if lines else f"{Path(command[0]).name} ended with code {done.returncode}"
    stamp.write_text(wanted)
    return None


def _run(command: list[str]) -> Any:
    """Return what the command printed as its last line, in JSON, or {"failed": why}."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE)
    except subprocess.TimeoutExpired:
        return {"failed": f"over {DEADLINE:.0f} s"}
    if done.returncode == -signal.SIGALRM:
        return {"failed": "over 60 s"}
    if done.returncode < 0:
        return {"failed": f"ended by {signal.Signals(-done.returncode).name}"}
    if done.returncode:
        return {"failed": (done.stderr.strip().splitlines() or ["no message"])[-1][:200]}
    return json.loads(done.stdout.strip().splitlines()[-1])
