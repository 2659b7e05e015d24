"""Every command of RocketMQ 5.5's mqadmin: one invocation, a part of what it prints here, and how that differs.

`tests/cluster/test_mqadmin.py` runs the invocations against a broker; `tests/support/rocketmq_page.py` makes a page of
the table. A refused command prints the code and the words of the answer.
"""

from __future__ import annotations

from typing import Final, NamedTuple

UNSUPPORTED: Final = "request type {} not supported"


class Command(NamedTuple):
    """One command. `line` is empty for a command that has no end; `differs` is empty if it does as with RocketMQ."""

    name: str
    line: str
    wanted: str
    differs: str = ""
    is_refused: bool = False


def _refused(name: str, arguments: str, code: int, instead: str) -> Command:
    return Command(name, f"{name} {arguments}", UNSUPPORTED.format(code), instead, is_refused=True)


_ACCOUNTS: Final = "accounts are in a file: [security.md](security.md)"
_LEASE: Final = (
    "there is no controller: a lease in etcd or Kubernetes chooses the master, see [replication.md](replication.md)"
)
_NO_COLD: Final = "reads of old messages are not throttled"
_NO_ROCKSDB: Final = "there is no RocksDB: settings and queues are files"
_LITE: Final = (
    "`aerobee topic describe`, `aerobee group lag` and `aerobee client list` show lite topics and their clients"
)
_NO_NEED: Final = "answers success and does nothing: what has expired is removed within seconds by itself"

COMMANDS: Final = (
    Command("updateTopic", "updateTopic -c DefaultCluster -t T -r 2 -w 2 -a +message.type=NORMAL", "success"),
    Command("updateTopicList", "updateTopicList -b {address} -f {home}/topics.json", "success"),
    Command("updateSubGroup", "updateSubGroup -c DefaultCluster -g G", "success"),
    Command("updateSubGroupList", "updateSubGroupList -b {address} -f {home}/groups.json", "success"),
    Command("setConsumeMode", "setConsumeMode -b {address} -t T -g G -m PULL -q 0", "success"),
    Command(
        "updateBrokerConfig",
        "updateBrokerConfig -b {address} -k fileReservedTime -v 48",
        "success",
        "changes the settings that may change at run time; every other key is refused by name",
    ),
    Command("updateTopicPerm", "updateTopicPerm -t T -p 6 -c DefaultCluster", "update topic perm"),
    Command("topicRoute", "topicRoute -t T", '"brokerName":"aerobee"'),
    Command("topicStatus", "topicStatus -t T", "Topic Put TPS"),
    Command("topicClusterList", "topicClusterList -t T", "DefaultCluster"),
    _refused("addBroker", "-c {address} -b /none", 902, "there are no containers: start a broker for each store"),
    _refused("removeBroker", "-c {address} -b c:b:0", 903, "there are no containers: stop the broker"),
    _refused("resetMasterFlushOffset", "-b {address} -o 0", 908, "a replica learns the master's offset by itself"),
    Command(
        "brokerStatus",
        "brokerStatus -b {address}",
        "brokerVersionDesc",
        "figures of thread pools, page cache locks and of times spent in the store are 0: there are no such parts",
    ),
    Command("sendMessage", "sendMessage -t T -p hello -k key1 -b aerobee -i 0", "SEND_OK"),
    Command("queryMsgByKey", "queryMsgByKey -t T -k key1", "#Message ID"),
    Command("queryMsgByOffset", "queryMsgByOffset -t T -b aerobee -i 0 -o 0", "OffsetID:"),
    Command("queryMsgById", "queryMsgById -t JavaTrace -i {offset_id}", "OffsetID:"),
    Command("queryMsgByUniqueKey", "queryMsgByUniqueKey -t JavaTrace -i {id}", "{id}"),
    Command("queryMsgTraceById", "queryMsgTraceById -i {id}", "CG_trace"),
    Command("printMsg", "printMsg -t T -d true", "minOffset=0, maxOffset=1"),
    Command("printMsgByQueue", "printMsgByQueue -t T -a aerobee -i 0 -p true", "queueId=0"),
    Command("sendMsgStatus", "sendMsgStatus -b aerobee -s 10 -c 2", "SEND_OK"),
    Command("brokerConsumeStats", "brokerConsumeStats -b {address}", "JavaLinger"),
    Command("producerConnection", "producerConnection -g PG_linger -t JavaLinger", "V5_5_0"),
    Command("consumerConnection", "consumerConnection -g CG_linger", "CONSUME_PASSIVELY"),
    Command("consumerProgress", "consumerProgress -g CG_linger", "JavaLinger"),
    Command("consumerStatus", "consumerStatus -g CG_linger", "Rebalance OK"),
    Command(
        "cloneGroupOffset", "cloneGroupOffset -s CG_linger -d G -t JavaLinger -o true", "clone group offset success"
    ),
    Command("producer", "producer -b {address}", "PG_linger"),
    Command("clusterList", "clusterList -m", "DefaultCluster    aerobee"),
    Command("topicList", "topicList", "DefaultCluster"),
    Command("updateKvConfig", "updateKvConfig -s space -k key -v value", "success"),
    Command("deleteKvConfig", "deleteKvConfig -s space -k key", "success"),
    Command("wipeWritePerm", "wipeWritePerm -b aerobee", "wipe write perm of broker[aerobee]"),
    Command("addWritePerm", "addWritePerm -b aerobee", "add write perm of broker[aerobee]"),
    Command("resetOffsetByTime", "resetOffsetByTime -g CG_linger -t JavaLinger -s now", "aerobee"),
    Command("skipAccumulatedMessage", "skipAccumulatedMessage -g CG_linger -t JavaLinger", "aerobee"),
    Command("updateOrderConf", "updateOrderConf -t T -v aerobee:2 -m put", "update orderConf success"),
    Command("cleanExpiredCQ", "cleanExpiredCQ -b {address}", "success", _NO_NEED),
    Command("deleteExpiredCommitLog", "deleteExpiredCommitLog -b {address}", "success", _NO_NEED),
    Command("cleanUnusedTopic", "cleanUnusedTopic -b {address}", "success", _NO_NEED),
    Command("startMonitoring", "", "", "not run by the test: it has no end. It asks for what consumerProgress asks"),
    Command("statsAll", "statsAll -t T", "#Topic"),
    Command("allocateMQ", "allocateMQ -t T -i 127.0.0.1", '"queueId":1'),
    Command("checkMsgSendRT", "checkMsgSendRT -t T -a 2 -s 16", "Avg RT"),
    Command("clusterRT", "", "", "not run by the test: it has no end. It sends to the topic of each broker's name"),
    Command("getNamesrvConfig", "getNamesrvConfig", "serverMode"),
    Command(
        "updateNamesrvConfig",
        "updateNamesrvConfig -k a -v b",
        "settings of this name server cannot be changed over the network",
        "change the command line of `aerobee namesrv` and start it again",
        is_refused=True,
    ),
    Command(
        "getBrokerConfig",
        "getBrokerConfig -b {address}",
        "brokerName",
        "prints Aerobee's settings by their names, and those of RocketMQ's that tools read",
    ),
    Command("getConsumerConfig", "getConsumerConfig -g G", "retryMaxTimes"),
    Command("queryCq", "queryCq -t T -q 0 -i 0 -b {address}", "Queue data"),
    Command("consumeMessage", "consumeMessage -t T -b aerobee -i 0 -o 0 -c 1", "Consume ok"),
    _refused("updateStaticTopic", "-b aerobee -t Static -qn 2", 513, "there are no static topics: create a topic"),
    Command(
        "remappingStaticTopic",
        "remappingStaticTopic -b aerobee -t Static",
        "No topic route to do the remapping",
        "there are no static topics, so the tool finds nothing to map",
        is_refused=True,
    ),
    Command("exportMetadata", "exportMetadata -c DefaultCluster -f {home}/meta", "success"),
    Command("exportConfigs", "exportConfigs -c DefaultCluster -f {home}/configs", "success"),
    Command("exportMetrics", "exportMetrics -c DefaultCluster -f {home}/metrics", "success"),
    Command(
        "exportMetadataInRocksDB",
        "exportMetadataInRocksDB -p {home} -t topics -j true",
        "RocksDB load error",
        f"reads files of RocksDB without a broker; {_NO_ROCKSDB}",
        is_refused=True,
    ),
    _refused("exportPopRecord", "-b {address} -d true", 200056, "the state of consumption is a journal in the log"),
    Command("haStatus", "haStatus -b {address}", "#MasterAddr"),
    _refused("getSyncStateSet", "-a {address} -b aerobee", 1005, _LEASE),
    _refused("getBrokerEpoch", "-b aerobee", 1007, f"without a lease a broker has no epochs; {_LEASE}"),
    _refused("getControllerMetaData", "-a {address}", 1005, _LEASE),
    _refused("getControllerConfig", "-a {address}", 1010, _LEASE),
    _refused("updateControllerConfig", "-a {address} -k a -v b", 1009, _LEASE),
    _refused(
        "electMaster", "-a {address} -b 1 -bn aerobee -c DefaultCluster", 1005, "`aerobee promote` at the replica"
    ),
    _refused("cleanBrokerMetadata", "-a {address} -bn aerobee -c DefaultCluster", 1005, _LEASE),
    Command(
        "dumpCompactionLog",
        "dumpCompactionLog -f {home}/none",
        "not exist",
        "reads a file without a broker; topics are not compacted",
        is_refused=True,
    ),
    _refused("getColdDataFlowCtrInfo", "-b {address}", 2003, _NO_COLD),
    _refused("updateColdDataFlowCtrGroupConfig", "-b {address} -g G -v 1", 2001, _NO_COLD),
    _refused("removeColdDataFlowCtrGroupConfig", "-b {address} -g G", 2002, _NO_COLD),
    _refused("setCommitLogReadAheadMode", "-b {address} -m 0", 2004, "the kernel decides what to read ahead"),
    _refused("createUser", "-b {address} -u u -p p", 3001, _ACCOUNTS),
    _refused("updateUser", "-b {address} -u u -p p", 3002, _ACCOUNTS),
    _refused("deleteUser", "-b {address} -u u", 3003, _ACCOUNTS),
    _refused("getUser", "-b {address} -u u", 3004, _ACCOUNTS),
    _refused("listUser", "-b {address}", 3005, _ACCOUNTS),
    _refused("copyUser", "-f {address} -t {address} -u u", 3004, _ACCOUNTS),
    _refused("createAcl", "-b {address} -s User:u -r Topic:T -a Pub -d Allow", 3006, _ACCOUNTS),
    _refused("updateAcl", "-b {address} -s User:u -r Topic:T -a Pub -d Allow", 3007, _ACCOUNTS),
    _refused("deleteAcl", "-b {address} -s User:u", 3008, _ACCOUNTS),
    _refused("getAcl", "-b {address} -s User:u", 3009, _ACCOUNTS),
    _refused("listAcl", "-b {address}", 3010, _ACCOUNTS),
    _refused("copyAcl", "-f {address} -t {address} -s User:u", 3009, _ACCOUNTS),
    Command(
        "rocksDBConfigToJson",
        "rocksDBConfigToJson -b {address} -t topics",
        "export error",
        _NO_ROCKSDB,
        is_refused=True,
    ),
    _refused("checkRocksdbCqWriteProgress", "-c DefaultCluster -n {address} -t T", 354, _NO_ROCKSDB),
    _refused("switchTimerEngine", "-b {address} -e F", 5001, "the timer's files are the only engine"),
    _refused("getBrokerLiteInfo", "-b {address}", 200074, _LITE),
    Command("getParentTopicInfo", "getParentTopicInfo -p T", "[aerobee] error.", _LITE, is_refused=True),
    Command("getLiteTopicInfo", "getLiteTopicInfo -p T -l a", "[aerobee] error.", _LITE, is_refused=True),
    Command("getLiteClientInfo", "getLiteClientInfo -p T -g G -c c", "[aerobee] error.", _LITE, is_refused=True),
    Command("getLiteGroupInfo", "getLiteGroupInfo -p T -g G", "[aerobee] error.", _LITE, is_refused=True),
    Command(
        "triggerLiteDispatch",
        "triggerLiteDispatch -p T -g G",
        "error",
        "a subscription is looked at when it changes, so nothing needs to be triggered",
        is_refused=True,
    ),
    Command("deleteSubGroup", "deleteSubGroup -c DefaultCluster -g G", "success"),
    Command("deleteTopic", "deleteTopic -t T -c DefaultCluster", "success"),
)
