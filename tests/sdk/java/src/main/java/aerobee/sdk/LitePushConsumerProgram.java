package aerobee.sdk;

import java.util.Map;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.LitePushConsumer;
import org.apache.rocketmq.client.apis.consumer.MessageListener;

/**
 * Tells of every message of the lite topics that it is told to subscribe.
 *
 * <pre>
 * {"do": "subscribe", "lite_topic"}
 * {"do": "unsubscribe", "lite_topic"}
 * </pre>
 */
final class LitePushConsumerProgram {
    static void run(Conversation conversation) throws Exception {
        MessageListener listener =
                message -> {
                    var fields = Conversation.told(message);
                    fields.put("lite_topic", message.getLiteTopic().orElse(null));
                    conversation.say("message", fields);
                    return ConsumeResult.SUCCESS;
                };
        LitePushConsumer consumer =
                ClientServiceProvider.loadService()
                        .newLitePushConsumerBuilder()
                        .setClientConfiguration(conversation.configuration())
                        .setConsumerGroup(conversation.options.group)
                        .bindTopic(conversation.options.topic)
                        .setMessageListener(listener)
                        .build();
        conversation.say("ready", Map.of());
        conversation.obey(
                Map.of(
                        "subscribe",
                        command -> {
                            consumer.subscribeLite(command.lite_topic);
                            return Map.of();
                        },
                        "unsubscribe",
                        command -> {
                            consumer.unsubscribeLite(command.lite_topic);
                            return Map.of();
                        }));
        consumer.close();
    }

    private LitePushConsumerProgram() {}
}
