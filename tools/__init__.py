"""What an operator calls: doctor, inspect, tune, watch, acceptance."""

import program  # noqa: F401 - before Paddle: program/__init__.py says why
