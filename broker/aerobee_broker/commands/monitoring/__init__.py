"""Commands that watch a broker: `aerobee top` for people, `aerobee check` for monitoring."""
