"""Benchmarks, each with the physical baseline it is compared with. `make bench`; see docs/performance.md."""
