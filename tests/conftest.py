"""Settings for all tests."""

from hypothesis import settings

# How long one example takes says nothing on a machine that others use at the same time.
settings.register_profile("bench-runner", deadline=None, max_examples=60)
settings.load_profile("bench-runner")
