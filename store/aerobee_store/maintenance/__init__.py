"""Background work on the store: scrubbing, and the repair of queue units."""
