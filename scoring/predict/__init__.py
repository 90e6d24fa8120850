"""Throughput and time to train at node counts that are not at hand."""
