"""The errors of a client, as one small tree. The text of every error names the cause and the next step.

ClientError
  InvalidEndpointError      the given endpoint is not HOST:PORT
  ConfigurationError        credentials or TLS files that cannot be used
  UnavailableError          no server answers at the endpoint; a retry may help
  DeadlineError             no answer in time; the call may have taken effect
  ServerError               the server answered with a code (`code`) other than OK
    BadRequestError         4xxxx: the request is invalid
      NotFoundError         404xx: no such topic, group, message or offset
      ForbiddenError        401xx, 403xx: not allowed
    TooManyRequestsError    429xx: a later retry may help
    InternalServerError     5xxxx: a retry may help
      UnsupportedError      501xx, or the server does not support the call
  BatchError                some items of one call failed; `outcomes` has one entry per item
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import grpc

from aerobee_proto import v2


class ClientError(Exception):
    """Root of all errors that this package raises on purpose."""


class InvalidEndpointError(ClientError, ValueError):
    """An endpoint is not `HOST:PORT`."""


class ConfigurationError(ClientError, ValueError):
    """Credentials, or files for TLS, cannot be used."""


class UnavailableError(ClientError):
    """The endpoint does not answer, or the connection broke."""


class DeadlineError(ClientError):
    """No answer in time. A send or acknowledgement may have succeeded nevertheless."""


class ServerError(ClientError):
    """The server's answer was not OK; `code` is the protocol's number, `server_message` the server's text."""

    def __init__(self, code: int, server_message: str) -> None:
        super().__init__(f"{server_message or 'the server gave no reason'} ({code_name(code)} {code})")
        self.code = code
        self.server_message = server_message


class BadRequestError(ServerError):
    """The request is invalid; a retry does not help."""


class NotFoundError(BadRequestError):
    """The topic, group, message or offset does not exist."""


class ForbiddenError(BadRequestError):
    """Not allowed: authentication, authorization, or a topic without the permission."""


class TooManyRequestsError(ServerError):
    """A limit of the server is reached; retry later."""


class InternalServerError(ServerError):
    """The server failed. It may have done part of the work."""


class UnsupportedError(InternalServerError):
    """The server does not support this call."""


class BatchError(ClientError):
    """Some items of one call failed. `outcomes` has one entry per item, in order: its result or its error."""

    def __init__(self, outcomes: Sequence[object]) -> None:
        failed = [outcome for outcome in outcomes if isinstance(outcome, ClientError)]
        super().__init__(f"{len(failed)} of {len(outcomes)} failed, the first with: {failed[0]}")
        self.outcomes = outcomes


# The longest matching prefix wins: 404xx before 4xxxx.
_BY_PREFIX: dict[str, type[ServerError]] = {
    "4": BadRequestError,
    "401": ForbiddenError,
    "403": ForbiddenError,
    "404": NotFoundError,
    "429": TooManyRequestsError,
    "5": InternalServerError,
    "501": UnsupportedError,
}


def code_name(code: int) -> str:
    """The protocol's name of a code; "code" for an unknown one."""
    try:
        return str(v2.Code.Name(code))  # type: ignore[arg-type]  # any number may come from the wire
    except ValueError:
        return "code"


def status_error(status: v2.Status) -> ServerError | None:
    """The error for `status`; None if it is OK."""
    if status.code == v2.Code.OK:
        return None
    digits = str(int(status.code))
    for length in (3, 1):
        if kind := _BY_PREFIX.get(digits[:length]):
            return kind(status.code, status.message)
    return ServerError(status.code, status.message)


def _cause(details: str) -> str:
    """Why there is no connection, in plain words where gRPC's are known."""
    lower = details.lower()
    for known in ("connection refused", "no route to host", "network is unreachable", "connection reset by peer"):
        if known in lower:
            return known
    if "name resolution" in lower or "dns" in lower or "domain name" in lower:
        return "the name of the host is not known"
    return details


def rpc_error(error: grpc.RpcError, endpoint: str) -> ClientError:
    """The error for a call without an answer of the protocol."""
    call: Any = error  # grpc.aio raises AioRpcError, whose methods the stubs of RpcError lack
    code, details = call.code(), call.details() or ""
    if code == grpc.StatusCode.UNAVAILABLE and "handshake" in details.lower():
        return UnavailableError(
            f"no TLS connection to {endpoint}: give the TLS address of the broker, and the authority that "
            f"signed its certificate for this name ({details})"
        )
    if code == grpc.StatusCode.UNAVAILABLE and "http/2" in details.lower():
        return UnavailableError(
            f"{endpoint} is not the gRPC address of a broker: what listens there speaks another protocol; give the "
            "address after `grpc=` in the broker's ready line (8081 by default), not that of metrics or remoting"
        )
    if code == grpc.StatusCode.UNAVAILABLE:
        # Plaintext at a TLS address fails like this: the connection is made, and closed after the first bytes.
        tls = ", or use TLS if it listens with TLS there" if "socket closed" in details.lower() else ""
        return UnavailableError(
            f"no broker answers at {endpoint}; start one with `aerobee serve`, or give the right address{tls} "
            f"({_cause(details)})"
        )
    if code == grpc.StatusCode.DEADLINE_EXCEEDED:
        return DeadlineError(f"{endpoint} did not answer in time; try again, or allow a longer timeout")
    if code == grpc.StatusCode.UNIMPLEMENTED:
        return UnsupportedError(v2.Code.NOT_IMPLEMENTED, f"the server at {endpoint} does not implement this call")
    name, colon, message = details.partition(": ")
    if colon and name in v2.Code.keys():  # noqa: SIM118  # how a Telemetry stream says it; an enum is no mapping
        return status_error(v2.Status(code=v2.Code.Value(name), message=message)) or ClientError(details)
    if code == grpc.StatusCode.INVALID_ARGUMENT:  # RocketMQ refuses settings like this
        return BadRequestError(v2.Code.BAD_REQUEST, details)
    return ClientError(f"the call to {endpoint} failed: {code.name}: {details}")
