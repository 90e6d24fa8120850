"""What a command tells its caller when it cannot go on: ValueError for wrong use, RunError for a failed run."""


class RunError(Exception):
    """A run failed at what it was rightly asked to do; the message is one line with what, where and what to do."""
