"""What every test shares: properties that find the same examples on every run and watch no clock."""

from hypothesis import settings

settings.register_profile("collbench", derandomize=True, deadline=None)
settings.load_profile("collbench")
