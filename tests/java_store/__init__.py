"""Apache RocketMQ's released store and ours on the same directories. `make test-java-store` runs it."""
