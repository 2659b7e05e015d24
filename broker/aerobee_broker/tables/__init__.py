"""Topics, consumer groups and consumer offsets, in RocketMQ's files."""
