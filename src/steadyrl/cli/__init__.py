"""The command line: arguments in, function calls out, one command a module.

- `commands`: the program `steadyrl`, and how its errors are shown
- `check`, `collect`, `diagnose`, `train`, `evaluate`, `reproduce`: the commands
- `options`: what several commands take
"""

from steadyrl.cli.commands import app, main

__all__ = ["app", "main"]
