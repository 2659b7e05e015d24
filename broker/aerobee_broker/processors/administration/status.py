"""The present state of the broker and its store, and their activity since the start."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from typing import Final

from aerobee_broker.clients.registry import Client
from aerobee_broker.errors import InvalidRequestError
from aerobee_broker.listening.listeners import Listening
from aerobee_broker.namesrv.cluster_routes import ClusterRoutes
from aerobee_broker.parts import BrokerParts
from aerobee_broker.processors.administration.wire import OK, is_own_topic, page_count, page_of, timestamp
from aerobee_broker.statistics.broker_stats import GroupTraffic, TopicTraffic, Window
from aerobee_broker.tables.consumer_groups import is_system_group
from aerobee_proto import admin_v1, v2

_WINDOWS: Final[dict[admin_v1.TrafficWindow.ValueType, Window]] = {
    admin_v1.TrafficWindow.TRAFFIC_WINDOW_UNSPECIFIED: "minute",
    admin_v1.TrafficWindow.TRAFFIC_WINDOW_MINUTE: "minute",
    admin_v1.TrafficWindow.TRAFFIC_WINDOW_HOUR: "hour",
    admin_v1.TrafficWindow.TRAFFIC_WINDOW_DAY: "day",
}
_TRAFFIC_COUNT: Final = 100


class StatusAdministration:
    """One method per RPC."""

    def __init__(
        self,
        parts: BrokerParts,
        listening: Listening,
        replication: Callable[[], admin_v1.BrokerReplication] | None,
        cluster: ClusterRoutes,
    ) -> None:
        """`replication` of a master; None: the broker takes no part in it."""
        self._cluster = cluster
        self._replication = replication
        self._config = parts.settings.current
        self._store = parts.store
        self._tables = parts.tables
        self._clients = parts.clients
        self._deliveries = parts.deliveries
        self._transactions = parts.transactions
        self._timer = parts.timer
        self._broker_stats = parts.broker_stats
        self._clock = parts.clock
        self._listening = listening
        self._started_ms = parts.clock.now_ms()

    async def broker_status(
        self, _request: admin_v1.GetBrokerStatusRequest, _: Client
    ) -> admin_v1.GetBrokerStatusResponse:
        flush = admin_v1.FlushMode.FLUSH_MODE_SYNC
        if self._config.store.flush == "async":
            flush = admin_v1.FlushMode.FLUSH_MODE_ASYNC
        response = admin_v1.GetBrokerStatusResponse(
            status=OK,
            name=self._config.name,
            cluster=self._config.cluster,
            version=broker_version(),
            start_timestamp=timestamp(self._started_ms),
            listen_addresses=[str(address) for address in self._listening],
            store_state=self._store_state(),
            flush_mode=flush,
            topic_count=sum(1 for topic in self._tables.topics if not is_own_topic(topic.name)),
            group_count=sum(1 for group in self._tables.groups if not is_system_group(group.name)),
            client_count=len(self._clients),
            statistics=self._statistics(),
            replication=None if self._replication is None else self._replication(),
        )
        response.uptime.FromMilliseconds(max(0, self._clock.now_ms() - self._started_ms))
        return response

    async def list_brokers(self, request: admin_v1.ListBrokersRequest, _: Client) -> admin_v1.ListBrokersResponse:
        found, cause = await self._cluster.members()
        if not cause and self._config.name_servers and not self._cluster.has_name_server:
            cause = (
                f"not registered with any of {', '.join(map(str, self._config.name_servers))}; the log has the cause"
            )
        members = {member.name: member for member in found}
        page, token = page_of(list(members), request.page_size, request.page_token)
        brokers = [
            admin_v1.ClusterBroker(
                name=name,
                cluster=members[name].cluster,
                addresses=members[name].addresses,
                grpc_address=members[name].grpc,
                is_this=name == self._config.name,
            )
            for name in page
        ]
        return admin_v1.ListBrokersResponse(status=OK, brokers=brokers, next_page_token=token, error=cause)

    async def store_status(
        self, _request: admin_v1.GetStoreStatusRequest, _: Client
    ) -> admin_v1.GetStoreStatusResponse:
        status, stats = self._store.status(), self._store.stats
        response = admin_v1.GetStoreStatusResponse(
            status=OK,
            directory=str(status.directory.absolute()),
            min_physical_offset=status.min_offset,
            max_physical_offset=status.wrote,
            committed_physical_offset=status.committed,
            flushed_physical_offset=status.flushed,
            dispatched_physical_offset=status.dispatched,
            segment_count=status.segments,
            segment_bytes=status.segments * status.segment_size,
            queue_count=status.queues,
            disk_total_bytes=status.disk.total,
            disk_used_bytes=status.disk.used,
            log_disks=[
                admin_v1.LogDisk(path=str(path), total_bytes=disk.total, used_bytes=disk.used)
                for path, disk in status.log_disks.items()
            ],
            fsync_count=stats.sync_seconds.count,
            last_fsync_seconds=stats.sync_seconds.last,
            recovery_seconds=stats.recovery_seconds,
            damaged_range_count=status.damaged_ranges,
            checksum_failures=stats.checksum_failures,
            messages_appended=stats.messages_appended,
            bytes_appended=stats.bytes_appended,
            state=self._store_state(),
        )
        if status.oldest_timestamp is not None:
            response.oldest_timestamp.CopyFrom(timestamp(status.oldest_timestamp))
        return response

    async def list_traffic(self, request: admin_v1.ListTrafficRequest, _: Client) -> admin_v1.ListTrafficResponse:
        window = _WINDOWS.get(request.window)
        if window is None:
            raise InvalidRequestError(
                v2.Code.BAD_REQUEST, f"window {request.window} is unknown; choose minute, hour or day"
            )
        count = page_count(request.count, default=_TRAFFIC_COUNT)
        seconds = self._broker_stats.seconds(window)
        response = admin_v1.ListTrafficResponse(status=OK, window=_duration(seconds * 1000))
        _add_topics(response, self._broker_stats.topics(window), request.topic, count, seconds)
        _add_groups(response, self._broker_stats.groups(window), request.topic, count, seconds)
        return response

    async def runtime_stats(
        self, _request: v2.GetProxyRuntimeStatsRequest, _: Client
    ) -> v2.GetProxyRuntimeStatsResponse:
        """Admin.GetProxyRuntimeStats: there is no proxy, so these are the broker's name and figures."""
        statistics = self._statistics()
        return v2.GetProxyRuntimeStatsResponse(
            status=OK,
            proxy_name=self._config.name,
            version=broker_version(),
            in_tps=statistics.messages_in_rate,
            out_tps=statistics.messages_out_rate,
            connections=len(self._clients),
            producers=statistics.producers,
            consumers=statistics.consumers,
        )

    def _store_state(self) -> admin_v1.StoreState:
        status = self._store.status()
        running = status.state == "open"
        return admin_v1.StoreState(
            running=running,
            readable=status.state != "closed" and status.running_flags.readable,
            writable=running and status.running_flags.writable,
            reason=status.failure or status.refusal,
        )

    def _statistics(self) -> admin_v1.BrokerStatistics:
        incoming, outgoing = self._broker_stats.per_second()
        connected = self._clients.all()
        return admin_v1.BrokerStatistics(
            messages_in=self._broker_stats.messages_in,
            messages_out=self._broker_stats.messages_out,
            messages_in_rate=incoming,
            messages_out_rate=outgoing,
            acknowledged=self._deliveries.stats.acknowledged,
            redelivered=self._deliveries.stats.redelivered,
            dead_letters=self._deliveries.stats.dead_letters,
            waiting_receives=self._deliveries.long_polling.waiting_count,
            delayed=sum(self._timer.stats.pending.values()),
            undecided=self._transactions.pending_count,
            producers=sum(1 for client in connected if client.client_type == v2.ClientType.PRODUCER),
            consumers=sum(1 for client in connected if client.is_consumer),
        )


def _duration(milliseconds: float) -> v2.Duration:
    found = v2.Duration()
    found.FromMicroseconds(round(milliseconds * 1000))
    return found


def broker_version() -> str:
    """The version of the installed package."""
    from importlib.metadata import PackageNotFoundError, version  # looked up late, to keep the start fast

    try:
        return version("aerobee")
    except PackageNotFoundError:
        return "unknown"


def _add_topics(
    response: admin_v1.ListTrafficResponse,
    traffic: Mapping[str, TopicTraffic],
    wanted: str,
    count: int,
    seconds: float,
) -> None:
    topics = {name: sent for name, sent in traffic.items() if not wanted or name == wanted}
    for topic in heapq.nlargest(count, topics, key=lambda name: topics[name].messages):
        sent = topics[topic]
        response.topics.add(
            topic=topic,
            messages=sent.messages,
            bytes=sent.bytes,
            messages_rate=sent.messages / seconds if seconds else 0.0,
            latency=_duration(sent.milliseconds / max(sent.requests, 1)),
        )


def _add_groups(
    response: admin_v1.ListTrafficResponse,
    traffic: Mapping[tuple[str, str], GroupTraffic],
    wanted: str,
    count: int,
    seconds: float,
) -> None:
    groups = {key: got for key, got in traffic.items() if not wanted or key[0] == wanted}
    for key in heapq.nlargest(count, groups, key=lambda key: groups[key].messages):
        got = groups[key]
        response.groups.add(
            topic=key[0],
            group=key[1],
            messages=got.messages,
            bytes=got.bytes,
            messages_rate=got.messages / seconds if seconds else 0.0,
            latency=_duration(got.milliseconds / max(got.messages, 1)),
            acknowledged=got.acknowledged,
            changed=got.changed,
            dead_letters=got.dead_letters,
        )
