"""Configuration of a broker: one frozen object, built once by `BrokerConfig.load` and passed down.

A setting has a full name, `<section>.<key>`. A source in this list overrides the later ones:

    flags of the command line
    the environment            AEROBEE_<SECTION>_<KEY>, as AEROBEE_STORE_DIRECTORY
    a TOML file (--config)     [section] and key
    a RocketMQ broker.conf     under RocketMQ's names, see `_ROCKETMQ_KEYS`
    the defaults below

Settings saved by `aerobee config set` rank between the environment and the TOML file: runtime_settings.py.

Unknown names and invalid values raise ConfigError with the full name and the next step. Only unknown names in
broker.conf are tolerated: they are kept in `ignored_rocketmq_keys` and listed at start.
"""

from __future__ import annotations

import ipaddress
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, ClassVar, Final, Literal, Self, get_args, get_origin

from msgspec import Meta

from aerobee_broker.delivery.config import DeliveryConfig
from aerobee_broker.front.config import FrontConfig
from aerobee_broker.replication.config import ReplicationConfig
from aerobee_broker.tables.topics import QUEUE_COUNT_MAX
from aerobee_broker.timer.config import PRECISIONS_MS, TimerConfig
from aerobee_broker.transactions.config import TransactionsConfig
from aerobee_store.config import (
    BATCH_UNIT_SIZE,
    UNIT_SIZE,
    Positive,
    Seconds,
    SecondsOrZero,
    Section,
    StoreConfig,
    checked,
    settings_of,
)
from aerobee_store.errors import ConfigError

ENVIRONMENT_PREFIX: Final = "AEROBEE_"
DIRECTORY_DEFAULT: Final = Path("data")
Source = Literal["default", "rocketmq-conf", "file", "saved", "environment", "flag"]
_UNIX: Final = "unix:"
_UNIX_PATH_MAX: Final = 107  # bytes; Linux has 108 with the zero at the end
_SIZE_UNITS: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_SIZE = re.compile(r"(\d+)\s*(?:([kmgt])(?:i?b)?)?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Address:
    """A host, by IP address or name, and a TCP port (0: any that is free); or `unix:PATH`, a Unix socket, as host."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Address:
        """`host:port`, `[IPv6]:port` or `unix:PATH`. ValueError if it is none of these."""
        if text.startswith(_UNIX):
            if not 0 < len(text.removeprefix(_UNIX).encode()) <= _UNIX_PATH_MAX or "\0" in text:
                raise ValueError(f"the path of a Unix socket must have 1 to {_UNIX_PATH_MAX} bytes")
            return cls(text, 0)
        host, colon, port = text.rpartition(":")
        if host.startswith("[") and host.endswith("]"):
            host = str(ipaddress.IPv6Address(host[1:-1]))
        elif ":" in host:
            raise ValueError("an IPv6 address needs brackets: [address]:port")
        if not colon or not host or host.strip() != host or not port.isascii() or not port.isdigit():
            raise ValueError("expected host:port")
        if int(port) > 65535:
            raise ValueError("the port is above 65535")
        return cls(host, int(port))

    @property
    def unix_path(self) -> Path | None:
        """The path of a Unix socket; None for TCP."""
        return Path(self.host.removeprefix(_UNIX)) if self.host.startswith(_UNIX) else None

    def __str__(self) -> str:
        if self.host.startswith(_UNIX):
            return self.host
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def dialled(self) -> Address:
        """The address for clients on this machine."""
        return Address({"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host), self.port)  # noqa: S104

    @property
    def is_loopback(self) -> bool:
        """Whether only processes on this machine can reach it."""
        if self.host.startswith(_UNIX):
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    @property
    def is_wildcard(self) -> bool:
        """Whether the address means every interface."""
        try:
            return ipaddress.ip_address(self.host).is_unspecified
        except ValueError:
            return False


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenConfig(Section):
    """The addresses of the broker."""

    section: ClassVar[str] = "listen"

    grpc: Address = Address("127.0.0.1", 8081)  # plaintext, and also TLS if there is a certificate; or a Unix socket
    unix_mode: str = "600"  # permissions of a Unix socket, as for chmod
    tls: Address | None = None  # TLS only; None: not used
    remoting: Address | None = None  # for RocketMQ 4 clients and mqadmin; None: not used
    front: Literal["native", "grpcio"] = "native"  # the gRPC server: native HTTP/2 or grpcio's server
    metrics: Address = Address("127.0.0.1", 5557)  # /metrics, /healthz, /readyz; the port of RocketMQ's exporter
    advertise: Address | None = None  # the address given to clients; None: the one they connected to
    advertise_remoting: Address | None = None  # the address given to name servers; None: the listening address
    advertise_tls: Address | None = None  # as `advertise`, for clients that connected with TLS
    drain_seconds: SecondsOrZero = 5.0  # how long a stop waits for running calls


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsConfig(Section):
    """The certificate for TLS, and its key: PEM files. Reloaded when they change."""

    section: ClassVar[str] = "tls"

    certificate: Path | None = None  # including its chain; None: made when needed, with broker.dev only
    key: Path | None = None
    client_authorities: Path | None = (
        None  # the authorities that sign certificates of clients, PEM; None: clients are not asked for one
    )
    client_certificates: Literal["required", "optional"] = "required"  # with client_authorities


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthConfig(Section):
    """Authentication of callers."""

    section: ClassVar[str] = "auth"

    # a file of accounts, see accounts.py; reloaded when it changes. None: no authentication
    accounts: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicsConfig(Section):
    """Creation of topics on first use."""

    section: ClassVar[str] = "topics"

    auto_create: bool | None = None  # autoCreateTopicEnable; None: only with broker.dev
    queue_count: Annotated[int, Meta(ge=1, le=QUEUE_COUNT_MAX)] = 8  # defaultTopicQueueNums


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupsConfig(Section):
    """Creation of consumer groups on first use."""

    section: ClassVar[str] = "groups"

    auto_create: bool | None = None  # autoCreateSubscriptionGroup; None: only with broker.dev


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitsConfig(Section):
    """Limits of requests and clients. The defaults are RocketMQ's."""

    section: ClassVar[str] = "limits"

    user_property_count_max: Positive = 128
    properties_size_max: Positive = 16384  # bytes: user properties, tag and keys of one message
    delay_seconds_max: Seconds = 40 * 86_400.0  # timerMaxDelaySec, there 3 days
    client_expiry_seconds: Seconds = 120.0  # a client that is silent for longer is removed
    # of all requests in progress; reading continues when some have been answered
    request_bytes_max: Positive = 128 << 20
    request_bytes_per_client_max: Positive = 32 << 20  # the same, per connection and per account
    answer_bytes_max: Positive = 128 << 20  # of messages read for receives and pulls but not yet sent
    answer_bytes_per_client_max: Positive = 32 << 20  # the same, per connection and per account


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
    ignored_rocketmq_keys: tuple[str, ...] = ()  # keys of broker.conf that have no effect here
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
        self._check_unix()
        self._check_tls()

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
            "listen": ListenConfig(grpc=loopback, metrics=loopback, drain_seconds=0.5),
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

        def take(source: Source, found: Mapping[str, object]) -> None:
            values.update(found)
            sources.update(dict.fromkeys(found, source))

        ignored: tuple[str, ...] = ()
        if rocketmq_conf is not None:
            found, ignored = _from_rocketmq(rocketmq_conf)
            take("rocketmq-conf", found)
        if config_file is not None:
            take("file", _from_toml(config_file))
        take("environment", _from_environment(environment or {}))
        take("flag", {name: value for name, value in (flags or {}).items() if value is not None})

        given: dict[str, dict[str, Any]] = {section: {} for section in _SECTIONS}
        for name, value in values.items():
            section, _, key = name.partition(".")
            given.setdefault(section, {})[key] = setting_of_text(name, value)
        own, listen = given.pop("broker"), ListenConfig(**given["listen"])
        defaults = {"directory": DIRECTORY_DEFAULT, "store_host": _store_host(listen)}
        given["store"] = {**defaults, **(_DEV_STORE_DEFAULTS if own.get("dev") else {}), **given["store"]}
        sections: dict[str, Any] = {name: _SECTION_TYPES[name](**found) for name, found in given.items()}
        return cls(**own, **sections, ignored_rocketmq_keys=ignored, sources=sources)

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
        raise ConfigError(f"{name}: unknown setting{_known_names(name)}")
    return _converted(name, kind, value)


def setting_of_rocketmq(name: str, text: str) -> tuple[str, object] | None:
    """The setting for a RocketMQ key, and its value; None for an unsupported key. Raises ConfigError."""
    known = _ROCKETMQ_KEYS.get(name)
    if known is None:
        return None
    setting, convert = known
    try:
        return setting, _converted(setting, _kind(setting), convert(text))
    except (ValueError, KeyError):
        raise ConfigError(f"{name}: {text!r} is not a valid value; correct it") from None


def setting_text(value: object) -> str:
    """A value as text for `setting_of_text`; empty for None, which has no text."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return f"{value:.15g}" if isinstance(value, float) else str(value)


def _store_host(listen: ListenConfig) -> tuple[str, int]:
    """The IP address and port that records name as the broker's."""
    for address in (listen.advertise, listen.grpc):
        if address is not None and not address.is_wildcard:
            try:
                return str(ipaddress.ip_address(address.host)), address.port or 8081
            except ValueError:
                continue  # a name: records can only contain addresses
    return "127.0.0.1", listen.grpc.port or 8081


# --- Sources of values --------------------------------------------------------------------------------------


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
_DEV_STORE_DEFAULTS: Final = {"disk_force_clean_ratio": 1.0, "disk_full_ratio": 1.0}


def _from_toml(path: Path) -> dict[str, object]:
    try:
        document = tomllib.loads(path.read_bytes().decode())
    except OSError as error:
        raise ConfigError(f"--config {path}: {error.strerror}; check the path") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"--config {path}: not valid TOML: {error}") from None
    values: dict[str, object] = {}
    for section, content in document.items():
        if not isinstance(content, dict):
            raise ConfigError(f"{section}: a setting must be in a section; sections are [{'], ['.join(_SECTIONS)}]")
        if section not in _SECTIONS:
            raise ConfigError(f"[{section}]: unknown section; sections are [{'], ['.join(_SECTIONS)}]")
        values.update((f"{section}.{key}", value) for key, value in content.items())
    return values


def _from_environment(environment: Mapping[str, str]) -> dict[str, object]:
    values: dict[str, object] = {}
    for variable, value in environment.items():
        section, _, key = variable.removeprefix(ENVIRONMENT_PREFIX).lower().partition("_")
        # Other AEROBEE_ variables belong to other programs of the project.
        if variable.startswith(ENVIRONMENT_PREFIX) and section in _SECTIONS:
            if key not in _SECTIONS[section]:
                raise ConfigError(f"{variable}: unknown setting{_known_names(f'{section}.{key}')}")
            values[f"{section}.{key}"] = value
    return values


def _known_names(name: str) -> str:
    section = name.partition(".")[0]
    known = _SECTIONS.get(section)
    if known is None:
        return f"; sections are {', '.join(_SECTIONS)}"
    return f"; [{section}] has {', '.join(sorted(known))}"


def _converted(name: str, kind: Any, value: object) -> object:
    """Convert `value`, from TOML or text, to the type of the setting."""
    if get_origin(kind) is UnionType:  # every optional setting is `kind | None`, and None cannot be written
        kind = next(part for part in get_args(kind) if part is not type(None))
    plain = get_args(kind)[0] if get_origin(kind) is Annotated else kind
    if get_origin(plain) is tuple:  # as text with ";" or ",", as in RocketMQ
        part_kind = get_args(plain)[0]
        parts = re.split("[;,]", value) if isinstance(value, str) else value
        if not isinstance(parts, list | tuple):
            what = "paths, as ['/a', '/b']" if part_kind is Path else "whole numbers, as [4, 16]"
            raise ConfigError(f"{name}: {value!r} is not a list of {what}")
        value = tuple(_converted(name, part_kind, part) for part in parts if part != "")
    elif plain is Address and not isinstance(value, Address):
        try:
            value = Address.parse(value if isinstance(value, str) else "")
        except ValueError as error:
            raise ConfigError(f"{name}: {value!r} is not an address: {error}, such as 127.0.0.1:8081") from None
    elif plain is Path and isinstance(value, str | Path):
        if not str(value):
            raise ConfigError(f"{name}: the path is empty; name a directory")
        value = Path(value).expanduser()
    elif plain is int and isinstance(value, str):
        size = _SIZE.fullmatch(value.strip())
        if size is None:
            raise ConfigError(f"{name}: {value!r} is not a whole number; sizes may have a unit, such as 64MiB")
        value = int(size[1]) * _SIZE_UNITS[(size[2] or "").lower()]
    return checked(name, value, kind, from_text=True)


# --- RocketMQ's broker.conf ---------------------------------------------------------------------------------


def _milliseconds(text: str) -> object:
    return float(text) / 1000


def _flush_mode(text: str) -> object:
    return {"SYNC_FLUSH": "sync", "ASYNC_FLUSH": "async"}[text]


def _comma_separated(text: str) -> object:
    return [part.strip() for part in text.split(",") if part.strip()]


def _delay_levels(text: str) -> object:
    """RocketMQ's form: `1s 5s 10m 2h`."""
    units = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
    return [int(word[:-1]) * units[word[-1]] for word in text.split()]


def _queue_file_size(text: str) -> object:
    return -(-int(text) // UNIT_SIZE) * UNIT_SIZE  # RocketMQ also rounds up


def _batch_queue_file_size(text: str) -> object:
    return -(-int(text) // BATCH_UNIT_SIZE) * BATCH_UNIT_SIZE


def _hours(text: str) -> object:
    return int(text) / 3_600_000


def _ratio(lowest: int, highest: int) -> Callable[[str], object]:
    """Convert a percentage, which RocketMQ silently limits to its range."""
    return lambda text: min(max(int(text), lowest), highest) / 100


def _timer_precision(text: str) -> object:
    # RocketMQ rounds down to a supported step, and up to the smallest.
    return max((step for step in PRECISIONS_MS if step <= int(text)), default=PRECISIONS_MS[0])


def _same(text: str) -> object:
    return text


_ROCKETMQ_KEYS: Final[dict[str, tuple[str, Callable[[str], object]]]] = {
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


def _from_rocketmq(path: Path) -> tuple[dict[str, object], tuple[str, ...]]:
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
        known = _ROCKETMQ_KEYS.get(name)
        if known is None:
            ignored.append(name if name.isprintable() else ascii(name)[1:-1])  # it is shown on a terminal
            continue
        setting, convert = known
        try:
            values[setting] = _converted(setting, _kind(setting), convert(value))
        except (ValueError, KeyError):
            # ConfigError is a ValueError that names our setting, but the user wrote RocketMQ's.
            raise ConfigError(f"{name} in {path}: {value!r} is not a valid value; correct the file") from None
    if {"transientStorePoolEnable", "writeWithoutMmap"} & properties.keys():
        # As in RocketMQ: the pool, unless files must be written by system calls; otherwise our default.
        pool = _switch(properties, "transientStorePoolEnable", path)
        if pool and not _switch(properties, "writeWithoutMmap", path):
            values["store.write_mode"] = "pool"
        ignored = [name for name in ignored if name not in ("transientStorePoolEnable", "writeWithoutMmap")]
    return values, tuple(ignored)


def _switch(properties: Mapping[str, str], name: str, path: Path) -> bool:
    value = properties.get(name, "false")
    if value.lower() not in ("true", "false"):
        raise ConfigError(f"{name} in {path}: {value!r} is not a valid value; correct the file")
    return value.lower() == "true"


def _kind(setting: str) -> Any:
    section, _, key = setting.partition(".")
    return _SECTIONS[section][key]


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
