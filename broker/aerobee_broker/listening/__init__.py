"""The ports of the broker, their certificates, and the addresses that clients are told."""
