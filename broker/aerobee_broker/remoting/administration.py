"""Administration by `mqadmin` and the dashboard: topics, groups, offsets, settings."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from aerobee_broker.clients.registry import Client
from aerobee_broker.config import Settings, setting_of_rocketmq, setting_text
from aerobee_broker.errors import TableFormatError
from aerobee_broker.limits.loop_share import Turns, in_turns
from aerobee_broker.processors.administration.groups import GroupAdministration
from aerobee_broker.processors.administration.topics import TopicAdministration
from aerobee_broker.remoting.offsets import OffsetRequests
from aerobee_broker.remoting.whole_tables import WholeTables
from aerobee_broker.remoting_wire.codes import Answer, Request
from aerobee_broker.remoting_wire.connection import Connection, Handler
from aerobee_broker.remoting_wire.errors import RemotingError
from aerobee_broker.remoting_wire.fields import (
    DELETED_DEAD_LETTERS,
    DELETED_TOPICS,
    DELETIONS_AFTER,
    answer,
    body_object,
    boolean,
    integer,
    member,
    objects,
    text,
)
from aerobee_broker.remoting_wire.frame import Command
from aerobee_broker.tables.attributes import AttributeChanges, check_fields
from aerobee_broker.tables.consumer_groups import GroupConfig
from aerobee_broker.tables.deleted_letters import DeletedLetters
from aerobee_broker.tables.predefined_topics import predefined_topics
from aerobee_broker.tables.runtime_settings import RuntimeSettings
from aerobee_broker.tables.table_files import Tables
from aerobee_broker.tables.topics import Permission, TopicConfig, is_system_topic
from aerobee_broker.timer.level_delay import LevelDelay
from aerobee_broker.timer.wheel_timer import Timer
from aerobee_proto import admin_v1
from aerobee_store import ConfigError, MessageStore
from aerobee_store.clock import Clock
from aerobee_store.queues.topic_removal import DeletedTopic, deletions_to_json
from aerobee_store.records.decimals import decimal
from aerobee_store.tables.java_json import Bean, ObjectMap
from aerobee_store.timer.checkpoint import TimerCheckpoint

_PROPERTIES_SIZE_MAX: Final = 1 << 20


class AdministrationRequests:
    """One method per request code; `handlers` is the table. Changes are durable before the answer."""

    def __init__(
        self,
        *,
        settings: Settings,
        store: MessageStore,
        tables: Tables,
        offsets: OffsetRequests,
        level_delay: LevelDelay,
        timer: Timer,
        clock: Clock,
        topics: TopicAdministration,
        groups: GroupAdministration,
        runtime_settings: RuntimeSettings,
        deleted_letters: DeletedLetters,
    ) -> None:
        self._settings = settings
        self._store = store
        self._tables = tables
        self._offsets = offsets
        self._level_delay = level_delay
        self._timer = timer
        self._clock = clock
        self._topics = topics
        self._groups = groups
        self._runtime_settings = runtime_settings
        self._deleted_letters = deleted_letters
        self._many = asyncio.Lock()  # requests of any number of topics, groups or offsets run one at a time
        self._whole_tables = WholeTables(self._many)
        self.handlers: dict[int, Handler] = {
            Request.UPDATE_AND_CREATE_TOPIC: self.update_topic,
            Request.UPDATE_AND_CREATE_TOPIC_LIST: self.update_topics,
            Request.DELETE_TOPIC_IN_BROKER: self.delete_topic,
            Request.GET_TOPIC_CONFIG: self.topic,
            Request.GET_ALL_TOPIC_CONFIG: self.all_topics,
            Request.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: self.system_topics,
            Request.UPDATE_AND_CREATE_SUBSCRIPTION_GROUP: self.update_group,
            Request.UPDATE_AND_CREATE_SUBSCRIPTION_GROUP_LIST: self.update_groups,
            Request.DELETE_SUBSCRIPTION_GROUP: self.delete_group,
            Request.GET_SUBSCRIPTION_GROUP_CONFIG: self.group,
            Request.GET_ALL_SUBSCRIPTION_GROUP_CONFIG: self.all_groups,
            Request.GET_ALL_CONSUMER_OFFSET: self.all_offsets,
            Request.GET_ALL_DELAY_OFFSET: self.delay_offsets,
            Request.GET_TIMER_CHECK_POINT: self.timer_checkpoint,
            Request.GET_TIMER_METRICS: self.timer_metrics,
            Request.INVOKE_BROKER_TO_RESET_OFFSET: self.reset_offsets,
            Request.GET_BROKER_CONFIG: self.configuration,
            Request.UPDATE_BROKER_CONFIG: self.update_configuration,
            Request.CLEAN_EXPIRED_CONSUME_QUEUE: self.clean,
            Request.CLEAN_UNUSED_TOPIC: self.clean,
            Request.DELETE_EXPIRED_COMMIT_LOG: self.clean,
        }

    # --- Topics -----------------------------------------------------------------------------------------------

    async def update_topic(self, request: Command, _: Connection) -> Command:
        """Create or change a topic; `attributes` is a list of `+name=value` and `-name`."""
        name = text(request, "topic")
        existing = self._tables.topics.latest(name)
        permission = integer(request, "perm", int(Permission.READ_WRITE), bits=32)
        if not 0 <= permission < 16:
            raise RemotingError(Answer.INVALID_PARAMETER, f"perm is {permission}; use 2 (write), 4 (read) or 6 (both)")
        topic = TopicConfig(
            name=name,
            read_queue_count=integer(request, "readQueueNums", bits=32),
            write_queue_count=integer(request, "writeQueueNums", bits=32),
            permission=Permission(permission),
            attributes=AttributeChanges.parse(text(request, "attributes", "")).applied(
                None if existing is None else existing.attributes
            ),
            filter_type=text(request, "topicFilterType", "SINGLE_TAG"),
            sys_flag=integer(request, "topicSysFlag", 0, bits=32),
            order=boolean(request, "order"),
            extra={} if existing is None else existing.extra,
        )
        self._put_topic(topic)
        await self._tables.save_topics()
        return answer()

    async def update_topics(self, request: Command, _: Connection) -> Command:
        """Create or change many topics; those before one that is refused are kept."""
        async with self._many:
            topics, turns = [], Turns()
            for item in objects(body_object(request), "topicConfigList"):
                await turns.next()
                name = member(item, "topicName")
                check_fields(f"topic {name!r:.100}", item)
                try:
                    topics.append(TopicConfig.from_json(name, item))
                except TableFormatError as error:
                    raise RemotingError(Answer.INVALID_PARAMETER, str(error).partition(";")[0]) from None
            try:
                for topic in topics:
                    await turns.next()
                    existing = self._tables.topics.latest(topic.name)
                    changes = AttributeChanges.of(topic.attributes.items())
                    self._put_topic(
                        replace(topic, attributes=changes.applied(None if existing is None else existing.attributes))
                    )
            finally:
                await self._tables.save_topics()
        return answer()

    def _put_topic(self, topic: TopicConfig) -> None:
        if self._tables.topics.latest(topic.name) is not None:
            self._tables.topics.update(topic)
        else:
            self._tables.topics.create(topic)

    async def delete_topic(self, request: Command, _: Connection) -> Command:
        name = text(request, "topic")
        # tools delete in all brokers of a cluster, some of which may not have the topic
        if name in self._tables.topics or self._topics.has_remains(name):
            await self._topics.delete_topic(admin_v1.DeleteTopicRequest(name=name), Client(""))
        return answer()

    async def topic(self, request: Command, _: Connection) -> Command:
        return answer(body=self._tables.topic_or_expected(text(request, "topic")).to_json())

    async def all_topics(self, request: Command, connection: Connection) -> Command:
        """All topics. A replica of RocketMQ 5 takes the attributes for changes, and copies no topic at all if one of
        them has no `+` before its name. A replica of Aerobee also asks for deletions: of topics, those at a later place
        in the log than it has heard of, and of dead letters."""
        table = self._tables.topics
        topics = tuple(table)
        deleted: Mapping[str, DeletedTopic] = {}
        letters: dict[str, object] = {}
        heard = 0
        if (after := request.fields.get(DELETIONS_AFTER)) is not None:
            heard, deleted = decimal(after) or 0, self._store.deleted_topics
            letters = {DELETED_DEAD_LETTERS: self._deleted_letters.to_json()}
        version, is_fast = table.version.to_json(), connection.is_fast

        def content() -> Bean:
            new = {name: each for name, each in deleted.items() if each.physical_offset > heard}
            return Bean(
                **({} if after is None else {DELETED_TOPICS: deletions_to_json(new)}),
                **letters,
                dataVersion=version,
                mappingDataVersion=Bean(counter=0, stateVersion=0, timestamp=0),
                topicConfigTable={each.name: (_for_changes(each) if is_fast else each).to_json() for each in topics},
                topicQueueMappingDetailMap={},
            )

        total = {"totalTopicNum": len(topics)}
        return await self._whole_tables.answer(request, connection, "topics", lambda: content, total)

    async def system_topics(self, _request: Command, _: Connection) -> Command:
        names = dict.fromkeys(topic.name for topic in self._tables.topics if is_system_topic(topic.name))
        names |= dict.fromkeys(predefined_topics(self._settings.current))
        return answer(body=Bean(topicList=list[object](names)))

    # --- Groups -----------------------------------------------------------------------------------------------

    async def update_group(self, request: Command, _: Connection) -> Command:
        """Create or change a group."""
        self._put_group(_group_of(body_object(request)))
        await self._tables.save_groups()
        return answer()

    async def update_groups(self, request: Command, _: Connection) -> Command:
        """Create or change many groups; those before one that is refused are kept."""
        async with self._many:
            groups = [_group_of(item) async for item in in_turns(objects(body_object(request), "groupConfigList"))]
            try:
                async for group in in_turns(groups):
                    self._put_group(group)
            finally:
                await self._tables.save_groups()
        return answer()

    def _put_group(self, group: GroupConfig) -> None:
        existing = self._tables.groups.latest(group.name)
        changes = AttributeChanges.of(group.attributes.items())
        group = replace(group, attributes=changes.applied(None if existing is None else existing.attributes))
        if existing is not None:
            self._tables.groups.update(group)
        else:
            self._tables.groups.create(group)

    async def delete_group(self, request: Command, _: Connection) -> Command:
        name = text(request, "groupName")
        if name in self._tables.groups:
            await self._groups.delete_group(admin_v1.DeleteGroupRequest(name=name), Client(""))
        return answer()

    async def group(self, request: Command, _: Connection) -> Command:
        """Reading creates nothing."""
        return answer(body=self._tables.groups.require(text(request, "group")).to_json())

    async def all_groups(self, request: Command, connection: Connection) -> Command:
        return await self._whole_tables.answer(request, connection, "groups", self._tables.groups.content)

    # --- Offsets ----------------------------------------------------------------------------------------------

    async def all_offsets(self, request: Command, connection: Connection) -> Command:
        return await self._whole_tables.answer(request, connection, "positions", self._tables.offsets.content)

    async def delay_offsets(self, _request: Command, _: Connection) -> Command:
        return answer(body=self._level_delay.snapshot())

    async def timer_checkpoint(self, _request: Command, _: Connection) -> Command:
        """RocketMQ's 56 bytes, as they are on the disk; zeros if no message was ever delayed."""
        saved = self._timer.saved or TimerCheckpoint(0, 0, 0, None)
        answered = answer()
        answered.body = saved.encode_fields()
        return answered

    async def timer_metrics(self, _request: Command, _: Connection) -> Command:
        """How many delayed messages of each topic wait."""
        now_ms = self._clock.now_ms()
        counts: dict[str, object] = {
            topic: Bean(count=max(0, count), timeStamp=now_ms) for topic, count in self._timer.stats.pending.items()
        }
        version = Bean(counter=0, stateVersion=0, timestamp=now_ms)
        return answer(body=Bean(dataVersion=version, timingCount=counts))

    async def reset_offsets(self, request: Command, _: Connection) -> Command:
        """Move a group to another offset, to a time, or to the end (-1). Its consumers are redirected."""
        topic = self._tables.topics.require(text(request, "topic"))
        group = self._tables.groups.require(text(request, "group"))
        only, offset = integer(request, "queueId", -1, bits=32), integer(request, "offset", -1)
        time_ms = integer(request, "timestamp", -1)
        offsets: dict[int, int] = {}
        for queue_id in range(topic.read_queue_count) if only < 0 else (only,):
            low, high = self._store.queue_range(topic.name, queue_id)
            if offset >= 0:
                wanted = offset
            elif time_ms < 0:
                wanted = high
            else:
                wanted = self._store.offset_by_time(topic.name, queue_id, time_ms)
            offsets[queue_id] = min(max(wanted, low), high)
        await self._offsets.reset(topic.name, group.name, offsets)
        table = ObjectMap.of(
            (Bean(brokerName=self._settings.current.name, queueId=queue_id, topic=topic.name), at)
            for queue_id, at in offsets.items()
        )
        return answer(body=Bean(offsetTable=table))

    # --- Settings ---------------------------------------------------------------------------------------------

    async def configuration(self, _request: Command, _: Connection) -> Command:
        """The settings, under RocketMQ's names where they exist, and under Aerobee's."""
        config = self._settings.current
        values = {
            "brokerClusterName": config.cluster,
            "brokerName": config.name,
            "brokerId": "0",
            "brokerRole": "ASYNC_MASTER",
            "autoCreateTopicEnable": str(config.auto_create_topics).lower(),
            "autoCreateSubscriptionGroup": str(config.auto_create_groups).lower(),
            "defaultTopicQueueNums": str(config.topics.queue_count),
            "flushDiskType": "SYNC_FLUSH" if config.store.flush == "sync" else "ASYNC_FLUSH",
            "fileReservedTime": str(config.store.retention_hours),
            "maxMessageSize": str(config.store.body_size_max),
            "storePathRootDir": str(config.store.directory),
            "messageDelayLevel": " ".join(f"{seconds}s" for seconds in config.store.delay_levels_seconds),
            # mqadmin's exportConfigs needs some value for these settings.
            "filterServerNums": "0",
            "msgTraceTopicName": config.topics.trace_topic,
            "slaveReadEnable": "true",
            "traceOn": "true",
            "traceTopicEnable": str(config.topics.trace).lower(),
            "useTLS": str(config.tls.certificate is not None).lower(),
            **{setting.name: setting.value for setting in self._runtime_settings.all() if setting.value},
        }
        version = self._tables.topics.version.to_json()
        body = "".join(f"{name}={value}\n" for name, value in values.items()).encode()
        return answer({"version": f'{{"counter":{version["counter"]},"timestamp":{version["timestamp"]}}}'}, body=body)

    async def clean(self, _request: Command, _: Connection) -> Command:
        """Expired messages are removed automatically within seconds, so nothing needs to be done."""
        return answer()

    async def update_configuration(self, request: Command, _: Connection) -> Command:
        """Change run-time settings, by the name of RocketMQ or of Aerobee; all or none."""
        if len(request.body) > _PROPERTIES_SIZE_MAX:
            raise RemotingError(Answer.INVALID_PARAMETER, f"the body has {len(request.body)} bytes")
        changes: dict[str, str] = {}
        try:
            for line in request.body.decode("utf-8", "replace").splitlines():
                name, equals, value = line.strip().partition("=")
                if not name or name.startswith("#"):
                    continue
                if not equals:
                    raise RemotingError(Answer.INVALID_PARAMETER, f"{line[:80]!r} is not a setting; write name=value")
                found = setting_of_rocketmq(name.strip(), value.strip())
                changes[name.strip() if found is None else found[0]] = (
                    value.strip() if found is None else setting_text(found[1])
                )
            await self._runtime_settings.change(changes)
        except ConfigError as error:
            raise RemotingError(Answer.NO_PERMISSION, str(error)) from None
        return answer()


def _group_of(body: dict[str, object]) -> GroupConfig:
    name = body.get("groupName")
    if not isinstance(name, str):
        raise RemotingError(Answer.INVALID_PARAMETER, "the body of the request has no groupName")
    check_fields(f"consumer group {name!r:.100}", body)
    try:
        return GroupConfig.from_json(name, body)
    except TableFormatError as error:
        raise RemotingError(Answer.INVALID_PARAMETER, str(error).partition(";")[0]) from None


def _for_changes(topic: TopicConfig) -> TopicConfig:
    """The topic with its attributes as changes that set them."""
    return replace(topic, attributes={f"+{name}": text for name, text in topic.attributes.items()})
