"""MLPerf's own rules and tools, and what they say of a log."""
