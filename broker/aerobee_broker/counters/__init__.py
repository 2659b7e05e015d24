"""Counters as plain numbers, and their text form. Every part counts here; `metrics` shows them."""
