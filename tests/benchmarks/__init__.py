"""Benchmarks, each beside the physical yardstick it is compared with. `make bench`; see docs/performance.md."""
