"""Every feature in every state of a broker: `features.py` times `states.py`."""
