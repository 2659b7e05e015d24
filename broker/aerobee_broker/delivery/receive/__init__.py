"""Receives: which messages they get, how they wait, and what becomes of messages afterwards."""
