"""RocketMQ's name server: which brokers there are, and which of them have the queues of a topic."""
