"""Messages as bytes: one record, many records at once, their properties. Pure functions, no files."""
