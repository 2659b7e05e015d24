"""RocketMQ's JSON configuration files and their checksums."""
