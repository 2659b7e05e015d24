"""RocketMQ's TCP protocol, which every client before RocketMQ 5, `mqadmin` and the dashboard speak."""
