"""RocketMQ's name server: the brokers, and the queues of each topic on them."""
