"""Load for `aerobee bench`, and the yardsticks to hold its figures against."""
