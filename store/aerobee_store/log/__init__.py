"""The commit log: its segments, how bytes are written to them, how they are scanned."""
