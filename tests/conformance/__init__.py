"""The protocol's checklist as tests: items.py names all 213 items, `make conformance` prints how each one stands."""
