"""The gRPC services: one line per method. Errors become status codes here and nowhere else."""
