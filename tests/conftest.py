"""Property tests draw the same examples everywhere, and no test depends on how fast the machine is."""

import contextlib
import multiprocessing

from hypothesis import settings

settings.register_profile("steadyrl", deadline=None, derandomize=True, max_examples=60)
settings.load_profile("steadyrl")

with contextlib.suppress(ImportError):
    import torchrl  # noqa: F401, it makes "spawn" the start method of the whole process

multiprocessing.set_start_method(None, force=True)
