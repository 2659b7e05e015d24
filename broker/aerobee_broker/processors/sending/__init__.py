"""SendMessage: one message, many, and the fast paths for common layouts."""
