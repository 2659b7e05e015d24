"""Limits of memory and of time on the event loop."""
