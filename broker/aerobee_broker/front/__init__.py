"""The front end: from the bytes of connections to calls of gRPC methods, and their answers back. Knows no service."""
