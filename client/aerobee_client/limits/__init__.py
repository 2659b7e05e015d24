"""Limits of what a client keeps in memory."""
