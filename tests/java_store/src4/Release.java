import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.protocol.body.ConsumerOffsetSerializeWrapper;
import org.apache.rocketmq.common.protocol.body.SubscriptionGroupWrapper;
import org.apache.rocketmq.common.protocol.body.TopicConfigSerializeWrapper;
import org.apache.rocketmq.remoting.protocol.RemotingSerializable;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.MessageExtBrokerInner;
import org.apache.rocketmq.store.PutMessageResult;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.schedule.DelayOffsetSerializeWrapper;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/** What has other names in RocketMQ 4. */
final class Release {
    private Release() {
    }

    static DefaultMessageStore open(MessageStoreConfig config) throws Exception {
        BrokerStatsManager statistics = new BrokerStatsManager("test", false);
        return new DefaultMessageStore(config, statistics, (a, b, c, d, e, f, g) -> { }, new BrokerConfig());
    }

    static void start(DefaultMessageStore store) throws Exception {
        store.start();
    }

    static void shutdown(DefaultMessageStore store) {
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
            case "delayOffset": wrapper = DelayOffsetSerializeWrapper.class; break;
            default: throw new IllegalArgumentException(kind);
        }
        return RemotingSerializable.fromJson(text, wrapper).toJson(true);
    }
}
