"""What happens between stored and consumed: who has which message, for how long, and what is finished."""
