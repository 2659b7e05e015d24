"""The options and the output that all commands share."""
