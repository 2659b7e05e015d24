"""RocketMQ's timer files: wheel, log and checkpoint."""
