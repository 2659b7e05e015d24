"""One request family each: from a valid protocol message to calls on tables, delivery and store, and back."""
