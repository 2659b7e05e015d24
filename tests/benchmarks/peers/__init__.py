"""Other brokers beside ours, on one machine and one disk: `make bench-peers`."""
