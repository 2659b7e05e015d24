"""The settings of a broker: one module for each section, `broker` for the whole, and the sources of values."""

from aerobee_broker.config.address import Address
from aerobee_broker.config.auth import AuthConfig
from aerobee_broker.config.broker import (
    BrokerConfig,
    Settings,
    Source,
    setting_names,
    setting_of_rocketmq,
    setting_of_text,
)
from aerobee_broker.config.conversion import setting_text
from aerobee_broker.config.groups import GroupsConfig
from aerobee_broker.config.limits import LimitsConfig
from aerobee_broker.config.listen import ListenConfig
from aerobee_broker.config.sources import ENVIRONMENT_PREFIX
from aerobee_broker.config.tls import TlsConfig
from aerobee_broker.config.topics import TopicsConfig

__all__ = [
    "ENVIRONMENT_PREFIX",
    "Address",
    "AuthConfig",
    "BrokerConfig",
    "GroupsConfig",
    "LimitsConfig",
    "ListenConfig",
    "Settings",
    "Source",
    "TlsConfig",
    "TopicsConfig",
    "setting_names",
    "setting_of_rocketmq",
    "setting_of_text",
    "setting_text",
]
