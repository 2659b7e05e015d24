"""The messages of clients: their form on the wire, their rules, and how to find one."""
