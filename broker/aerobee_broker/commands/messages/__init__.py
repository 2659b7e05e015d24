"""Commands that show messages without receiving them: `aerobee browse` and `aerobee tail`."""
