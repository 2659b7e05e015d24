"""Settings from RocketMQ's broker.conf, under RocketMQ's names."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from aerobee_broker.config.conversion import Sections, converted
from aerobee_broker.config.timer import PRECISIONS_MS
from aerobee_store.config import BATCH_UNIT_SIZE, UNIT_SIZE
from aerobee_store.errors import ConfigError
from aerobee_store.records.decimals import amount, integer


def _milliseconds(text: str) -> object:
    return float(text) / 1000


def _found(number: int | None) -> int:
    if number is None:
        raise ValueError
    return number


def _whole(text: str) -> int:
    return _found(integer(text))


def _flush_mode(text: str) -> object:
    return {"SYNC_FLUSH": "sync", "ASYNC_FLUSH": "async"}[text]


def _comma_separated(text: str) -> object:
    return [part.strip() for part in text.split(",") if part.strip()]


def _delay_levels(text: str) -> object:
    """RocketMQ's form: `1s 5s 10m 2h`."""
    units = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
    return [_found(amount(word, units)) for word in text.split()]


def _queue_file_size(text: str) -> object:
    return -(-_whole(text) // UNIT_SIZE) * UNIT_SIZE  # RocketMQ also rounds up


def _batch_queue_file_size(text: str) -> object:
    return -(-_whole(text) // BATCH_UNIT_SIZE) * BATCH_UNIT_SIZE


def _hours(text: str) -> object:
    return _whole(text) / 3_600_000


def _ratio(lowest: int, highest: int) -> Callable[[str], object]:
    """Convert a percentage, which RocketMQ silently limits to its range."""
    return lambda text: min(max(_whole(text), lowest), highest) / 100


def _timer_precision(text: str) -> object:
    # RocketMQ rounds down to a supported step, and up to the smallest.
    return max((step for step in PRECISIONS_MS if step <= _whole(text)), default=PRECISIONS_MS[0])


def _same(text: str) -> object:
    return text


ROCKETMQ_KEYS: Final[dict[str, tuple[str, Callable[[str], object]]]] = {
    "brokerName": ("broker.name", _same),
    "brokerClusterName": ("broker.cluster", _same),
    "storePathRootDir": ("store.directory", _same),
    "mappedFileSizeCommitLog": ("store.segment_size", int),
    "mapedFileSizeCommitLog": ("store.segment_size", int),  # as spelt in 4.x
    "mappedFileSizeConsumeQueue": ("store.queue_file_size", _queue_file_size),
    "mapedFileSizeConsumeQueue": ("store.queue_file_size", _queue_file_size),
    "mapperFileSizeBatchConsumeQueue": ("store.batch_queue_file_size", _batch_queue_file_size),
    "enableConsumeQueueExt": ("store.queue_extensions", _same),
    "mappedFileSizeConsumeQueueExt": ("store.queue_extension_file_size", int),
    "enableLmq": ("store.light_queues", _same),
    "enableMultiDispatch": ("store.multi_dispatch", _same),
    "maxLmqConsumeQueueNum": ("store.light_queue_count_max", int),
    "maxHashSlotNum": ("store.index_slot_count", int),
    "maxIndexNum": ("store.index_entry_count", int),
    "flushDiskType": ("store.flush", _flush_mode),
    "flushIntervalCommitLog": ("store.flush_interval_seconds", _milliseconds),
    "flushCommitLogLeastPages": ("store.flush_pages_min", int),
    "flushCommitLogThoroughInterval": ("store.flush_thorough_interval_seconds", _milliseconds),
    "flushCommitLogTimed": ("store.flush_timed", _same),
    "messageIndexEnable": ("store.index", _same),
    "longPollingEnable": ("delivery.long_polling", _same),
    "enableCalcFilterBitMap": ("delivery.filter_bitmaps", _same),
    "expectConsumerNumUseFilter": ("delivery.filter_bitmap_groups", int),
    "maxErrorRateOfBloomFilter": ("delivery.filter_bitmap_error_percent", int),
    "filterDataCleanTimeSpan": ("delivery.filter_keep_hours", _hours),
    "flushIntervalConsumeQueue": ("store.derived_flush_interval_seconds", _milliseconds),
    "syncFlushTimeout": ("store.sync_timeout_seconds", _milliseconds),
    "storePathCommitLog": ("store.commit_log_paths", _comma_separated),
    "readOnlyCommitLogStorePaths": ("store.read_only_commit_log_paths", _comma_separated),
    "warmMapedFileEnable": ("store.warm_segments", _same),
    "transientStorePoolSize": ("store.pool_buffer_count", int),
    "fastFailIfNoBufferInStorePool": ("store.pool_fast_failure", _same),
    "commitIntervalCommitLog": ("store.commit_interval_seconds", _milliseconds),
    "commitCommitLogLeastPages": ("store.commit_pages_min", int),
    "commitCommitLogThoroughInterval": ("store.commit_thorough_interval_seconds", _milliseconds),
    "enabledAppendPropCRC": ("store.property_crc", _same),
    "messageDelayLevel": ("store.delay_levels_seconds", _delay_levels),
    "maxMessageSize": ("store.body_size_max", int),
    "fileReservedTime": ("store.retention_hours", int),
    "deleteWhen": ("store.delete_when_hours", _same),
    "cleanResourceInterval": ("store.retention_interval_seconds", _milliseconds),
    "deleteFileBatchMax": ("store.retention_batch_max", int),
    "diskMaxUsedSpaceRatio": ("store.disk_clean_ratio", _ratio(10, 95)),
    "diskSpaceCleanForciblyRatio": ("store.disk_force_clean_ratio", _ratio(30, 85)),
    "diskSpaceWarningLevelRatio": ("store.disk_full_ratio", _ratio(35, 90)),
    "cleanFileForciblyEnable": ("store.clean_forcibly", _same),
    "autoCreateTopicEnable": ("topics.auto_create", _same),
    "traceTopicEnable": ("topics.trace", _same),
    "msgTraceTopicName": ("topics.trace_topic", _same),
    "defaultTopicQueueNums": ("topics.queue_count", int),
    "autoCreateSubscriptionGroup": ("groups.auto_create", _same),
    "timerPrecisionMs": ("timer.precision_ms", _timer_precision),
    "timerRollWindowSlot": ("timer.roll_window_slots", int),
    "timerFlushIntervalMs": ("timer.flush_interval_seconds", _milliseconds),
    "mappedFileSizeTimerLog": ("timer.log_file_size", int),
    "timerMaxDelaySec": ("limits.delay_seconds_max", float),
    "transactionTimeOut": ("transactions.timeout_seconds", _milliseconds),
    "transactionCheckInterval": ("transactions.check_interval_seconds", _milliseconds),
    "transactionCheckMax": ("transactions.check_max", int),
    "channelExpiredTimeout": ("limits.client_expiry_seconds", _milliseconds),
}


INSTEAD: Final[dict[str, str]] = {
    "listenPort": "set `listen.remoting`",
    "bindAddress": "set `listen.remoting`",
    "brokerIP1": "set `listen.advertise_remoting`, for gRPC `listen.advertise`",
    "brokerIP2": "set `replication.listen`",
    "namesrvAddr": "set `broker.namesrv`",
    "haListenPort": "set `replication.listen`",
    "haMasterAddress": "set `replication.master`",
    "metricsPromExporterPort": "set `listen.metrics`",
    "metricsPromExporterHost": "set `listen.metrics`",
    "recallMessageEnable": "delayed messages can always be recalled",
    "enablePropertyFilter": "filters by SQL are always on",
    "enableMixedMessageType": "topics of the type MIXED are always possible",
    "checkCRCOnRecover": "checksums are always compared",
}
"""Keys without effect here, and what to do instead; the start says so for each that it finds."""
WRITE_MODE_KEYS: Final = ("transientStorePoolEnable", "writeWithoutMmap")
"""Keys that choose `store.write_mode` together."""


_POWER_CUT_KEYS: Final = (
    *("flushCommitLogLeastPages", "flushCommitLogThoroughInterval", "flushCommitLogTimed"),
    *("commitIntervalCommitLog", "commitCommitLogLeastPages", "commitCommitLogThoroughInterval"),
)
ONLY_ROCKETMQ: Final = {ROCKETMQ_KEYS[key][0]: key for key in _POWER_CUT_KEYS}
"""Settings that only RocketMQ's keys set, for a broker.conf that has them. Elsewhere, `store.flush_interval_seconds`
alone says what a power cut may lose."""


def refuse_rocketmq_only(names: Iterable[str]) -> None:
    """Raise ConfigError for a setting of `ONLY_ROCKETMQ` among these."""
    for name in names:
        if name in ONLY_ROCKETMQ:
            raise ConfigError(
                f"{name}: only RocketMQ's key {ONLY_ROCKETMQ[name]} in a broker.conf sets it; set "
                f"store.flush_interval_seconds, which says what a power cut may lose"
            )


def of_rocketmq(name: str, text: str, sections: Sections) -> tuple[str, object] | None:
    """The setting for a RocketMQ key, and its value; None for an unsupported key. Raises ConfigError."""
    known = ROCKETMQ_KEYS.get(name)
    if known is None:
        return None
    setting, convert = known
    try:
        return setting, converted(setting, _kind(sections, setting), convert(text))
    except (ValueError, KeyError):
        raise ConfigError(f"{name}: {text!r} is not a valid value; correct it") from None


_OFF: Final = ("false", "")
_LEASE: Final = "set replication.etcd or replication.kubernetes_lease, which choose the master"
_USE_ACCOUNTS: Final = "set auth.accounts"
_USE_TLS: Final = "set tls.certificate, tls.key and listen.tls"
_USE_CERTIFICATES: Final = "set tls.client_authorities"
_FILES: Final = "settings, queues and timers are files; let RocketMQ's tools write files first"
_POP_RECORDS: Final = (
    "Aerobee cannot read deliveries in RocksDB; stop the consumers, wait until their invisible times have ended, stop "
    "RocketMQ, and remove the line"
)
_USE_ROLE: Final = "set replication.role, and replication.acks for a synchronous master"
# Keys that promise protection or a role: their values without a promise, and what to use instead.
PROMISES: Final[dict[str, tuple[tuple[str, ...], str]]] = {
    "aclEnable": (_OFF, _USE_ACCOUNTS),
    "authenticationEnabled": (_OFF, _USE_ACCOUNTS),
    "authorizationEnabled": (_OFF, _USE_ACCOUNTS),
    "innerClientAuthenticationCredentials": (("",), "set peers.access_key and peers.secret_key_file"),
    "initAuthenticationUser": (("",), _USE_ACCOUNTS),
    "tlsEnable": (_OFF, _USE_TLS),
    "tls.enable": (_OFF, _USE_TLS),
    "tlsServerMode": (("disabled", "permissive", ""), _USE_TLS),
    "tls.server.mode": (("disabled", "permissive", ""), _USE_TLS),
    "tlsServerNeedClientAuth": (("none", "false", ""), _USE_CERTIFICATES),
    "tls.server.need.client.auth": (("none", "false", ""), _USE_CERTIFICATES),
    "brokerRole": (("async_master", ""), _USE_ROLE),
    "slaveReadEnable": (_OFF, "let consumers read from replicas at their own addresses"),
    "enableControllerMode": (_OFF, _LEASE),
    "enableDLegerCommitLog": (_OFF, _LEASE),
    "enableSlaveActingMaster": (_OFF, _LEASE),
    "allAckInSyncStateSet": (_OFF, 'set replication.acks = "all"'),
    "inSyncReplicas": (("1", ""), "set replication.acks to one less"),
    "brokerPermission": (("6", ""), "set the permission of topics"),
    "brokerId": (("0", ""), _USE_ROLE),
    "duplicationEnable": (_OFF, _USE_ROLE),
    "totalReplicas": (("1", ""), _USE_ROLE),
    "minInSyncReplicas": (("1", ""), "set replication.acks and replication.min_in_sync"),
    "enableAutoInSyncReplicas": (_OFF, "set replication.acks"),
    "rejectTransactionMessage": (_OFF, "give topics a message type, such as NORMAL, which refuses transactions"),
    "rejectPullConsumerEnable": (_OFF, "forbid groups to consume, or give accounts no right to it"),
    "disableConsumeIfConsumerReadSlowly": (_OFF, "watch the lag of groups, see operating.md"),
    "timerWheelEnable": (("true", ""), "give topics a message type, such as NORMAL, which refuses delayed messages"),
    "timerStopEnqueue": (_OFF, "stop the producers of delayed messages"),
    "timerRocksDBEnable": (_OFF, _FILES),
    "transRocksDBEnable": (_OFF, _FILES),
    "indexRocksDBEnable": (_OFF, _FILES),
    "rocksdbCQDoubleWriteEnable": (_OFF, _FILES),
    "popConsumerKVServiceEnable": (_OFF, _POP_RECORDS),
    "storeType": (("default", ""), _FILES),
    "configManagerVersion": (("v1", ""), _FILES),
    "messageStorePlugIn": (("",), "there are no plug-ins of the store; use record services or hooks of clients"),
    "regionId": (("defaultregion", ""), "messages always have the region DefaultRegion"),
    "traceOn": (("true", ""), "turn the trace off in the clients"),
    "clusterTopicEnable": (("true", ""), "give accounts no right to publish to the topic of the cluster's name"),
    "brokerTopicEnable": (("true", ""), "give accounts no right to publish to the topic of the broker's name"),
    "defaultMessageRequestMode": (("pull", ""), "set the mode of each topic and group with mqadmin setConsumeMode"),
    "useStaticSubscription": (_OFF, "create groups without a list of subscriptions"),
    "coldDataFlowControlEnable": (_OFF, "reads of old messages are not throttled"),
    "coldCtrStrategyEnable": (_OFF, "reads of old messages are not throttled"),
    "enableLmqQuota": (_OFF, "set store.light_queue_count_max"),
    "readUnCommitted": (_OFF, "consumers read what is stored"),
    "indexFileWriteEnable": (("true", ""), "set messageIndexEnable"),
    "priorityOrderAsc": (("true", ""), "the highest priority is always delivered first"),
    "startAcceptSendRequestTimeStamp": (("0", ""), "start the broker when producers may send"),
    "maxTopicLength": (("127", ""), "names have up to 127 characters"),
    "metricsExporterType": (("disable", "prom", ""), "collect the figures from /metrics of listen.metrics"),
}


def from_rocketmq(path: Path, sections: Sections) -> tuple[dict[str, object], tuple[str, ...]]:
    """The settings in a broker.conf, and its keys that are not supported."""
    try:
        text = path.read_bytes().decode("latin-1")  # the encoding of Java's properties files
    except OSError as error:
        raise ConfigError(f"--rocketmq-conf {path}: {error.strerror}; check the path") from None
    # Bytes above 0x7F may be part of a comment in any encoding.
    if re.search(r"[^\t\n\f\r\x20-\x7e\x80-\xff]", text):
        raise ConfigError(f"--rocketmq-conf {path}: not a properties file: it has control characters; check the path")
    values: dict[str, object] = {}
    ignored: list[str] = []
    properties = _java_properties(text)
    for name, value in properties.items():
        if name in PROMISES and value.strip().lower() not in PROMISES[name][0]:
            raise ConfigError(
                f"{name} in {path}: {value!r} is not supported, and ignoring it would break what it promises; remove "
                f"the line and {PROMISES[name][1]}"
            )
        known = ROCKETMQ_KEYS.get(name)
        if known is None:
            ignored.append(name if name.isprintable() else ascii(name)[1:-1])  # it is shown on a terminal
            continue
        setting, convert = known
        try:
            values[setting] = converted(setting, _kind(sections, setting), convert(value))
        except (ValueError, KeyError):
            # ConfigError is a ValueError that names our setting, but the user wrote RocketMQ's.
            raise ConfigError(f"{name} in {path}: {value!r} is not a valid value; correct the file") from None
    if properties.keys() & set(WRITE_MODE_KEYS):
        # As in RocketMQ: the pool, unless files must be written by system calls; otherwise our default.
        pool = _switch(properties, "transientStorePoolEnable", path)
        if pool and not _switch(properties, "writeWithoutMmap", path):
            values["store.write_mode"] = "pool"
        ignored = [name for name in ignored if name not in WRITE_MODE_KEYS]
    return values, tuple(ignored)


def _switch(properties: Mapping[str, str], name: str, path: Path) -> bool:
    value = properties.get(name, "false")
    if value.lower() not in ("true", "false"):
        raise ConfigError(f"{name} in {path}: {value!r} is not a valid value; correct the file")
    return value.lower() == "true"


def _kind(sections: Sections, setting: str) -> Any:
    section, _, key = setting.partition(".")
    return sections[section][key]


def _java_properties(text: str) -> dict[str, str]:
    """The pairs of a properties file: `name = value`, `name: value` or `name value`. `#` and `!` begin comments; a
    backslash escapes, and continues a line at its end."""
    properties = {}
    lines = iter(re.split(r"\r\n|\r|\n", text))  # splitlines would also split UTF-8 characters that contain 0x85
    for line in lines:
        line = line.lstrip(" \t\f")
        while _continues(line):
            line = line[:-1] + next(lines, "").lstrip(" \t\f")
        if line and line[0] not in "#!":
            match = re.match(r"((?:\\.|[^\\=:\s])*)\s*[=:]?\s*(.*)", line, re.DOTALL)
            assert match is not None, "every part of the expression may be empty"
            properties[_unescaped(match[1])] = _unescaped(match[2]).rstrip()
    return properties


def _continues(line: str) -> bool:
    return bool(line) and line[0] not in "#!" and (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _unescaped(text: str) -> str:
    special = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}

    def character(match: re.Match[str]) -> str:
        escape = match[1]
        return chr(int(escape[1:], 16)) if len(escape) == 5 else special.get(escape, escape)

    return re.sub(r"\\(u[0-9a-fA-F]{4}|.)", character, text, flags=re.DOTALL)
