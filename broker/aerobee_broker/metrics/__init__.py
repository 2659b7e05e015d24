"""The broker's counters, and the HTTP endpoint for them."""
