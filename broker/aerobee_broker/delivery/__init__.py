"""Delivery state between store and consumers: messages in flight, their invisible times, and finished messages."""
