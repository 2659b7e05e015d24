"""Files derived from the log: consume queues, the key index, and the dispatch that feeds both."""
