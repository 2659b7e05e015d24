"""The only modules that touch the operating system's files."""
