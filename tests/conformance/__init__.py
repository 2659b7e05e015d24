"""The protocol's checklist as tests: items.py lists all 213 items, `make conformance` prints each one's state."""
