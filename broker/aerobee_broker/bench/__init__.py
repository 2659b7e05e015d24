"""Load for `aerobee bench`, and the baselines that its figures are compared with."""
