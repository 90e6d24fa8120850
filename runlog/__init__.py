"""The log of a run: what it may hold (schema), how it is written (writer), how any log is read (reader)."""
