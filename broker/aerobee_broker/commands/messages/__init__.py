"""Commands for messages: `send`, `receive`, `browse`, `tail` and `query`."""
