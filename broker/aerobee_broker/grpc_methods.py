"""The gRPC methods of a broker: every service with its processors, made of the broker's parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from aerobee_broker.front.methods import Method
from aerobee_broker.limits.wakes import Gate
from aerobee_broker.listening.listeners import Listening
from aerobee_broker.namesrv.cluster_routes import ClusterRoutes
from aerobee_broker.parts import BrokerParts
from aerobee_broker.processors.acknowledge import AcknowledgeProcessor
from aerobee_broker.processors.administration.accounts import AccountAdministration
from aerobee_broker.processors.administration.accumulation import Accumulation
from aerobee_broker.processors.administration.browse import MessageBrowser
from aerobee_broker.processors.administration.clients import ClientAdministration, OtherClients
from aerobee_broker.processors.administration.configuration import ConfigurationAdministration
from aerobee_broker.processors.administration.dead_letters import DeadLetterAdministration
from aerobee_broker.processors.administration.groups import GroupAdministration
from aerobee_broker.processors.administration.inventory import Inventory
from aerobee_broker.processors.administration.messages import MessageAdministration
from aerobee_broker.processors.administration.overview import Overview
from aerobee_broker.processors.administration.status import StatusAdministration
from aerobee_broker.processors.administration.tail import MessageTail
from aerobee_broker.processors.administration.topics import TopicAdministration
from aerobee_broker.processors.administration.trends import Trends
from aerobee_broker.processors.administration.waiting import WaitingMessages
from aerobee_broker.processors.heartbeat import HeartbeatProcessor
from aerobee_broker.processors.lite import LiteProcessor
from aerobee_broker.processors.pull import PullProcessor
from aerobee_broker.processors.query import QueryProcessor
from aerobee_broker.processors.recall import RecallProcessor
from aerobee_broker.processors.receive import ReceiveProcessor
from aerobee_broker.processors.records.append import AppendProcessor
from aerobee_broker.processors.records.offsets import OffsetsProcessor
from aerobee_broker.processors.records.query import QueryProcessor as RecordQueryProcessor
from aerobee_broker.processors.records.read import ReadProcessor
from aerobee_broker.processors.route import RouteProcessor
from aerobee_broker.processors.sending.send import SendProcessor
from aerobee_broker.processors.telemetry import TelemetryProcessor
from aerobee_broker.processors.transaction import TransactionProcessor
from aerobee_broker.remoting.connected import ConnectedRemoting
from aerobee_broker.remoting.service import RemotingService
from aerobee_broker.services import admin_service, aerobee_admin_service, messaging_service, record_service
from aerobee_broker.services.admin_service import AdminService
from aerobee_broker.services.aerobee_admin_service import Administration, aerobee_admin_methods
from aerobee_broker.services.listings import Listings
from aerobee_broker.services.messaging_service import MessagingProcessors, MessagingService
from aerobee_broker.services.record_service import RecordService
from aerobee_broker.services.requests import RequestLimits
from aerobee_broker.services.standard_services import health_methods, reflection_methods
from aerobee_broker.tables.operations import Operations
from aerobee_broker.tables.runtime_settings import RuntimeSettings
from aerobee_broker.timer.level_listing import AllWaiting
from aerobee_broker.watching.watch import Watch
from aerobee_proto import admin_v1

SERVICES: Final = (
    messaging_service.SERVICE,
    admin_service.SERVICE,
    aerobee_admin_service.SERVICE,
    record_service.SERVICE,
)
"""The services that health and reflection name."""


def grpc_methods(
    parts: BrokerParts,
    limits: RequestLimits,
    runtime_settings: RuntimeSettings,
    remoting: RemotingService,
    listening: Listening,
    cluster: ClusterRoutes,
    replication: Callable[[], admin_v1.BrokerReplication] | None,
    watch: Watch,
    operations: Operations,
    leaving: Gate,
    draining: Gate,
    hang_up: Callable[[str], None],
) -> dict[str, Method]:
    """All methods by path. Requests of operators over remoting get the same processors.

    `leaving` ends streams of health, and removes the broker from routes; `draining` ends streams of reflection,
    records and tails. `hang_up` ends the connection of this name once its calls are answered.
    """
    route = RouteProcessor(parts.settings, parts.tables, listening, cluster, leaving)
    send = SendProcessor(
        parts.settings, parts.store, parts.admission, parts.counters, parts.clock, parts.transactions, parts.timer
    )
    administration = _administration(
        parts,
        route,
        send,
        runtime_settings,
        listening,
        cluster,
        replication,
        watch,
        operations,
        draining,
        ConnectedRemoting(remoting.clients, parts.clock),
        hang_up,
    )
    remoting.administer(administration.topics, administration.groups, runtime_settings, parts.broker_stats, operations)
    listings = Listings()
    admin = AdminService(
        accounts=parts.accounts,
        counters=parts.counters,
        limits=limits,
        administration=administration,
        query=QueryProcessor(parts.store, parts.tables, parts.deliveries),
        operations=operations,
        listings=listings,
    )
    return {
        **MessagingService(parts, limits, _messaging_processors(parts, route, send)).methods(),
        **admin.methods(),
        **aerobee_admin_methods(administration, parts.counters, limits, parts.accounts, operations, listings),
        **_record_service(parts, limits, draining).methods(),
        **health_methods(SERVICES, leaving),
        **reflection_methods(SERVICES, draining),
    }


def _messaging_processors(parts: BrokerParts, route: RouteProcessor, send: SendProcessor) -> MessagingProcessors:
    settings, tables, deliveries = parts.settings, parts.tables, parts.deliveries
    return MessagingProcessors(
        route=route,
        heartbeat=HeartbeatProcessor(parts.clients),
        telemetry=TelemetryProcessor(settings, tables, parts.clients),
        send=send,
        receive=ReceiveProcessor(settings, tables, deliveries, parts.counters, parts.clock),
        pull=PullProcessor(settings, parts.store, tables, deliveries, parts.counters, parts.clock),
        lite=LiteProcessor(tables, deliveries),
        recall=RecallProcessor(tables, parts.timer),
        acknowledge=AcknowledgeProcessor(settings, deliveries, parts.counters),
        transaction=TransactionProcessor(parts.transactions, parts.counters),
    )


def _administration(
    parts: BrokerParts,
    route: RouteProcessor,
    send: SendProcessor,
    runtime_settings: RuntimeSettings,
    listening: Listening,
    cluster: ClusterRoutes,
    replication: Callable[[], admin_v1.BrokerReplication] | None,
    watch: Watch,
    operations: Operations,
    draining: Gate,
    others: OtherClients,
    hang_up: Callable[[str], None],
) -> Administration:
    config, clock, store, tables = parts.settings.current, parts.clock, parts.store, parts.tables
    clients, deliveries = parts.clients, parts.deliveries
    accumulation = Accumulation(config=config, store=store, tables=tables, deliveries=deliveries, clock=clock)
    return Administration(
        topics=TopicAdministration(
            settings=parts.settings, store=store, tables=tables, clients=clients, deliveries=deliveries, route=route
        ),
        groups=GroupAdministration(
            store=store,
            tables=tables,
            clients=clients,
            deliveries=deliveries,
            timer=parts.timer,
            accumulation=accumulation,
            clock=clock,
        ),
        clients=ClientAdministration(
            config=config,
            store=store,
            tables=tables,
            clients=clients,
            deliveries=deliveries,
            clock=clock,
            others=others,
            hang_up=hang_up,
        ),
        accumulation=accumulation,
        accounts=AccountAdministration(parts.accounts),
        messages=MessageAdministration(store=store, tables=tables, deliveries=deliveries, send=send, clock=clock),
        dead_letters=DeadLetterAdministration(
            settings=parts.settings,
            store=store,
            tables=tables,
            admission=parts.admission,
            counters=parts.counters,
            deliveries=deliveries,
            deleted=parts.deleted_letters,
        ),
        configuration=ConfigurationAdministration(runtime_settings),
        overview=Overview(
            store=store,
            tables=tables,
            clients=clients,
            deliveries=deliveries,
            broker_stats=parts.broker_stats,
            deleted_letters=parts.deleted_letters,
            others=others,
        ),
        browser=MessageBrowser(store=store, tables=tables, loop_share=deliveries.loop_share),
        tail=MessageTail(
            store=store,
            tables=tables,
            long_polling=deliveries.long_polling,
            loop_share=deliveries.loop_share,
            accounts=parts.accounts,
            draining=draining,
        ),
        trends=Trends(watch, tables),
        inventory=Inventory(settings=parts.settings, store=store, operations=operations, clock=clock),
        waiting=WaitingMessages(
            settings=parts.settings,
            tables=tables,
            timer=parts.timer,
            level_delay=parts.level_delay,
            delayed=AllWaiting(store, parts.timer.listing, parts.level_delay, deliveries.loop_share),
            transactions=parts.transactions,
            counters=parts.counters,
        ),
        status=StatusAdministration(parts, listening, replication, cluster),
    )


def _record_service(parts: BrokerParts, limits: RequestLimits, draining: Gate) -> RecordService:
    settings, store, tables = parts.settings, parts.store, parts.tables
    return RecordService(
        accounts=parts.accounts,
        clients=parts.clients,
        counters=parts.counters,
        limits=limits,
        append=AppendProcessor(settings, store, parts.admission, parts.counters, parts.clock, parts.timer),
        read=ReadProcessor(settings, store, tables, parts.deliveries.long_polling, parts.counters),
        query=RecordQueryProcessor(store, tables, parts.deliveries.loop_share),
        offsets=OffsetsProcessor(settings, store, tables),
        draining=draining,
    )
