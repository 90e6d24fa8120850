"""Turns anyone's training logs into throughput, speedup and time to train."""

from runlog import interpreter

interpreter.refuse_unfit("scoring")
