"""Turns anyone's training logs into throughput, speedup and time to train."""
