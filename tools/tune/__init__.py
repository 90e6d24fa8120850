"""Search for the fastest strategy of a machine, by the command of a real run."""
