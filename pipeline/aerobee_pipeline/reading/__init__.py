"""What a query reads: the records of a log or of queues, decoded into columns."""
