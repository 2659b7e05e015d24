"""The released mqadmin of RocketMQ 4.9 and 5, unmodified."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path
from typing import Final

import pytest

from aerobee_client import Message, connect
from aerobee_client.message_trace import MessageTraceHooks
from tests.cluster.conftest import MARKS, serve
from tests.cluster.java_program import Release, prepare
from tests.support.mqadmin_commands import COMMANDS

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
    ("sendMessage -t AdmTopic -p hello -k key1 -b aerobee -i 0", "SEND_OK"),
    ("queryMsgByOffset -t AdmTopic -b aerobee -i 0 -o 0", "OffsetID:"),
    ("printMsgByQueue -t AdmTopic -a aerobee -i 0 -p true", "queueId=0"),
    ("consumeMessage -t AdmTopic -b aerobee -i 0 -o 0 -c 1", "Consume ok"),
    ("queryCq -t AdmTopic -q 0 -i 0 -b {address}", "max: 1, min: 0"),
    ("sendMsgStatus -b aerobee -s 10 -c 2", "SEND_OK"),
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
    ("exportMetadata -c DefaultCluster -f {home}/meta", "export {home}/meta/"),
    ("exportConfigs -c DefaultCluster -f {home}/configs", "export {home}/configs/"),
    ("exportMetrics -c DefaultCluster -f {home}/metrics", "export {home}/metrics/"),
    ("deleteExpiredCommitLog -b {address}", "success"),
    ("cleanExpiredCQ -b {address}", "success"),
    ("cleanUnusedTopic -b {address}", "success"),
    ("deleteSubGroup -c DefaultCluster -g AdmGroup", "delete subscription group [AdmGroup]"),
    ("deleteTopic -c DefaultCluster -t AdmTopic", "delete topic [AdmTopic] from cluster [DefaultCluster] success."),
)
"""Each command, and a part of its expected output."""

_COMMANDS_OF_5: Final = (
    ("setConsumeMode -b {address} -t AdmTopic -g AdmGroup -m POP -q 0", "success"),
    ("haStatus -b {address}", "{address}"),
    ("updateTopicList -b {address} -f {home}/topics.json", "success"),
    ("updateSubGroupList -b {address} -f {home}/groups.json", "success"),
)
"""Commands that release 4.9 lacks. They run before the last ones, which delete."""


def test_commands_print_the_same_as_with_rocketmq(release: Release, remoting_address: str, tmp_path: Path) -> None:
    """Commands run in the listed order; at the end the last topic is deleted."""
    home = tmp_path / "files"
    home.mkdir()
    (home / "topics.json").write_text('[{"topicName":"AdmList","readQueueNums":2,"writeQueueNums":2,"perm":6}]')
    (home / "groups.json").write_text('[{"groupName":"AdmListGroup"}]')
    newer = () if release.version.startswith("4.") else _COMMANDS_OF_5
    commands = [
        (line.format(address=remoting_address, home=home), wanted.format(address=remoting_address, home=home))
        for line, wanted in (*_COMMANDS[:-2], *newer, *_COMMANDS[-2:])
    ]
    file = tmp_path / "commands"
    last = f"topicRoute -t AdmTopic -n {remoting_address}"
    file.write_text("".join(f"{line}\n" for line, _ in commands) + last + "\n")
    done = release.run(tmp_path / "home", "AdminCommands", remoting_address, str(file))
    printed = _printed(done)
    problems = []
    for line, wanted in commands:
        text = printed.get(line, "")
        if wanted not in text or "Exception" in text:
            problems.append(f"{line}: {text[:500]}")
    assert not problems, "\n".join(problems) + done.stderr[-1000:]
    assert "CODE: 17" in printed[last]


def test_every_command_does_what_the_page_says(tmp_path: Path) -> None:
    """The commands of RocketMQ 5.5 in the order of the table; docs/rocketmq.md is made from it."""
    release = prepare("5.5.0")
    named = release.run(tmp_path / "names", "AdminCommands", "-", "names").stdout.split()
    assert sorted(named) == sorted(command.name for command in COMMANDS)
    home = tmp_path / "files"
    home.mkdir()
    (home / "topics.json").write_text('[{"topicName":"AdmList","readQueueNums":2,"writeQueueNums":2,"perm":6}]')
    (home / "groups.json").write_text('[{"groupName":"AdmListGroup"}]')
    with serve(tmp_path / "store", "--dev") as line:
        address = line["remoting"]
        traced = release.run(tmp_path / "trace", "RemotingStories", address, "trace").stdout.split()
        values = {"address": address, "home": home, "id": traced[1], "offset_id": traced[2]}
        lines = {command: command.line.format(**values) for command in COMMANDS if command.line}
        file = tmp_path / "commands"
        file.write_text("".join(f"{each}\n" for each in lines.values()))
        linger = release.command(tmp_path / "client", "RemotingStories", address, "linger")
        with subprocess.Popen(linger, stdout=subprocess.PIPE, text=True) as client:
            try:
                assert client.stdout is not None
                assert client.stdout.readline() == "consuming\n"
                printed = _printed(release.run(tmp_path / "admin", "AdminCommands", address, str(file), seconds=600))
            finally:
                client.kill()
    problems = [
        f"{command.name}: {text[:500]}"
        for command, each in lines.items()
        for text in (printed.get(each, ""),)
        if command.wanted.format(**values) not in text or ("Exception" in text and not command.is_refused)
    ]
    assert not problems, "\n".join(problems)


async def _traced(endpoint: str) -> str:
    """Send a message whose trace our client writes; returns its id."""
    async with connect(endpoint) as plain:
        trace = MessageTraceHooks(plain, group="PG_ours", topic="Traces")
        async with connect(endpoint, hooks=[trace]) as client:
            sent = await client.producer().send(Message(topic="Ours", body=b"traced", keys=("ours",)))
        await trace.drain()
        return sent.message_id


def test_a_trace_of_our_client_is_shown(release: Release, tmp_path: Path) -> None:
    """In a topic of another name, without creation of topics on first use."""
    config = tmp_path / "aerobee.toml"
    config.write_text('[topics]\ntrace = true\ntrace_topic = "Traces"\n')
    with serve(tmp_path / "store", "--config", str(config)) as line:
        made = tmp_path / "made"
        made.write_text("updateTopic -c DefaultCluster -t Ours -r 1 -w 1\n")
        release.run(tmp_path / "home", "AdminCommands", line["remoting"], str(made))
        command = f"queryMsgTraceById -i {asyncio.run(_traced(line['grpc']))} -t Traces"
        file = tmp_path / "commands"
        file.write_text(f"{command}\n")
        printed = _printed(release.run(tmp_path / "home", "AdminCommands", line["remoting"], str(file)))
    assert "PG_ours" in printed[command], printed
    assert "success" in printed[command], printed


def _printed(done: subprocess.CompletedProcess[str]) -> dict[str, str]:
    """What each command printed."""
    return dict(part.split("\n", 1) for part in done.stdout.split("== ")[1:])


def test_statistics_with_object_keys_are_read(release: Release, remoting_address: str, tmp_path: Path) -> None:
    """Statistics of a topic, a group's progress and reset, the broker, and a running consumer."""
    client = subprocess.Popen(
        release.command(tmp_path / "client", "RemotingStories", remoting_address, "linger"),
        stdout=subprocess.PIPE,
        text=True,
    )
    with client as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "consuming\n"
            client_id = process.stdout.readline().strip()
            lines = {
                "topicStatus -t JavaLinger": "aerobee                           0",
                "consumerProgress -g CG_linger": "JavaLinger",
                f"consumerStatus -g CG_linger -i {client_id}": "#Consumer MQ Detail#",
                "consumerConnection -g CG_linger": client_id,
                "producerConnection -g PG_linger -t JavaLinger": "0",
                "brokerConsumeStats -b " + remoting_address: "JavaLinger",
                "updateSubGroup -c DefaultCluster -g CG_other": "success",
                "cloneGroupOffset -s CG_linger -d CG_other -t JavaLinger": "clone group offset success",
                "resetOffsetByTime -g CG_linger -t JavaLinger -s now": "aerobee",
            }
            file = tmp_path / "commands"
            file.write_text("".join(f"{line}\n" for line in lines))
            done = release.run(tmp_path / "home", "AdminCommands", remoting_address, str(file))
        finally:
            process.kill()
    printed = _printed(done)
    for line, wanted in lines.items():
        assert wanted in printed[line], line + printed[line]
        assert "Exception: " not in printed[line], line + printed[line]  # a setting's name may end like this, too


def test_the_state_of_replication(release: Release, tmp_path: Path) -> None:
    """The replication state of a master."""
    if release.version.startswith("4."):
        pytest.skip("release 4.9 has no haStatus")
    master = ("--role", "master", "--listen-replicas", "127.0.0.1:0", "--dev")
    with serve(tmp_path / "store", *master) as line:
        file = tmp_path / "commands"
        file.write_text(f"haStatus -b {line['remoting']}\n")
        done = release.run(tmp_path / "home", "AdminCommands", line["remoting"], str(file))
    assert "#MasterAddr" in done.stdout, done.stdout
    assert "#InSyncSlaveNum" in done.stdout, done.stdout
