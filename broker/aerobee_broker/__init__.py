"""The broker: gRPC services, delivery, and the process around the store."""
