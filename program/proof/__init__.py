"""Proof, read off a built program, that it is what was asked for."""
