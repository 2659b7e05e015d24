"""Commands that make the command line comfortable: contexts and completion."""
