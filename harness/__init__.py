"""What both workloads share."""

import program  # noqa: F401 - before Paddle: program/__init__.py says why
