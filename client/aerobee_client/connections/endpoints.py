"""Addresses of brokers as written by users, as used by gRPC, and as sent on the wire."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence

from aerobee_client.errors import InvalidEndpointError
from aerobee_proto import v2

_ENDPOINT = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<host>[^\s:/\[\],;]+)):(?P<port>[0-9]{1,5})")
_SEPARATOR = re.compile(r"[;,]")


def parse_endpoint(endpoint: str) -> v2.Endpoints:
    """`HOST:PORT` or `[IPV6]:PORT`. InvalidEndpointError if it is neither."""
    match = _ENDPOINT.fullmatch(endpoint)
    if match is None or not 1 <= int(match["port"]) <= 65535:
        raise InvalidEndpointError(f"the endpoint {endpoint!r} is not HOST:PORT; give one such as 127.0.0.1:8081")
    host = match["v6"] or match["host"]
    try:
        six = ipaddress.ip_address(host).version == 6
        scheme = v2.AddressScheme.IPv6 if six else v2.AddressScheme.IPv4
    except ValueError:
        if match["v6"]:
            raise InvalidEndpointError(f"{host!r} in the endpoint {endpoint!r} is not an IPv6 address") from None
        scheme = v2.AddressScheme.DOMAIN_NAME
    return v2.Endpoints(scheme=scheme, addresses=[v2.Address(host=host, port=int(match["port"]))])


def endpoint_text(endpoints: v2.Endpoints) -> str:
    """The first address of a route, as users write it; empty if there is none."""
    if not endpoints.addresses:
        return ""
    first = endpoints.addresses[0]
    return f"[{first.host}]:{first.port}" if ":" in first.host else f"{first.host}:{first.port}"


def split_endpoints(endpoints: str | Sequence[str]) -> list[str]:
    """One endpoint, several joined by `;` or `,`, or a sequence of them, as a list without duplicates.

    InvalidEndpointError if one of them is not `HOST:PORT`, or the list is empty.
    """
    if not isinstance(endpoints, str) and not (
        isinstance(endpoints, Sequence) and all(isinstance(each, str) for each in endpoints)
    ):
        raise InvalidEndpointError(f"the endpoint {endpoints!r} is no text; give one such as '127.0.0.1:8081'")
    parts = _SEPARATOR.split(endpoints) if isinstance(endpoints, str) else endpoints
    found = list(dict.fromkeys(part.strip() for part in parts))
    if not found:
        raise InvalidEndpointError("no endpoint is given; give one such as 127.0.0.1:8081")
    for endpoint in found:
        parse_endpoint(endpoint)
    return found
