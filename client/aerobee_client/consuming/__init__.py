"""What simple and push consumers share: sessions with brokers, one receive, and its outcomes."""
