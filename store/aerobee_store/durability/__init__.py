"""When bytes are on disk, how far each file is known to be, and recovery after a stop."""
