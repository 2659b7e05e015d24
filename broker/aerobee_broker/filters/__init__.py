"""Filters of consumers: tags, SQL expressions, and bitmaps of their matches."""
