import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.QueryResult;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.consumer.store.ReadOffsetType;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.RPCHook;

/**
 * Stories of the released client of RocketMQ 4.9 against one name server address.
 *
 * java RemotingStories NAMESRV STORY...   prints "ok STORY" or "failed STORY CAUSE" for each; the exit code says whether
 * all went well.
 */
public class RemotingStories {
    interface Story {
        void run() throws Exception;
    }

    static String namesrv;

    public static void main(String[] arguments) throws Exception {
        namesrv = arguments[0];
        Map<String, Story> stories = new HashMap<>();
        stories.put("send", RemotingStories::send);
        stories.put("filter", RemotingStories::filter);
        stories.put("push", RemotingStories::push);
        stories.put("retry", RemotingStories::retry);
        stories.put("orderly", RemotingStories::orderly);
        stories.put("broadcast", RemotingStories::broadcast);
        stories.put("litepull", RemotingStories::litePull);
        stories.put("rebalance", RemotingStories::rebalance);
        stories.put("transaction", RemotingStories::transaction);
        stories.put("query", RemotingStories::query);
        stories.put("delay", RemotingStories::delay);
        stories.put("pop", RemotingStories::pop);
        stories.put("acl", RemotingStories::acl);
        stories.put("trace", RemotingStories::trace);
        stories.put("linger", RemotingStories::linger);
        boolean good = true;
        for (int i = 1; i < arguments.length; i++) {
            try {
                stories.get(arguments[i]).run();
                System.out.println("ok " + arguments[i]);
            } catch (Throwable cause) {
                good = false;
                System.out.println("failed " + arguments[i] + " " + cause);
                cause.printStackTrace();
            }
        }
        System.exit(good ? 0 : 1);
    }

    static void check(boolean condition, String what) {
        if (!condition) {
            throw new IllegalStateException(what);
        }
    }

    static DefaultMQProducer producer(String group) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(group);
        producer.setNamesrvAddr(namesrv);
        producer.setInstanceName(group + System.nanoTime());
        producer.setSendMsgTimeout(20_000); // others may keep the machine busy
        producer.start();
        return producer;
    }

    static DefaultMQPushConsumer consumer(String group, String topic, String expression) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(namesrv);
        consumer.setInstanceName(group + System.nanoTime());
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, expression);
        return consumer;
    }

    static void sendAll(DefaultMQProducer producer, String topic, int count) throws Exception {
        for (int i = 0; i < count; i++) {
            SendResult result = producer.send(new Message(topic, "tag" + i % 2, "key" + i, ("m" + i).getBytes()));
            check(result.getSendStatus() == SendStatus.SEND_OK, "status " + result);
        }
    }

    static void send() throws Exception {
        DefaultMQProducer producer = producer("PG_send");
        try {
            sendAll(producer, "JavaSend", 20);
            CountDownLatch done = new CountDownLatch(5);
            for (int i = 0; i < 5; i++) {
                producer.send(new Message("JavaSend", ("async" + i).getBytes()), new SendCallback() {
                    @Override
                    public void onSuccess(SendResult result) {
                        done.countDown();
                    }

                    @Override
                    public void onException(Throwable cause) {
                        cause.printStackTrace();
                    }
                });
            }
            check(done.await(20, TimeUnit.SECONDS), "async sends");
            producer.sendOneway(new Message("JavaSend", "oneway".getBytes()));
            List<Message> batch = new ArrayList<>();
            for (int i = 0; i < 3; i++) {
                batch.add(new Message("JavaSend", "tagB", "batch" + i, ("batch" + i).getBytes()));
            }
            SendResult result = producer.send(batch);
            check(result.getOffsetMsgId().split(",").length == 3, "ids of a batch " + result);
            byte[] large = new byte[100_000];
            java.util.Arrays.fill(large, (byte) 'x');
            check(producer.send(new Message("JavaSend", large)).getSendStatus() == SendStatus.SEND_OK, "compressed");

            Set<String> bodies = ConcurrentHashMap.newKeySet();
            DefaultMQPushConsumer consumer = consumer("CG_send", "JavaSend", "*");
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                for (MessageExt message : messages) {
                    bodies.add(message.getBody().length > 1000 ? "large" + message.getBody().length : new String(message.getBody()));
                }
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
            consumer.start();
            await(() -> bodies.size() == 30, "30 different messages, there are " + bodies);
            check(bodies.contains("large100000") && bodies.contains("oneway") && bodies.contains("batch2"), "" + bodies);
            consumer.shutdown();
        } finally {
            producer.shutdown();
        }
    }

    static void filter() throws Exception {
        DefaultMQProducer producer = producer("PG_filter");
        try {
            for (int i = 0; i < 10; i++) {
                Message message = new Message("JavaFilter", "tag" + i % 2, ("m" + i).getBytes());
                message.putUserProperty("n", String.valueOf(i));
                producer.send(message);
            }
            Set<String> tagged = ConcurrentHashMap.newKeySet();
            Set<String> selected = ConcurrentHashMap.newKeySet();
            DefaultMQPushConsumer byTag = consumer("CG_tag", "JavaFilter", "tag0 || tagX");
            byTag.registerMessageListener(collect(tagged));
            byTag.start();
            DefaultMQPushConsumer bySql = consumer("CG_sql", "JavaFilter", "*");
            bySql.subscribe("JavaFilter", MessageSelector.bySql("n between 3 and 5"));
            bySql.registerMessageListener(collect(selected));
            bySql.start();
            await(() -> tagged.size() == 5 && selected.size() == 3, "tags " + tagged + " sql " + selected);
            check(selected.contains("m4") && tagged.contains("m8"), "tags " + tagged + " sql " + selected);
            byTag.shutdown();
            bySql.shutdown();
        } finally {
            producer.shutdown();
        }
    }

    static MessageListenerConcurrently collect(Set<String> bodies) {
        return (messages, context) -> {
            for (MessageExt message : messages) {
                bodies.add(new String(message.getBody()));
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        };
    }

    static void push() throws Exception {
        DefaultMQProducer producer = producer("PG_push");
        try {
            sendAll(producer, "JavaPush", 8);
            Set<String> bodies = ConcurrentHashMap.newKeySet();
            DefaultMQPushConsumer consumer = consumer("CG_push", "JavaPush", "*");
            consumer.registerMessageListener(collect(bodies));
            consumer.start();
            await(() -> bodies.size() == 8 && hasFinished(consumer), "" + bodies);
            consumer.shutdown(); // persists the offsets of messages that it has finished
            Set<String> later = ConcurrentHashMap.newKeySet();
            DefaultMQPushConsumer second = consumer("CG_push", "JavaPush", "*");
            second.registerMessageListener(collect(later));
            second.start();
            producer.send(new Message("JavaPush", "late".getBytes()));
            await(() -> later.contains("late"), "" + later);
            check(later.size() == 1, "what was consumed came again: " + later);
            second.shutdown();
        } finally {
            producer.shutdown();
        }
    }

    /** Whether every listener has returned and its message counts as consumed. */
    static boolean hasFinished(DefaultMQPushConsumer consumer) {
        return consumer.getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable().values().stream()
            .allMatch(queue -> queue.getMsgCount().get() == 0);
    }

    /** The broker says that this group receives; release 4.9 does not know of that. */
    static void pop() throws Exception {
        DefaultMQProducer producer = producer("PG_pop");
        try {
            DefaultMQPushConsumer consumer = consumer("CG_pop", "JavaPop", "*");
            DefaultMQPushConsumer.class.getMethod("setClientRebalance", boolean.class).invoke(consumer, false);
            Set<String> bodies = ConcurrentHashMap.newKeySet();
            List<Integer> attempts = Collections.synchronizedList(new ArrayList<>());
            List<String> infos = Collections.synchronizedList(new ArrayList<>());
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                MessageExt message = messages.get(0);
                infos.add("" + message.getProperty("POP_CK"));
                if (new String(message.getBody()).equals("m3")) {
                    attempts.add(message.getReconsumeTimes());
                    if (message.getReconsumeTimes() == 0) {
                        return ConsumeConcurrentlyStatus.RECONSUME_LATER;
                    }
                }
                bodies.add(new String(message.getBody()));
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
            consumer.start();
            sendAll(producer, "JavaPop", 8);
            await(() -> bodies.size() == 8, "" + bodies + attempts);
            check(attempts.equals(Arrays.asList(0, 1)), "attempts " + attempts);
            check(infos.size() == 10 && !infos.contains("null"), "infos " + infos);
            Thread.sleep(15_000); // nothing that was acknowledged comes again
            check(infos.size() == 10, "again " + infos);
            consumer.shutdown();
        } finally {
            producer.shutdown();
        }
    }

    /** Consumes until it is killed; says so, and the client id. */
    /** The messages that the broker knows as consumed. */
    static long committed(DefaultMQPushConsumer consumer, String topic) {
        try {
            consumer.getDefaultMQPushConsumerImpl().persistConsumerOffset();
            long sum = 0;
            for (MessageQueue queue : consumer.fetchSubscribeMessageQueues(topic)) {
                sum += Math.max(0, consumer.getOffsetStore().readOffset(queue, ReadOffsetType.READ_FROM_STORE));
            }
            return sum;
        } catch (MQClientException cause) {
            throw new IllegalStateException(cause);
        }
    }

    /** A producer and a consumer that write the trace of a message; prints the id of the message. */
    static void trace() throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("PG_trace", null, true, null);
        producer.setNamesrvAddr(namesrv);
        producer.setSendMsgTimeout(20_000);
        producer.start();
        SendResult result = producer.send(new Message("JavaTrace", "tag", "traced", "m".getBytes()));
        System.out.println("traced " + result.getMsgId() + " " + result.getOffsetMsgId());
        Set<String> bodies = ConcurrentHashMap.newKeySet();
        DefaultMQPushConsumer consumer =
            new DefaultMQPushConsumer("CG_trace", null, new AllocateMessageQueueAveragely(), true, null);
        consumer.setNamesrvAddr(namesrv);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe("JavaTrace", "*");
        consumer.registerMessageListener(collect(bodies));
        consumer.start();
        await(() -> bodies.size() == 1, "" + bodies);
        producer.shutdown(); // writes what waits
        consumer.shutdown();
    }

    static void linger() throws Exception {
        DefaultMQProducer producer = producer("PG_linger");
        sendAll(producer, "JavaLinger", 8);
        // Otherwise the broker hears of the producer a second after its start.
        producer.getDefaultMQProducerImpl().getMqClientFactory().sendHeartbeatToAllBrokerWithLock();
        Set<String> bodies = ConcurrentHashMap.newKeySet();
        DefaultMQPushConsumer consumer = consumer("CG_linger", "JavaLinger", "*");
        consumer.registerMessageListener(collect(bodies));
        consumer.start();
        await(() -> bodies.size() == 8, "" + bodies);
        await(() -> committed(consumer, "JavaLinger") == 8, "offsets"); // the client reports them every five seconds
        System.out.println("consuming");
        System.out.println(consumer.getDefaultMQPushConsumerImpl().getmQClientFactory().getClientId());
        Thread.sleep(300_000);
    }

    static RPCHook hook(String secret) {
        return new AclClientRPCHook(new SessionCredentials("javaAccessKey", secret));
    }

    /** The broker has one account, which may send to this topic and consume it with this group. */
    static void acl() throws Exception {
        String secret = "javaSecretKey-0123456789";
        DefaultMQProducer producer = new DefaultMQProducer("PG_acl", hook(secret));
        producer.setNamesrvAddr(namesrv);
        producer.setSendMsgTimeout(20_000);
        producer.start();
        Set<String> bodies = ConcurrentHashMap.newKeySet();
        sendAll(producer, "JavaAcl", 5);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("CG_acl", hook(secret), new AllocateMessageQueueAveragely());
        consumer.setNamesrvAddr(namesrv);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe("JavaAcl", "*");
        consumer.registerMessageListener(collect(bodies));
        consumer.start();
        await(() -> bodies.size() == 5, "" + bodies);
        for (RPCHook wrong : new RPCHook[] {hook("wrong-0123456789"), null}) {
            DefaultMQProducer refused = new DefaultMQProducer("PG_wrong", wrong);
            refused.setNamesrvAddr(namesrv);
            refused.setInstanceName("wrong" + System.nanoTime());
            refused.start();
            try {
                refused.send(new Message("JavaAcl", "no".getBytes()));
                check(false, "a message without a good signature was taken");
            } catch (org.apache.rocketmq.client.exception.MQClientException | org.apache.rocketmq.client.exception.MQBrokerException cause) {
                System.err.println("refused: " + cause.getMessage());
            }
            refused.shutdown();
        }
        sendAll(producer, "JavaAcl", 1);
        consumer.shutdown();
        producer.shutdown();
    }

    static void retry() throws Exception {
        DefaultMQProducer producer = producer("PG_retry");
        try {
            sendAll(producer, "JavaRetry", 1);
            List<Integer> attempts = Collections.synchronizedList(new ArrayList<>());
            DefaultMQPushConsumer consumer = consumer("CG_retry", "JavaRetry", "*");
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                MessageExt message = messages.get(0);
                check(message.getTopic().equals("JavaRetry"), message.getTopic());
                attempts.add(message.getReconsumeTimes());
                context.setDelayLevelWhenNextConsume(1);
                return message.getReconsumeTimes() < 2
                    ? ConsumeConcurrentlyStatus.RECONSUME_LATER
                    : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
            consumer.start();
            await(() -> attempts.size() == 3, "attempts " + attempts);
            check(attempts.equals(List.of(0, 1, 2)), "attempts " + attempts);
            consumer.shutdown();
        } finally {
            producer.shutdown();
        }
    }

    static void orderly() throws Exception {
        DefaultMQProducer producer = producer("PG_order");
        try {
            for (int i = 0; i < 20; i++) {
                producer.send(new Message("JavaOrder", ("" + i).getBytes()), (queues, message, key) -> queues.get((int) key), i % 2);
            }
            Map<Integer, List<Integer>> byQueue = new ConcurrentHashMap<>();
            AtomicInteger count = new AtomicInteger();
            DefaultMQPushConsumer consumer = consumer("CG_order", "JavaOrder", "*");
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                for (MessageExt message : messages) {
                    byQueue.computeIfAbsent(message.getQueueId(), key -> new ArrayList<>())
                        .add(Integer.valueOf(new String(message.getBody())));
                    count.incrementAndGet();
                }
                return ConsumeOrderlyStatus.SUCCESS;
            });
            consumer.start();
            await(() -> count.get() == 20, "count " + count);
            for (List<Integer> numbers : byQueue.values()) {
                List<Integer> sorted = new ArrayList<>(numbers);
                Collections.sort(sorted);
                check(sorted.equals(numbers), "out of order " + numbers);
            }
            consumer.shutdown();
        } finally {
            producer.shutdown();
        }
    }

    /** The type of its argument moved to another package with release 5. */
    static void broadcasting(DefaultMQPushConsumer consumer) throws Exception {
        for (java.lang.reflect.Method method : DefaultMQPushConsumer.class.getMethods()) {
            if (method.getName().equals("setMessageModel")) {
                for (Object model : method.getParameterTypes()[0].getEnumConstants()) {
                    if (model.toString().equals("BROADCASTING")) {
                        method.invoke(consumer, model);
                    }
                }
            }
        }
    }

    static void broadcast() throws Exception {
        DefaultMQProducer producer = producer("PG_cast");
        try {
            sendAll(producer, "JavaCast", 1); // the topic is there
            Set<String> one = ConcurrentHashMap.newKeySet();
            Set<String> other = ConcurrentHashMap.newKeySet();
            DefaultMQPushConsumer first = consumer("CG_cast", "JavaCast", "*");
            DefaultMQPushConsumer second = consumer("CG_cast", "JavaCast", "*");
            broadcasting(first);
            broadcasting(second);
            first.registerMessageListener(collect(one));
            second.registerMessageListener(collect(other));
            first.start();
            second.start();
            await(() -> one.contains("m0") && other.contains("m0"), one + " " + other);
            first.shutdown();
            second.shutdown();
        } finally {
            producer.shutdown();
        }
    }

    static void litePull() throws Exception {
        DefaultMQProducer producer = producer("PG_lite");
        try {
            sendAll(producer, "JavaLite", 10);
            DefaultLitePullConsumer consumer = new DefaultLitePullConsumer("CG_lite");
            consumer.setNamesrvAddr(namesrv);
            consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
            consumer.subscribe("JavaLite", "*");
            consumer.start();
            Set<String> bodies = new HashSet<>();
            long until = System.currentTimeMillis() + 40_000;
            while (bodies.size() < 10 && System.currentTimeMillis() < until) {
                for (MessageExt message : consumer.poll(1000)) {
                    bodies.add(new String(message.getBody()));
                }
            }
            check(bodies.size() == 10, "" + bodies);
            consumer.shutdown();
        } finally {
            producer.shutdown();
        }
    }

    static void rebalance() throws Exception {
        DefaultMQProducer producer = producer("PG_balance");
        try {
            sendAll(producer, "JavaBalance", 8);
            Set<String> one = ConcurrentHashMap.newKeySet();
            Set<String> other = ConcurrentHashMap.newKeySet();
            DefaultMQPushConsumer first = consumer("CG_balance", "JavaBalance", "*");
            first.registerMessageListener(collect(one));
            first.start();
            await(() -> one.size() == 8, "" + one);
            DefaultMQPushConsumer second = consumer("CG_balance", "JavaBalance", "*");
            second.registerMessageListener(collect(other));
            second.start();
            long until = System.currentTimeMillis() + 60_000;
            for (int i = 100; other.isEmpty() && System.currentTimeMillis() < until; i++) {
                producer.send(new Message("JavaBalance", ("n" + i).getBytes()));
                Thread.sleep(100);
            }
            check(!other.isEmpty(), "the second consumer got no queue");
            second.shutdown();
            first.shutdown();
        } finally {
            producer.shutdown();
        }
    }

    static void transaction() throws Exception {
        TransactionMQProducer producer = new TransactionMQProducer("PG_tx");
        producer.setNamesrvAddr(namesrv);
        Set<String> asked = ConcurrentHashMap.newKeySet();
        producer.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
                return (LocalTransactionState) argument;
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                asked.add(new String(message.getBody()) + "@" + message.getTopic());
                return LocalTransactionState.COMMIT_MESSAGE;
            }
        });
        producer.start();
        try {
            producer.sendMessageInTransaction(new Message("JavaTx", "commit".getBytes()), LocalTransactionState.COMMIT_MESSAGE);
            producer.sendMessageInTransaction(new Message("JavaTx", "rollback".getBytes()), LocalTransactionState.ROLLBACK_MESSAGE);
            producer.sendMessageInTransaction(new Message("JavaTx", "later".getBytes()), LocalTransactionState.UNKNOW);
            Set<String> bodies = ConcurrentHashMap.newKeySet();
            DefaultMQPushConsumer consumer = consumer("CG_tx", "JavaTx", "*");
            consumer.registerMessageListener(collect(bodies));
            consumer.start();
            await(() -> bodies.contains("commit") && bodies.contains("later"), bodies + " asked " + asked);
            check(asked.equals(Set.of("later@JavaTx")), "asked " + asked);
            check(!bodies.contains("rollback"), "" + bodies);
            consumer.shutdown();
        } finally {
            producer.shutdown();
        }
    }

    static void query() throws Exception {
        DefaultMQProducer producer = producer("PG_query");
        try {
            SendResult sent = producer.send(new Message("JavaQuery", "tag", "findme", "wanted".getBytes()));
            MessageExt byId = producer.viewMessage("JavaQuery", sent.getOffsetMsgId());
            check(new String(byId.getBody()).equals("wanted"), "by offset id");
            await(() -> {
                try {
                    QueryResult found = producer.queryMessage("JavaQuery", "findme", 32, 0, System.currentTimeMillis() + 60_000);
                    return found.getMessageList().size() == 1;
                } catch (Exception notYet) {
                    return false;
                }
            }, "by key");
            MessageExt byUniqueKey = producer.viewMessage("JavaQuery", sent.getMsgId());
            check(new String(byUniqueKey.getBody()).equals("wanted"), "by unique key");
        } finally {
            producer.shutdown();
        }
    }

    static void delay() throws Exception {
        DefaultMQProducer producer = producer("PG_delay");
        try {
            Message message = new Message("JavaDelay", "delayed".getBytes());
            message.setDelayTimeLevel(2);
            long sentAt = System.currentTimeMillis();
            producer.send(message);
            ConcurrentLinkedQueue<Long> arrived = new ConcurrentLinkedQueue<>();
            ConcurrentLinkedQueue<MessageExt> delayed = new ConcurrentLinkedQueue<>();
            DefaultMQPushConsumer consumer = consumer("CG_delay", "JavaDelay", "*");
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                delayed.addAll(messages);
                arrived.add(System.currentTimeMillis());
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
            consumer.start();
            await(() -> !arrived.isEmpty(), "the delayed message");
            check(delayed.peek().getDelayTimeLevel() == 2, "level " + delayed.peek().getDelayTimeLevel());
            for (String name : delayed.peek().getProperties().keySet()) {
                check(!name.startsWith("__CRC32") && !name.startsWith("__AEROBEE"), name);
            }
            check(arrived.peek() - sentAt >= 4_900, "after " + (arrived.peek() - sentAt) + " ms");
            consumer.shutdown();
        } finally {
            producer.shutdown();
        }
    }

    interface Condition {
        boolean holds();
    }

    static void await(Condition condition, String what) throws Exception {
        long until = System.currentTimeMillis() + 60_000;
        while (!condition.holds()) {
            check(System.currentTimeMillis() < until, "not within a minute: " + what);
            Thread.sleep(50);
        }
    }
}
