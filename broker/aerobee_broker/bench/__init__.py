"""Load for `aerobee bench`, and the baselines with which its figures are compared."""
