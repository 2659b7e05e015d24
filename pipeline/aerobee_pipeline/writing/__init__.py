"""What a query writes: rows encoded as records and appended to topics."""
