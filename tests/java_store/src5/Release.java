import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentMap;

import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageExtBrokerInner;
import org.apache.rocketmq.remoting.protocol.RemotingSerializable;
import org.apache.rocketmq.remoting.protocol.body.ConsumerOffsetSerializeWrapper;
import org.apache.rocketmq.remoting.protocol.body.SubscriptionGroupWrapper;
import org.apache.rocketmq.remoting.protocol.body.TopicConfigSerializeWrapper;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.PutMessageResult;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.stats.BrokerStatsManager;
import org.apache.rocketmq.store.timer.TimerCheckpoint;
import org.apache.rocketmq.store.timer.TimerMessageStore;
import org.apache.rocketmq.store.timer.TimerMetrics;

/** What has other names in RocketMQ 5, and the timer, which RocketMQ 4 has not. */
final class Release {
    private static TimerMessageStore timer;

    private Release() {
    }

    static DefaultMessageStore open(MessageStoreConfig config) throws Exception {
        BrokerStatsManager statistics = new BrokerStatsManager("test", false);
        DefaultMessageStore store = new DefaultMessageStore(
            config, statistics, (a, b, c, d, e, f, g) -> { }, new BrokerConfig(), topics(config));
        if (config.isTimerWheelEnable()) {
            // As the broker's start does it.
            String tables = config.getStorePathRootDir() + "/config/";
            timer = new TimerMessageStore(store, config, new TimerCheckpoint(tables + "timercheck"),
                new TimerMetrics(tables + "timermetrics"), statistics);
            store.setTimerMessageStore(timer);
        }
        return store;
    }

    /** The broker's topics: their attributes say which have batch consume queues. */
    private static ConcurrentMap<String, TopicConfig> topics(MessageStoreConfig config) throws Exception {
        Path file = Paths.get(config.getStorePathRootDir(), "config", "topics.json");
        if (!Files.exists(file)) {
            return new ConcurrentHashMap<>();
        }
        String text = new String(Files.readAllBytes(file), StandardCharsets.UTF_8);
        return RemotingSerializable.fromJson(text, TopicConfigSerializeWrapper.class).getTopicConfigTable();
    }

    static void start(DefaultMessageStore store) throws Exception {
        if (timer != null && !timer.load()) {
            throw new IllegalStateException("the timer's load() answers false");
        }
        store.start();
        if (timer != null) {
            timer.start(true);
        }
    }

    static void shutdown(DefaultMessageStore store) {
        if (timer != null) {
            timer.shutdown();
        }
        store.shutdown();
    }

    static MessageExt message() {
        return new MessageExtBrokerInner();
    }

    static PutMessageResult put(DefaultMessageStore store, MessageExt message) {
        MessageExtBrokerInner inner = (MessageExtBrokerInner) message;
        inner.setPropertiesString(MessageDecoder.messageProperties2String(inner.getProperties()));
        return store.putMessage(inner);
    }

    /** A configuration file of the kind, read and written. */
    static String table(String kind, String text) {
        Class<? extends RemotingSerializable> wrapper;
        switch (kind) {
            case "topics": wrapper = TopicConfigSerializeWrapper.class; break;
            case "subscriptionGroup": wrapper = SubscriptionGroupWrapper.class; break;
            case "consumerOffset": wrapper = ConsumerOffsetSerializeWrapper.class; break;
            default: throw new IllegalArgumentException(kind);
        }
        return RemotingSerializable.fromJson(text, wrapper).toJson(true);
    }
}
