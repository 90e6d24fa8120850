"""The search for the fastest strategy and batch size."""
