"""Topics as tables of Delta Lake and Iceberg: where they are, what a commit has, how bodies become columns."""
