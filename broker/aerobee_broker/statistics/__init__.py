"""Traffic over time, for the statistics of operators."""
