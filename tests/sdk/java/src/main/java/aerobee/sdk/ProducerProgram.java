package aerobee.sdk;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.SendReceipt;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;

/**
 * Sends what it is told to, takes it back, and decides about transactions.
 *
 * <pre>
 * {"do": "send", "messages": [{"body", "tag", "keys", "properties", "message_group", "lite_topic", "priority",
 *                            "due": Unix seconds}]}
 * {"do": "recall", "body": of a message that was sent}
 * {"do": "transact", "body", "decision": "commit", "rollback", or none yet}
 * {"do": "decide", "body": of such a message, "decision"}
 * </pre>
 *
 * {@code answer}: what its checker says when the broker asks, {@code commit}, {@code rollback}, or anything else for "not
 * known"; every time that it is asked it tells {"event": "checked", ...}.
 */
final class ProducerProgram {
    private final ClientServiceProvider provider = ClientServiceProvider.loadService();
    private final Map<String, SendReceipt> receipts = new HashMap<>();
    private final Map<String, Transaction> transactions = new HashMap<>();
    private final String topic;
    private final Producer producer;

    static void run(Conversation conversation) throws Exception {
        var program = new ProducerProgram(conversation);
        conversation.say("ready", Map.of());
        conversation.obey(
                Map.of(
                        "send", command -> program.send(command.messages),
                        "recall", command -> program.recall(command.body),
                        "transact", command -> program.transact(command.body, command.decision),
                        "decide", command -> program.decide(command.body, command.decision)));
        program.producer.close();
    }

    private ProducerProgram(Conversation conversation) throws Exception {
        topic = conversation.options.topic;
        producer =
                provider.newProducerBuilder()
                        .setClientConfiguration(conversation.configuration())
                        .setTopics(topic)
                        .setTransactionChecker(
                                message -> {
                                    conversation.say("checked", Conversation.told(message));
                                    return switch (conversation.options.answer) {
                                        case "commit" -> TransactionResolution.COMMIT;
                                        case "rollback" -> TransactionResolution.ROLLBACK;
                                        default -> TransactionResolution.UNKNOWN;
                                    };
                                })
                        .build();
    }

    private Map<String, ?> send(List<Conversation.Outgoing> messages) throws Exception {
        var ids = new ArrayList<String>();
        for (var each : messages) {
            SendReceipt receipt = producer.send(message(each));
            receipts.put(each.body, receipt);
            ids.add(receipt.getMessageId().toString());
        }
        return Map.of("message_ids", ids);
    }

    private Map<String, ?> recall(String body) throws Exception {
        var recalled = producer.recallMessage(topic, receipts.get(body).getRecallHandle());
        return Map.of("message_id", recalled.getMessageId().toString());
    }

    private Map<String, ?> transact(String body, String decision) throws Exception {
        var outgoing = new Conversation.Outgoing();
        outgoing.body = body;
        Transaction transaction = producer.beginTransaction();
        SendReceipt receipt = producer.send(message(outgoing), transaction);
        transactions.put(body, transaction);
        if (decision != null) {
            decide(body, decision);
        }
        return Map.of("message_id", receipt.getMessageId().toString());
    }

    private Map<String, ?> decide(String body, String decision) throws Exception {
        switch (decision) {
            case "commit" -> transactions.get(body).commit();
            case "rollback" -> transactions.get(body).rollback();
            default -> throw new IllegalArgumentException(decision + " is neither commit nor rollback");
        }
        return Map.of();
    }

    private Message message(Conversation.Outgoing given) {
        var builder =
                provider.newMessageBuilder().setTopic(topic).setBody(given.body.getBytes(StandardCharsets.UTF_8));
        if (given.tag != null) {
            builder.setTag(given.tag);
        }
        builder.setKeys(given.keys.toArray(String[]::new));
        given.properties.forEach(builder::addProperty);
        if (given.message_group != null) {
            builder.setMessageGroup(given.message_group);
        }
        if (given.lite_topic != null) {
            builder.setLiteTopic(given.lite_topic);
        }
        if (given.priority != null) {
            builder.setPriority(given.priority);
        }
        if (given.due != 0) {
            builder.setDeliveryTimestamp((long) (given.due * 1000));
        }
        return builder.build();
    }
}
