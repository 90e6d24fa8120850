"""A run of any workload: the job, ranks, session, loop, input and checkpoints."""

import program  # noqa: F401 - before Paddle: program/__init__.py says why
