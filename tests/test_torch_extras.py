"""What is missing is named, with the line that installs it."""

import importlib
import sys
from pathlib import Path

import pytest

from steadyrl.errors import MissingExtraError

EXTRAS = {"rsl_rl": "rsl-rl", "torchrl": "torchrl", "skrl": "skrl"}


@pytest.mark.parametrize("name", EXTRAS)
def test_a_stack_that_is_not_installed_is_named_with_its_extra(name, monkeypatch):
    module = f"steadyrl.integrations.torch.{name}"
    for loaded in [key for key in sys.modules if key == module or key.split(".")[0] == name]:
        monkeypatch.delitem(sys.modules, loaded)
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingExtraError, match=rf'pip install "steadyrl\[{EXTRAS[name]}\]"'):
        importlib.import_module(module)


def test_every_extra_named_is_one():
    settings = (Path(__file__).parents[1] / "pyproject.toml").read_text()
    for extra in EXTRAS.values():
        assert f"\n{extra} = [" in settings
