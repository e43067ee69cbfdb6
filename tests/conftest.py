"""Property tests draw the same examples everywhere, and no test depends on how fast the machine is."""

from hypothesis import settings

settings.register_profile("steadyrl", deadline=None, derandomize=True, max_examples=60)
settings.load_profile("steadyrl")
