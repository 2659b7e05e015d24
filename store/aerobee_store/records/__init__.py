"""Messages as bytes: single records, many records at once, their properties. Pure functions, no files."""
