"""Background work on the store: retention, scrubbing, removal of topics."""
