"""Configuration: the precedence of sources, and the errors for invalid values."""

from __future__ import annotations

from pathlib import Path

import pytest

from aerobee_broker.config import Address, BrokerConfig
from aerobee_broker.config.rocketmq_conf import ONLY_ROCKETMQ
from aerobee_store import ConfigError


def test_defaults_are_safe() -> None:
    """The defaults are loopback addresses, durable sends, all checksums, and no automatic creation."""
    config = BrokerConfig.load()
    assert (str(config.listen.grpc), str(config.listen.metrics)) == ("127.0.0.1:8081", "127.0.0.1:5557")
    assert config.store.flush == "sync"
    assert config.store.property_crc
    assert not config.auto_create_topics
    assert not config.auto_create_groups
    assert config.store.store_host == ("127.0.0.1", 8081)


def test_dev_creates_on_first_use_by_default() -> None:
    """broker.dev sets the default of both auto_create settings; explicit values take precedence."""
    assert BrokerConfig.load(flags={"broker.dev": True}).auto_create_topics
    config = BrokerConfig.load(flags={"broker.dev": True, "topics.auto_create": "false"})
    assert not config.auto_create_topics
    assert config.auto_create_groups


def test_dev_accepts_any_disk_usage() -> None:
    """With broker.dev the disk ratios do not remove or refuse messages, unless they are set."""

    def ratios(**flags: object) -> tuple[float, float, float]:
        given = {name.replace("__", "."): value for name, value in flags.items()}
        store = BrokerConfig.load(flags=given).store
        return store.disk_clean_ratio, store.disk_force_clean_ratio, store.disk_full_ratio

    assert ratios() == (0.75, 0.85, 0.9)
    assert ratios(broker__dev=True) == (0.75, 1.0, 1.0)
    assert ratios(broker__dev="false", store__disk_full_ratio=0.7) == (0.75, 0.85, 0.7)
    assert ratios(broker__dev="true", store__disk_full_ratio=0.95) == (0.75, 1.0, 0.95)


def test_each_source_overrides_the_later_ones(tmp_path: Path) -> None:
    """Flags take precedence over the environment, then TOML, broker.conf and defaults."""
    conf, toml = tmp_path / "broker.conf", tmp_path / "aerobee.toml"
    conf.write_text("brokerName=conf\nbrokerClusterName=conf\nmaxMessageSize=1000\ndefaultTopicQueueNums=3\n")
    toml.write_text('[broker]\nname = "toml"\ncluster = "toml"\n[store]\nbody_size_max = 2000\n')
    config = BrokerConfig.load(
        flags={"broker.name": "flag", "broker.cluster": None},
        environment={"AEROBEE_BROKER_NAME": "environment", "AEROBEE_BROKER_CLUSTER": "environment", "HOME": "/"},
        config_file=toml,
        rocketmq_conf=conf,
    )
    assert (config.name, config.cluster) == ("flag", "environment")
    assert (config.store.body_size_max, config.topics.queue_count) == (2000, 3)


def test_values_from_text() -> None:
    """Text from the environment is parsed into numbers, sizes with units, booleans, addresses and paths."""
    config = BrokerConfig.load(
        environment={
            "AEROBEE_STORE_SEGMENT_SIZE": "64MiB",
            "AEROBEE_STORE_DIRECTORY": "/tmp/x",
            "AEROBEE_STORE_PROPERTY_CRC": "FALSE",
            "AEROBEE_STORE_SYNC_TIMEOUT_SECONDS": "2.5",
            "AEROBEE_LISTEN_GRPC": "[::1]:9",
            "AEROBEE_DELIVERY_INITIAL_POSITION": "latest",
            "AEROBEE_CRASH_CYCLES": "belongs to somebody else",
        }
    )
    assert config.store.segment_size == 64 << 20
    assert config.store.directory == Path("/tmp/x")
    assert not config.store.property_crc
    assert config.store.sync_timeout_seconds == 2.5
    assert config.listen.grpc == Address("::1", 9)
    assert str(config.listen.grpc) == "[::1]:9"
    assert config.delivery.initial_position == "latest"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("store.flush", "sometimes"),
        ("store.segment_size", "a lot"),
        ("store.segment_size", 5),
        ("store.property_crc", "yes"),
        ("store.sync_timeout_seconds", "nan"),
        ("store.directory", ""),
        ("listen.grpc", "8081"),
        ("listen.grpc", "host:65536"),
        ("listen.grpc", "::1:8081"),
        ("listen.advertise", "host:0"),
        ("listen.drain_seconds", -1.0),
        ("broker.name", "two words"),
        ("topics.queue_count", 0),
        ("limits.properties_size_max", 0),
        ("delivery.receive_count_max", 0),
    ],
)
def test_bad_values_name_the_setting(name: str, value: object) -> None:
    """An invalid value stops the start with the full name of its setting."""
    with pytest.raises(ConfigError, match=name.replace(".", r"\.")):
        BrokerConfig.load(flags={name: value})


def test_unknown_names_are_refused(tmp_path: Path) -> None:
    """An unknown flag, variable, section or key is an error; for a flag it lists the valid names."""
    with pytest.raises(ConfigError, match=r"store\.flushes.*flush,"):
        BrokerConfig.load(flags={"store.flushes": "sync"})
    with pytest.raises(ConfigError, match="AEROBEE_STORE_FLUSHES"):
        BrokerConfig.load(environment={"AEROBEE_STORE_FLUSHES": "sync"})
    toml = tmp_path / "x.toml"
    for text, named in (("[shop]\na = 1", r"\[shop\]"), ("flush = 'sync'", "flush"), ("[store]\na = 1", r"store\.a")):
        toml.write_text(text)
        with pytest.raises(ConfigError, match=named):
            BrokerConfig.load(config_file=toml)
    toml.write_text("= no TOML")
    with pytest.raises(ConfigError, match="not valid TOML"):
        BrokerConfig.load(config_file=toml)
    with pytest.raises(ConfigError, match=r"none\.toml"):
        BrokerConfig.load(config_file=tmp_path / "none.toml")


def test_a_broker_conf_of_rocketmq(tmp_path: Path) -> None:
    """Known keys are read in RocketMQ's units. Others are collected for one line at the start."""
    conf = tmp_path / "broker.conf"
    conf.write_text(
        "# a comment\n"
        f"storePathRootDir = {tmp_path}/store\n"
        f"storePathCommitLog={tmp_path}/store/commitlog\n"
        "flushDiskType=ASYNC_FLUSH\nflushIntervalCommitLog=250\nflushCommitLogLeastPages=8\nmappedFileSizeConsumeQueue=6000001\n"
        "enabledAppendPropCRC : true\nautoCreateTopicEnable=true\nbrokerClusterName=Def\\\n   ault\n"
        "fileReservedTime=48\ndeleteWhen=04;16\ndiskMaxUsedSpaceRatio=99\ndiskSpaceWarningLevelRatio=88\n"
        "flushCommitLogThoroughInterval=10000\nflushCommitLogTimed=false\nmessageIndexEnable=false\nlongPollingEnable=false\n"
        "enableConsumeQueueExt=true\nenableCalcFilterBitMap=true\nexpectConsumerNumUseFilter=64\n"
        "maxErrorRateOfBloomFilter=10\nfilterDataCleanTimeSpan=43200000\n"
        "cleanFileForciblyEnable=false\nwarmMapedFileEnable=true\nnamesrvAddr=127.0.0.1:9876\nlistenPort=10911\n"
    )
    config = BrokerConfig.load(rocketmq_conf=conf)
    assert config.store.directory == tmp_path / "store"
    assert (config.store.flush, config.store.flush_interval_seconds) == ("async", 0.25)
    assert config.store.flush_pages_min == 8
    assert (config.store.flush_thorough_interval_seconds, config.store.flush_timed) == (10.0, False)
    assert (config.store.index, config.delivery.long_polling) == (False, False)
    assert (config.store.queue_extensions, config.delivery.filter_bitmaps) == (True, True)
    assert (config.delivery.filter_bitmap_groups, config.delivery.filter_bitmap_error_percent) == (64, 10)
    assert config.delivery.filter_keep_hours == 12
    assert config.store.queue_file_size == 6000020
    assert config.auto_create_topics
    assert config.cluster == "Default"
    assert (config.store.retention_hours, config.store.delete_when_hours) == (48, (4, 16))
    assert (config.store.disk_clean_ratio, config.store.disk_full_ratio) == (0.95, 0.88)  # 10..95, like RocketMQ
    assert not config.store.clean_forcibly
    assert config.store.warm_segments
    assert config.ignored_rocketmq_keys == ("namesrvAddr", "listenPort")


def test_delay_levels(tmp_path: Path) -> None:
    """Levels come from RocketMQ's text, a TOML list of seconds, or the environment. Errors name the setting."""
    conf = tmp_path / "broker.conf"
    conf.write_text("messageDelayLevel=1s 2m 3h  1d\n")
    assert BrokerConfig.load(rocketmq_conf=conf).store.delay_levels_seconds == (1, 120, 10_800, 86_400)
    toml = tmp_path / "x.toml"
    toml.write_text("[store]\ndelay_levels_seconds = [2, 4]\n")
    assert BrokerConfig.load(config_file=toml).store.delay_levels_seconds == (2, 4)
    environment = {"AEROBEE_STORE_DELAY_LEVELS_SECONDS": "7"}
    assert BrokerConfig.load(environment=environment).store.delay_levels_seconds == (7,)
    for text in ("1s 2x", "1s 0s", "s", ""):
        conf.write_text(f"messageDelayLevel={text}\n")
        with pytest.raises(ConfigError, match="messageDelayLevel"):
            BrokerConfig.load(rocketmq_conf=conf)
    conf.write_text("messageDelayLevel=4d\n")
    with pytest.raises(ConfigError, match=r"store\.delay_levels_seconds: 345600 is longer than store\.retention_hours"):
        BrokerConfig.load(rocketmq_conf=conf)


def test_the_paths_of_the_log(tmp_path: Path) -> None:
    """Paths are given as RocketMQ's comma-separated lists, a TOML list, or an environment variable."""
    conf = tmp_path / "broker.conf"
    conf.write_text("storePathCommitLog=/a/log, /b/log\nreadOnlyCommitLogStorePaths=/old/log\n")
    store = BrokerConfig.load(rocketmq_conf=conf).store
    assert store.commit_log_paths == (Path("/a/log"), Path("/b/log"))
    assert store.read_only_commit_log_paths == (Path("/old/log"),)
    toml = tmp_path / "x.toml"
    toml.write_text("[store]\ncommit_log_paths = ['/a/log', '~/log']\n")
    assert BrokerConfig.load(config_file=toml).store.commit_log_paths == (Path("/a/log"), Path.home() / "log")
    environment = {"AEROBEE_STORE_COMMIT_LOG_PATHS": "/c/log,/d/log"}
    assert BrokerConfig.load(environment=environment).store.commit_log_paths == (Path("/c/log"), Path("/d/log"))
    toml.write_text("[store]\ncommit_log_paths = 7\n")
    with pytest.raises(ConfigError, match=r"store\.commit_log_paths: 7 is not a list of paths"):
        BrokerConfig.load(config_file=toml)


@pytest.mark.parametrize(
    ("conf", "toml", "used", "ignored"),
    [
        ("storePathRootDir=/rmq\nstorePathCommitLog=/rmq-log", "", (), ("/rmq-log",)),
        ("storePathCommitLog=/rmq-log,/own/b", "", ("/own/b",), ("/rmq-log",)),
        ("storePathRootDir=/own\nstorePathCommitLog=/rmq-log", "", ("/rmq-log",), ()),
        ("storePathRootDir=/own/../own/\nstorePathCommitLog=/rmq-log", "", ("/rmq-log",), ()),
        ("", "directory='/rmq'\ncommit_log_paths=['/rmq-log']", (), ("/rmq-log",)),
        ("", "commit_log_paths=['/disk1/log']", ("/disk1/log",), ()),
        ("storePathCommitLog=/rmq-log", "commit_log_paths=['/disk1/log']", ("/disk1/log",), ()),
    ],
)
@pytest.mark.parametrize("key", ["commit_log_paths", "read_only_commit_log_paths"])
def test_the_log_of_another_store_in_a_settings_file(
    tmp_path: Path, conf: str, toml: str, used: tuple[str, ...], ignored: tuple[str, ...], key: str
) -> None:
    """With --store, nothing outside of it is used that the file names for its own store, perhaps a running RocketMQ."""
    if key != "commit_log_paths":
        conf = conf.replace("storePathCommitLog", "readOnlyCommitLogStorePaths")
        toml = toml.replace("commit_log_paths", key)
    (tmp_path / "broker.conf").write_text(f"{conf}\n")
    (tmp_path / "x.toml").write_text(f"[store]\n{toml}\n")
    for given in ({"flags": {"store.directory": "/own"}}, {"environment": {"AEROBEE_STORE_DIRECTORY": "/own"}}):
        config = BrokerConfig.load(config_file=tmp_path / "x.toml", rocketmq_conf=tmp_path / "broker.conf", **given)
        assert getattr(config.store, key) == tuple(map(Path, used))
        assert config.ignored_log_paths == tuple(map(Path, ignored))


def test_paths_of_the_log_beside_the_directory_they_are_for(tmp_path: Path) -> None:
    """The environment's paths are the store's that --store names, unless it names another directory itself."""
    environment = {"AEROBEE_STORE_COMMIT_LOG_PATHS": "/disk1/log"}
    flags = {"store.directory": "/own"}
    assert BrokerConfig.load(flags=flags, environment=environment).store.commit_log_paths == (Path("/disk1/log"),)
    environment["AEROBEE_STORE_DIRECTORY"] = "/other"
    assert BrokerConfig.load(flags=flags, environment=environment).store.commit_log_paths == ()


@pytest.mark.parametrize(
    ("lines", "mode"),
    [
        ("transientStorePoolEnable=true", "pool"),
        ("transientStorePoolEnable=TRUE\nwriteWithoutMmap=true", "gathered"),
        ("transientStorePoolEnable=false", "gathered"),
        ("writeWithoutMmap=false", "gathered"),
    ],
)
def test_the_write_mode_of_a_broker_conf(tmp_path: Path, lines: str, mode: str) -> None:
    """RocketMQ's buffer pool settings are read. Without the pool the default write mode applies."""
    conf = tmp_path / "broker.conf"
    conf.write_text(
        f"{lines}\ntransientStorePoolSize=3\nfastFailIfNoBufferInStorePool=true\ncommitIntervalCommitLog=100\n"
        "commitCommitLogLeastPages=8\ncommitCommitLogThoroughInterval=400\n"
    )
    config = BrokerConfig.load(rocketmq_conf=conf)
    store = config.store
    assert (store.write_mode, store.pool_buffer_count, store.pool_fast_failure) == (mode, 3, True)
    assert store.commit_interval_seconds == 0.1
    assert (store.commit_pages_min, store.commit_thorough_interval_seconds) == (8, 0.4)
    assert config.ignored_rocketmq_keys == ()


def test_mistakes_in_a_broker_conf(tmp_path: Path) -> None:
    """The error has RocketMQ's name of the setting."""
    conf = tmp_path / "broker.conf"
    for line, named in (
        ("flushDiskType=NEVER", "flushDiskType"),
        ("maxMessageSize=big", "maxMessageSize"),
        ("transientStorePoolEnable=yes", "transientStorePoolEnable"),
    ):
        conf.write_text(f"storePathRootDir={tmp_path}\n{line}\n")
        with pytest.raises(ConfigError, match=named):
            BrokerConfig.load(rocketmq_conf=conf)


def test_chinese_comments_in_a_broker_conf(tmp_path: Path) -> None:
    """A byte 0x85 in a comment's UTF-8 text, as in half of all Chinese comments, is no end of line."""
    conf = tmp_path / "broker.conf"
    conf.write_text(
        "# 充 flushDiskType=NEVER\r\n# 元listenPort=1\rflushDiskType=ASYNC_FLUSH\nключ=1\n", encoding="utf-8"
    )
    config = BrokerConfig.load(rocketmq_conf=conf)
    assert config.store.flush == "async"
    (ignored,) = config.ignored_rocketmq_keys
    assert ignored.isprintable()


@pytest.mark.parametrize(("asked_ms", "step_ms"), [(1000, 1000), (5000, 1000), (999, 500), (150, 100), (1, 100)])
def test_the_timer_of_a_broker_conf(tmp_path: Path, asked_ms: int, step_ms: int) -> None:
    """The timer settings are read. Like in RocketMQ, the precision is rounded down to a supported step."""
    conf = tmp_path / "broker.conf"
    conf.write_text(
        f"timerPrecisionMs={asked_ms}\ntimerRollWindowSlot=1000\ntimerFlushIntervalMs=500\n"
        "mappedFileSizeTimerLog=1048576\ntimerMaxDelaySec=3600\ntimerStopEnqueue=false\n"
    )
    config = BrokerConfig.load(rocketmq_conf=conf)
    timer = config.timer
    assert (timer.precision_ms, timer.roll_window_slots, timer.flush_interval_seconds) == (step_ms, 1000, 0.5)
    assert (timer.log_file_size, config.limits.delay_seconds_max) == (1 << 20, 3600)
    assert config.ignored_rocketmq_keys == ("timerStopEnqueue",)


@pytest.mark.parametrize(("name", "key"), sorted(ONLY_ROCKETMQ.items()))
def test_finer_settings_of_a_power_cut_are_only_in_a_broker_conf(tmp_path: Path, name: str, key: str) -> None:
    """One setting of our own says what a power cut may lose. RocketMQ's finer keys are read from its file alone."""
    section, _, field = name.partition(".")
    value = "false" if field == "flush_timed" else "7"
    file = tmp_path / "aerobee.toml"
    file.write_text(f"[{section}]\n{field} = {value}\n")
    for source in (
        {"config_file": file},
        {"environment": {f"AEROBEE_{section}_{field}".upper(): value}},
        {"flags": {name: value}},
    ):
        with pytest.raises(ConfigError, match=f"{key} in a broker.conf.*store.flush_interval_seconds"):
            BrokerConfig.load(**source)
    conf = tmp_path / "broker.conf"
    conf.write_text(f"{key}={value}\n")
    assert BrokerConfig.load(rocketmq_conf=conf).setting(name) != BrokerConfig.load().setting(name)
