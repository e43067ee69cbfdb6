"""No test depends on how fast the machine is, on chance, or on how the tests were started."""

import contextlib
import multiprocessing
import signal

from hypothesis import settings

settings.register_profile("steadyrl", deadline=None, derandomize=True, max_examples=60)
settings.load_profile("steadyrl")

with contextlib.suppress(ImportError):
    import torchrl  # noqa: F401, it makes "spawn" the start method of the whole process

multiprocessing.set_start_method(None, force=True)

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # so it is in the background of a script, and children inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)
