"""Messages: as programs see them, on the wire, compressed, checked and packed as records."""
