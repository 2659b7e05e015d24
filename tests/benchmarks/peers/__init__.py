"""Other brokers compared with ours, on one machine and one disk: `make bench-peers`."""
