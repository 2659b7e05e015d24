"""The front end: turns the bytes of connections into calls of gRPC methods, and their answers into bytes. It does not
depend on any service."""
