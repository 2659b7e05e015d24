"""The gRPC surface: one line a method; errors become status codes here and nowhere else."""
