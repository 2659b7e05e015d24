"""The topics that clients and tools of RocketMQ expect of every broker.

They are in the routes from the start, and in the table of topics once a message is sent to one. Otherwise every store
would begin with topics that hardly anybody uses.
"""

from __future__ import annotations

from aerobee_broker.config import BrokerConfig
from aerobee_broker.tables.topics import TEMPLATE_TOPIC, Permission, TopicConfig

_CLUSTER_QUEUES = 16
_BENCHMARK_QUEUES = 1024


def predefined_topics(config: BrokerConfig) -> dict[str, TopicConfig]:
    """The topics, by name, with RocketMQ's numbers of queues.

    `createTopic(key)` of clients looks for the brokers of the topic `key`, usually the cluster's name.
    """
    template = Permission.READ_WRITE | Permission.INHERIT
    found = [
        _topic("BenchmarkTest", _BENCHMARK_QUEUES, Permission.READ_WRITE),
        _topic(config.cluster, _CLUSTER_QUEUES, template),
        _topic(f"{config.cluster}_REPLY_TOPIC", 1, Permission.READ_WRITE),
    ]
    if config.name != config.cluster:
        found.append(_topic(config.name, 1, template))
    if config.auto_create_topics:
        found.append(_topic(TEMPLATE_TOPIC, config.topics.queue_count, template))
    if config.topics.trace or config.auto_create_topics:
        found.append(_topic(config.topics.trace_topic, 1, Permission.READ_WRITE))
    return {topic.name: topic for topic in found}


def _topic(name: str, queue_count: int, permission: Permission) -> TopicConfig:
    return TopicConfig(name=name, read_queue_count=queue_count, write_queue_count=queue_count, permission=permission)
