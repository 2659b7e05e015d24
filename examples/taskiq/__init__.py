"""Tasks with taskiq on a broker."""
