"""Durability: commits and syncs, the checkpoint of each kind of file, and recovery after a stop."""
