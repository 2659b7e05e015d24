"""Configuration of a broker: one frozen object, built once by `BrokerConfig.load` and passed down.

A setting has a full name, `<section>.<key>`. A source in this list overrides the later ones:

    flags of the command line
    the environment            AEROBEE_<SECTION>_<KEY>, as AEROBEE_STORE_DIRECTORY
    a TOML file (--config)     [section] and key
    a RocketMQ broker.conf     under RocketMQ's names, see rocketmq_conf.py
    the defaults below

Settings saved by `aerobee config set` rank between the environment and the TOML file: tables/runtime_settings.py.

Unknown names and invalid values raise ConfigError with the full name and the next step. Only unknown names in
broker.conf are tolerated: they are kept in `ignored_rocketmq_keys` and listed at start.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, ClassVar, Final, Literal, Self

from aerobee_broker.config.address import Address
from aerobee_broker.config.auth import AuthConfig
from aerobee_broker.config.conversion import converted, known_names
from aerobee_broker.config.delivery import DeliveryConfig
from aerobee_broker.config.front import FrontConfig
from aerobee_broker.config.groups import GroupsConfig
from aerobee_broker.config.limits import LimitsConfig
from aerobee_broker.config.listen import ListenConfig
from aerobee_broker.config.peers import PeersConfig
from aerobee_broker.config.replication import ReplicationConfig
from aerobee_broker.config.rocketmq_conf import from_rocketmq, of_rocketmq, refuse_rocketmq_only
from aerobee_broker.config.sources import from_environment, from_toml
from aerobee_broker.config.timer import TimerConfig
from aerobee_broker.config.tls import TlsConfig
from aerobee_broker.config.topics import TopicsConfig
from aerobee_broker.config.transactions import TransactionsConfig
from aerobee_store.config import Section, StoreConfig, settings_of
from aerobee_store.errors import ConfigError

DIRECTORY_DEFAULT: Final = Path("data")
Source = Literal["default", "rocketmq-conf", "file", "saved", "environment", "flag"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig(Section):
    """The whole configuration of a broker. Sizes in bytes, durations in seconds."""

    section: ClassVar[str] = "broker"

    store: StoreConfig
    name: str = "aerobee"  # brokerName: part of a queue's identity for clients
    cluster: str = "DefaultCluster"  # brokerClusterName
    namesrv: tuple[str, ...] = ()  # name servers to register with, each host:port
    dev: bool = False  # for development: topics and groups are created on first use, and any disk usage is accepted
    listen: ListenConfig = field(default_factory=ListenConfig)
    tls: TlsConfig = field(default_factory=TlsConfig)
    auth: AuthConfig = field(default_factory=AuthConfig)
    topics: TopicsConfig = field(default_factory=TopicsConfig)
    groups: GroupsConfig = field(default_factory=GroupsConfig)
    delivery: DeliveryConfig = field(default_factory=DeliveryConfig)
    timer: TimerConfig = field(default_factory=TimerConfig)
    transactions: TransactionsConfig = field(default_factory=TransactionsConfig)
    limits: LimitsConfig = field(default_factory=LimitsConfig)
    front: FrontConfig = field(default_factory=FrontConfig)
    replication: ReplicationConfig = field(default_factory=ReplicationConfig)
    peers: PeersConfig = field(default_factory=PeersConfig)
    ignored_rocketmq_keys: tuple[str, ...] = ()  # keys of broker.conf that have no effect here
    # directories of a log that belong to another store than the one named by a flag or the environment
    ignored_log_paths: tuple[Path, ...] = ()
    # by full name, for settings that differ from their defaults
    sources: dict[str, Source] = field(default_factory=dict)

    def __post_init__(self) -> None:
        Section.__post_init__(self)
        for key in ("name", "cluster"):
            if not re.fullmatch(r"[a-zA-Z0-9_.-]{1,127}", getattr(self, key)):
                raise ConfigError(
                    f"broker.{key}: {getattr(self, key)!r} contains an invalid character; use letters, digits, "
                    f"'_', '-' and '.'"
                )
        if self.delivery.filter_bitmaps and not self.store.queue_extensions:
            raise ConfigError(
                "delivery.filter_bitmaps: the bitmaps are stored in extended units; set store.queue_extensions = true"
            )
        if self.namesrv and self.listen.remoting is None:
            raise ConfigError(
                "broker.namesrv: needs an address that clients of the name server can connect to; set "
                "listen.remoting, such as 0.0.0.0:10911"
            )
        _ = self.name_servers  # checked with the others
        for key, advertised in (
            ("advertise", self.listen.advertise),
            ("advertise_tls", self.listen.advertise_tls),
            ("advertise_remoting", self.listen.advertise_remoting),
        ):
            if advertised is not None and not advertised.port:
                raise ConfigError(f"listen.{key}: clients cannot connect to port 0; give the port that they reach")
        self._check_replication()
        self._check_peers()
        self._check_unix()
        self._check_tls()
        self._check_console()

    def _check_console(self) -> None:
        """The console of `listen.console` reaches the broker in plaintext over TCP."""
        if self.listen.console is None:
            return
        if self.listen.grpc.unix_path is not None:
            reason = "the console reaches a broker over TCP only; set listen.grpc to HOST:PORT"
        elif self.is_plaintext_refused:
            reason = "clients of this broker need a certificate; run `aerobee console` with --tls-cert and --tls-key"
        else:
            return
        raise ConfigError(f"listen.console: {reason}")

    def _check_replication(self) -> None:
        replication = self.replication
        if replication.role != "none" and self.listen.remoting is None:
            raise ConfigError(
                "replication.role: needs the remoting protocol; set listen.remoting, such as 0.0.0.0:10911"
            )
        for key in ("listen", "advertise", "master", "master_ha"):
            if text := getattr(replication, key):
                try:
                    Address.parse(text)
                except ValueError as error:
                    raise ConfigError(
                        f"replication.{key}: {text!r} is not an address: {error}, such as 127.0.0.1:10912"
                    ) from None
        if replication.role == "replica" and not (replication.master or self.namesrv or replication.has_lease):
            raise ConfigError(
                "replication.master: missing; name the master's remoting address, or name servers (broker.namesrv)"
            )

    def _check_peers(self) -> None:
        """With accounts, brokers that are not on this machine alone prove who they are."""
        replication = self.replication
        if self.auth.accounts is None:
            return
        if replication.role != "none":
            if replication.listen and not Address.parse(replication.listen).is_loopback:
                self.peers.check_reach("with auth.accounts, replicas at other machines", rocketmq_only=True)
            for text in filter(None, (replication.master, replication.master_ha)):
                self._check_reach_of(Address.parse(text), "a master at another machine, and its replicas,")
        for address in self.name_servers:
            self._check_reach_of(address, "brokers that register with name servers at other machines")

    def _check_reach_of(self, address: Address, who: str) -> None:
        if not address.is_loopback and not self.peers.names(address.host):
            self.peers.check_reach(f"with auth.accounts, {who}")

    def _check_unix(self) -> None:
        for item in fields(self.listen):
            address = getattr(self.listen, item.name)
            if item.name != "grpc" and isinstance(address, Address) and address.unix_path is not None:
                raise ConfigError(f"listen.{item.name}: {address} is a Unix socket; only listen.grpc may be one")
        mode = self.listen.unix_mode
        if not re.fullmatch("[0-7]{3}", mode):
            raise ConfigError(f"listen.unix_mode: {mode!r} is not a mode of three octal digits, such as '660'")
        if self.listen.front != "native" and self.listen.grpc.unix_path is not None:
            raise ConfigError('listen.grpc: a Unix socket needs listen.front = "native"')

    @property
    def is_plaintext_refused(self) -> bool:
        """Whether `listen.grpc` accepts only TLS: otherwise clients could connect without their certificate."""
        return (
            self.tls.client_authorities is not None
            and self.tls.client_certificates == "required"
            and self.listen.tls is None
            and self.listen.grpc.unix_path is None
        )

    def _check_client_certificates(self) -> None:
        if self.tls.client_authorities is None:
            return
        if self.listen.tls is None and (
            self.listen.front != "native" or (self.tls.certificate is None and not self.dev)
        ):
            raise ConfigError(
                "tls.client_authorities: no listener uses TLS; set tls.certificate and tls.key, PEM files"
                + ("" if self.listen.front == "native" else ", and listen.tls, such as 0.0.0.0:8082")
            )
        if self.listen.front != "native" and self.tls.client_certificates != "required":
            raise ConfigError(
                'tls.client_certificates: "optional" needs listen.front = "native"; grpcio requires certificates or '
                "does not request them"
            )

    def _check_tls(self) -> None:
        self._check_client_certificates()
        given = {"tls.certificate": self.tls.certificate, "tls.key": self.tls.key}
        missing = [name for name, path in given.items() if path is None]
        if len(missing) == 1:
            raise ConfigError(f"{missing[0]}: missing; set both the certificate and its key")
        if self.listen.tls is None and self.listen.front != "native":
            if not missing:
                raise ConfigError("tls.certificate: no listener uses it; set listen.tls, such as 0.0.0.0:8082")
            if self.listen.advertise_tls is not None:
                raise ConfigError("listen.advertise_tls: no listener uses TLS; set listen.tls, such as 0.0.0.0:8082")
        elif self.listen.tls is not None and missing and not self.dev:
            raise ConfigError(
                "listen.tls: needs the PEM files tls.certificate and tls.key; only broker.dev makes a certificate, "
                "which clients must not verify"
            )

    @property
    def name_servers(self) -> tuple[Address, ...]:
        """The addresses in `namesrv`. ConfigError."""
        found = []
        for text in self.namesrv:
            try:
                found.append(Address.parse(text.strip()))
            except ValueError as error:
                raise ConfigError(
                    f"broker.namesrv: {text!r} is not an address: {error}, such as 127.0.0.1:9876"
                ) from None
        return tuple(found)

    @property
    def auto_create_topics(self) -> bool:
        return self.dev if self.topics.auto_create is None else self.topics.auto_create

    @property
    def auto_create_groups(self) -> bool:
        return self.dev if self.groups.auto_create is None else self.groups.auto_create

    @classmethod
    def tiny(cls, directory: Path, **changes: Any) -> Self:
        """Free ports, tiny files, topics and groups created on first use: for tests."""
        loopback = Address("127.0.0.1", 0)
        defaults: dict[str, Any] = {
            "store": StoreConfig.tiny(directory),
            "dev": True,
            "listen": ListenConfig(grpc=loopback, metrics=loopback, leave_seconds=0.0, drain_seconds=0.5),
        }
        return cls(**{**defaults, **changes})

    @classmethod
    def load(
        cls,
        *,
        flags: Mapping[str, object] | None = None,
        environment: Mapping[str, str] | None = None,
        config_file: Path | None = None,
        rocketmq_conf: Path | None = None,
    ) -> Self:
        """The configuration from all its sources.

        `flags` has full names (`store.directory`); None values count as not given. `environment` is usually
        `os.environ`. Raises ConfigError, also for a file that cannot be read.
        """
        values: dict[str, object] = {}
        sources: dict[str, Source] = {}
        directories: dict[Source, Path] = {}

        def take(source: Source, found: Mapping[str, object]) -> None:
            if source != "rocketmq-conf":
                refuse_rocketmq_only(found)
            if "store.directory" in found:
                directories[source] = _paths("store.directory", found["store.directory"])[0].resolve()
            values.update(found)
            sources.update(dict.fromkeys(found, source))

        ignored: tuple[str, ...] = ()
        if rocketmq_conf is not None:
            found, ignored = from_rocketmq(rocketmq_conf, _SECTIONS)
            take("rocketmq-conf", found)
        if config_file is not None:
            take("file", from_toml(config_file, _SECTIONS))
        take("environment", from_environment(environment or {}, _SECTIONS))
        take("flag", {name: value for name, value in (flags or {}).items() if value is not None})

        ignored_log_paths = _take_out_foreign_paths(values, sources, directories)
        given: dict[str, dict[str, Any]] = {section: {} for section in _SECTIONS}
        for name, value in values.items():
            section, _, key = name.partition(".")
            given.setdefault(section, {})[key] = setting_of_text(name, value)
        own, listen = given.pop("broker"), ListenConfig(**given["listen"])
        given["store"] = {"directory": DIRECTORY_DEFAULT, "store_host": _store_host(listen), **given["store"]}
        if own.get("dev"):
            given |= {section: {**found, **given[section]} for section, found in _DEV_DEFAULTS.items()}
        sections: dict[str, Any] = {name: _SECTION_TYPES[name](**found) for name, found in given.items()}
        return cls(
            **own, **sections, ignored_rocketmq_keys=ignored, ignored_log_paths=ignored_log_paths, sources=sources
        )

    def setting(self, name: str) -> object:
        """The value of a setting by its full name."""
        section, _, key = name.partition(".")
        return getattr(self if section == "broker" else getattr(self, section), key)

    def with_settings(self, values: Mapping[str, object]) -> Self:
        """A configuration with changed values, by full name, checked as at a start. Raises ConfigError."""
        changes: dict[str, dict[str, Any]] = {}
        for name, value in values.items():
            section, _, key = name.partition(".")
            changes.setdefault(section, {})[key] = value
        own = changes.pop("broker", {})
        sections = {name: replace(getattr(self, name), **found) for name, found in changes.items()}
        return replace(self, **own, **sections)


class Settings:
    """The configuration in force: one frozen snapshot after another.

    RuntimeSettings replaces `current` when an operator changes a setting. A part of the broker that reads a setting
    that can change keeps this object and reads `current` at each use.
    """

    __slots__ = ("current",)

    def __init__(self, config: BrokerConfig) -> None:
        self.current = config


def setting_names() -> list[str]:
    """The full names of all settings, in order."""
    return sorted(f"{section}.{key}" for section, keys in _SECTIONS.items() for key in keys)


def setting_of_text(name: str, value: object) -> object:
    """Convert a value from a file, the environment or a flag to the type of its setting. Raises ConfigError."""
    section, _, key = name.partition(".")
    kind = _SECTIONS.get(section, {}).get(key)
    if kind is None:
        raise ConfigError(f"{name}: unknown setting{known_names(_SECTIONS, name)}")
    return converted(name, kind, value)


def setting_of_rocketmq(name: str, text: str) -> tuple[str, object] | None:
    """The setting for a RocketMQ key, and its value; None for an unsupported key. Raises ConfigError."""
    return of_rocketmq(name, text, _SECTIONS)


def _store_host(listen: ListenConfig) -> tuple[str, int]:
    """The IP address and port that records name as the broker's."""
    for address in (listen.advertise, listen.grpc):
        if address is not None and not address.is_wildcard:
            try:
                return str(ipaddress.ip_address(address.host)), address.port or 8081
            except ValueError:
                continue  # a name: records can only contain addresses
    return "127.0.0.1", listen.grpc.port or 8081


_SECTION_TYPES: Final[dict[str, type[Section]]] = {
    name: kind
    for name, kind in settings_of(BrokerConfig).items()
    if isinstance(kind, type) and issubclass(kind, Section)
}
_SECTIONS: Final[dict[str, dict[str, Any]]] = {
    "broker": {name: settings_of(BrokerConfig)[name] for name in ("name", "cluster", "namesrv", "dev")},
    **{name: dict(settings_of(kind)) for name, kind in _SECTION_TYPES.items()},
}
del _SECTIONS["store"]["store_host"]  # derived from the addresses
# A developer's disk is full of other things. Only disk_headroom limits the broker there, and nothing is removed early.
_DEV_DEFAULTS: Final[dict[str, dict[str, Any]]] = {
    "store": {"disk_force_clean_ratio": 1.0, "disk_full_ratio": 1.0},
    "listen": {"leave_seconds": 0.0},
}


def _take_out_foreign_paths(
    values: dict[str, object], sources: dict[str, Source], directories: Mapping[Source, Path]
) -> tuple[Path, ...]:
    """Remove the paths of the log that a source names for another store than the one that is opened; return them.

    A flag or the environment may name another directory than the settings file does. The log paths in that file then
    belong to its own store, which may be in use, perhaps by RocketMQ. Without storePathRootDir, that of a broker.conf
    is unknown. Paths in the directory that is opened are used in any case. `directories`: `store.directory` by source.
    """
    if not directories:
        return ()
    opened = directories[sources["store.directory"]]
    foreign: list[Path] = []
    for name in ("store.commit_log_paths", "store.read_only_commit_log_paths"):
        source = sources.get(name)
        if source is None or directories.get(source, None if source == "rocketmq-conf" else opened) == opened:
            continue
        paths = _paths(name, values[name])
        outside = [path for path in paths if not path.resolve().is_relative_to(opened)]
        values[name] = tuple(path for path in paths if path not in outside)
        foreign += outside
    return tuple(foreign)


def _paths(name: str, value: object) -> tuple[Path, ...]:
    """The value of a setting that is a path or several."""
    found = setting_of_text(name, value)
    return found if isinstance(found, tuple) else (Path(str(found)),)
