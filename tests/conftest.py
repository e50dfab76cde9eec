"""What every test shares: properties that find the same examples on every run and watch no clock."""

import signal

from hypothesis import settings

settings.register_profile("collbench", derandomize=True, deadline=None)
settings.load_profile("collbench")

# A test run in the background (nohup, some CI runners) has SIGINT or SIGHUP ignored, and so would every program that it
# starts: the tests of Ctrl-C and of a closed terminal would wait for ever. What is not ignored here, is not there.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
