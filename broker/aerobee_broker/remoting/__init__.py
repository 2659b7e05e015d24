"""RocketMQ's TCP protocol, used by clients before RocketMQ 5, `mqadmin` and the dashboard."""
