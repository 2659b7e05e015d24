"""Replication: a master sends its log to replicas, and a replica follows a master. Either side may be RocketMQ."""
