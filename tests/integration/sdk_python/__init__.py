"""Programs with the official Python SDK; see tests/support/sdk_program.py for how a test talks to them."""
