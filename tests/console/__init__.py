"""The console through a real broker: its pages, what protects them, and a browser."""
