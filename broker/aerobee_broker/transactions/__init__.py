"""Half messages, their decisions, and the checks of those left open."""
