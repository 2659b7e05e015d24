"""Delayed messages: delivery at their time, and recall."""
