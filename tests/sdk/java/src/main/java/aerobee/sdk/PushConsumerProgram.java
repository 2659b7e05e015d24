package aerobee.sdk;

import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.MessageListener;
import org.apache.rocketmq.client.apis.consumer.PushConsumer;
import org.apache.rocketmq.client.apis.message.MessageView;

/**
 * Tells of every message that its listener gets.
 *
 * <p>{@code failures}: the listener fails with that many first calls for each message, the first of them by throwing.
 * {@code failing_calls}: body -> how many calls for that message fail. {@code seconds}: how long it works on a message.
 */
final class PushConsumerProgram {
    static void run(Conversation conversation) throws Exception {
        var options = conversation.options;
        var calls = new ConcurrentHashMap<String, Integer>();
        MessageListener listener =
                message -> {
                    int call = calls.merge(message.getMessageId().toString(), 1, Integer::sum);
                    conversation.say("message", Conversation.told(message));
                    pause(options.seconds);
                    if (call > Math.max(options.failures, failing(options, message))) {
                        return ConsumeResult.SUCCESS;
                    }
                    if (call <= 1) {
                        throw new IllegalStateException("the listener fails, as it was told");
                    }
                    return ConsumeResult.FAILURE;
                };
        PushConsumer consumer =
                ClientServiceProvider.loadService()
                        .newPushConsumerBuilder()
                        .setClientConfiguration(conversation.configuration())
                        .setConsumerGroup(options.group)
                        .setSubscriptionExpressions(conversation.subscription())
                        .setConsumptionThreadCount(4)
                        .setMessageListener(listener)
                        .build();
        conversation.say("ready", Map.of());
        conversation.obey(Map.of());
        consumer.close();
    }

    private static int failing(Conversation.Options options, MessageView message) {
        return options.failing_calls.getOrDefault(Conversation.body(message), 0);
    }

    private static void pause(double seconds) {
        try {
            Thread.sleep((long) (seconds * 1000));
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt(); // the consumer shuts down
        }
    }

    private PushConsumerProgram() {}
}
