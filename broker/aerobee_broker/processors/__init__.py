"""One module for each family of requests: from a valid protocol message to calls on tables, delivery and store, and
back."""
