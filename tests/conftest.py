"""Settings for all tests."""

import signal

from hypothesis import settings

# How long one example takes says nothing on a machine that others use at the same time.
settings.register_profile("bench-runner", deadline=None, max_examples=60)
settings.load_profile("bench-runner")

# A shell's background job, and what nohup starts, ignores interrupts, and so would all that the tests interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)
