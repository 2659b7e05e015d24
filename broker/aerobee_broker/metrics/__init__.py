"""What the broker counts, and the HTTP endpoint that shows it."""
