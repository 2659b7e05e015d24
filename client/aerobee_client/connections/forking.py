"""gRPC does not survive a fork: in the child of a process that used a client, a new one would hang."""

from __future__ import annotations

import os

from aerobee_client.errors import ConfigurationError

_used = False
_parent_used = False


def use() -> None:
    """A client is made. ConfigurationError in a process where it would hang."""
    global _used
    if _parent_used:
        raise ConfigurationError(
            "this process was forked from one that used a client, and gRPC does not survive that; start it by spawn "
            "(Celery: worker_pool_start_method = 'spawn'), or fork before the first client"
        )
    _used = True


def _after_fork() -> None:
    global _parent_used
    _parent_used = _parent_used or _used


os.register_at_fork(after_in_child=_after_fork)
