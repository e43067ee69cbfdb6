"""These tests run in a virtual environment of their own, which `make test` builds: JAX, and what is built on it."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
