"""The commit log: its segments, the write modes, and the scan for damage."""
