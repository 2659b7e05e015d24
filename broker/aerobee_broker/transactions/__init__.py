"""Transactional messages: half messages, decisions, and checks of undecided ones."""
