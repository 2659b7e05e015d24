package aerobee.sdk;

import java.util.HashMap;
import java.util.Map;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.MessageView;

/** Receives, acknowledges and extends what it is told to; knows messages by their bodies. */
final class SimpleConsumerProgram {
    static void run(Conversation conversation) throws Exception {
        var options = conversation.options;
        SimpleConsumer consumer =
                ClientServiceProvider.loadService()
                        .newSimpleConsumerBuilder()
                        .setClientConfiguration(conversation.configuration())
                        .setConsumerGroup(options.group)
                        .setAwaitDuration(Conversation.duration(options.await))
                        .setSubscriptionExpressions(conversation.subscription())
                        .build();
        conversation.say("ready", Map.of());
        var held = new HashMap<String, MessageView>();
        conversation.obey(
                Map.of(
                        "receive",
                        command -> {
                            var received =
                                    consumer.receive(command.count, Conversation.duration(command.invisible));
                            received.forEach(message -> held.put(Conversation.body(message), message));
                            var messages = received.stream().map(Conversation::told).toList();
                            return Map.of("time", Conversation.unixNow(), "messages", messages);
                        },
                        "acknowledge",
                        command -> {
                            for (String body : command.bodies) {
                                consumer.ack(held.get(body));
                            }
                            return Map.of();
                        },
                        "change",
                        command -> {
                            consumer.changeInvisibleDuration(
                                    held.get(command.body), Conversation.duration(command.invisible));
                            return Map.of("time", Conversation.unixNow());
                        }));
        consumer.close();
    }

    private SimpleConsumerProgram() {}
}
