"""Connections to brokers: channels, addresses, cached routes, and the Telemetry stream."""
