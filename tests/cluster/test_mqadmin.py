"""The released mqadmin of RocketMQ 4.9, unmodified."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tests.cluster.conftest import MARKS
from tests.cluster.java_program import Release

pytestmark = MARKS

_COMMANDS: Final = (
    ("updateTopic -c DefaultCluster -t AdmTopic -r 2 -w 2", "create topic to {address} success."),
    ("topicList", "AdmTopic"),
    ("topicList -c", "DefaultCluster"),
    ("topicClusterList -t AdmTopic", "DefaultCluster"),
    ("topicRoute -t AdmTopic", '"brokerName":"aerobee"'),
    ("topicStatus -t AdmTopic", "aerobee                           1     0"),
    ("updateTopicPerm -t AdmTopic -p 4 -c DefaultCluster", "update topic perm from 6 to 4"),
    ("updateTopicPerm -t AdmTopic -p 6 -c DefaultCluster", "update topic perm from 4 to 6"),
    ("updateSubGroup -c DefaultCluster -g AdmGroup", "create subscription group to {address} success."),
    ("getConsumerConfig -g AdmGroup", "retryMaxTimes                           =  16"),
    ("clusterList", "{address}"),
    ("clusterList -m", "DefaultCluster    aerobee"),
    ("brokerStatus -b {address}", "brokerVersionDesc               : V5_3_3"),
    ("getBrokerConfig -b {address}", "brokerName"),
    ("updateBrokerConfig -b {address} -k fileReservedTime -v 48", "update broker config success"),
    ("sendMessage -t AdmTopic -p hello -k key1", "SEND_OK"),
    ("queryMsgByKey -t AdmTopic -k key1", "#Message ID"),
    ("printMsg -t AdmTopic", "minOffset=0, maxOffset=1"),
    ("consumerProgress", "#Group"),
    ("updateOrderConf -t AdmTopic -v aerobee:2 -m put", "update orderConf success."),
    ("updateOrderConf -t AdmTopic -m get", "orderConf=[aerobee:2]"),
    ("updateOrderConf -t AdmTopic -m delete", "delete orderConf success."),
    ("updateKvConfig -s space -k key -v value", "create or update kv config to namespace success."),
    ("deleteKvConfig -s space -k key", "delete kv config from namespace success."),
    ("wipeWritePerm -b aerobee", "wipe write perm of broker[aerobee]"),
    ("addWritePerm -b aerobee", "add write perm of broker[aerobee]"),
    ("getNamesrvConfig", "serverMode"),
    ("statsAll", "AdmTopic"),
    ("resetOffsetByTime -g AdmGroup -t AdmTopic -s now", "aerobee                                   0"),
    ("skipAccumulatedMessage -g AdmGroup -t AdmTopic", "aerobee                                   1"),
    ("brokerConsumeStats -b {address}", "#Topic"),
    ("cleanExpiredCQ -b {address}", "success"),
    ("cleanUnusedTopic -b {address}", "success"),
    ("deleteSubGroup -c DefaultCluster -g AdmGroup", "delete subscription group [AdmGroup]"),
    ("deleteTopic -c DefaultCluster -t AdmTopic", "delete topic [AdmTopic] from cluster [DefaultCluster] success."),
)
"""What is typed, and what must be in what it prints."""


def test_commands_print_what_they_print_with_rocketmq(release: Release, remoting_address: str, tmp_path: Path) -> None:
    """In the order in which they are listed; the last topic is gone at the end."""
    commands = [(line.format(address=remoting_address), wanted) for line, wanted in _COMMANDS]
    file = tmp_path / "commands"
    last = f"topicRoute -t AdmTopic -n {remoting_address}"
    file.write_text("".join(f"{line}\n" for line, _ in commands) + last + "\n")
    done = release.run(tmp_path / "home", "AdminCommands", remoting_address, str(file))
    printed = dict(part.split("\n", 1) for part in done.stdout.split("== ")[1:])
    problems = []
    for line, wanted in commands:
        text = printed.get(line, "")
        if wanted.format(address=remoting_address) not in text or "Exception" in text:
            problems.append(f"{line}: {text[:500]}")
    assert not problems, "\n".join(problems) + done.stderr[-1000:]
    assert "CODE: 17" in printed[last]
