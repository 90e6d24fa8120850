"""The official MLPerf rules and tools, and what they say of a log."""
