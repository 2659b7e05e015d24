import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.remoting.RPCHook;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;
import org.apache.rocketmq.remoting.protocol.RequestCode;

/**
 * RocketMQ's own push consumer over the remoting protocol. The broker has set the mode POP for the group.
 *
 * java PopClient NAMESRV TOPIC GROUP INVISIBLE_MS receive COUNT FINISH   the first FINISH messages succeed, the next one
 *     fails, and the others are held; ends after COUNT messages
 * java PopClient NAMESRV TOPIC GROUP INVISIBLE_MS retried   every message succeeds; ends with the first second delivery
 * java PopClient NAMESRV TOPIC GROUP INVISIBLE_MS all   every message succeeds; ends with the standard input
 *
 * Prints "received BODY", and once the broker has answered, "acknowledged BODY" or "postponed BODY". It ends when
 * everything is answered, and leaves the other messages in flight.
 */
public class PopClient {
    static final Map<String, String> BODIES = new ConcurrentHashMap<>(); // by POP_CK, which requests about it repeat
    static final Set<String> UNANSWERED = ConcurrentHashMap.newKeySet(); // POP_CK
    static final CountDownLatch OVER = new CountDownLatch(1);
    static int received; // guarded by the class, as `stopping`
    static boolean stopping;

    public static void main(String[] arguments) throws Exception {
        String story = arguments[4];
        boolean receives = story.equals("receive");
        int count = receives ? Integer.parseInt(arguments[5]) : Integer.MAX_VALUE;
        int finish = receives ? Integer.parseInt(arguments[6]) : Integer.MAX_VALUE;
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(arguments[2], new Answers());
        consumer.setNamesrvAddr(arguments[0]);
        consumer.setInstanceName("" + System.nanoTime());
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setClientRebalance(false);
        consumer.setPopInvisibleTime(Long.parseLong(arguments[3]));
        if (!story.equals("all")) {
            consumer.setPopBatchNums(1);
            consumer.setPopThresholdForQueue(receives ? count : 1);
        }
        consumer.subscribe(arguments[1], "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            MessageExt message = messages.get(0);
            boolean finishes;
            boolean holds;
            synchronized (PopClient.class) {
                if (stopping) {
                    return hold();
                }
                String info = message.getProperty("POP_CK");
                BODIES.put(info, new String(message.getBody()));
                System.out.println("received " + BODIES.get(info));
                int number = received++;
                finishes = number < finish;
                holds = number > finish;
                if (!holds) {
                    UNANSWERED.add(info);
                }
                if (receives ? received == count : story.equals("retried") && message.getReconsumeTimes() > 0) {
                    stopping = true;
                    OVER.countDown();
                }
            }
            return holds
                ? hold()
                : finishes ? ConsumeConcurrentlyStatus.CONSUME_SUCCESS : ConsumeConcurrentlyStatus.RECONSUME_LATER;
        });
        consumer.start();
        if (story.equals("all")) {
            System.in.read();
            synchronized (PopClient.class) {
                stopping = true;
            }
        } else {
            OVER.await();
        }
        while (!UNANSWERED.isEmpty()) {
            Thread.sleep(10);
        }
        Runtime.getRuntime().halt(0); // an orderly shutdown would give messages back
    }

    /** Never finishes the message. */
    static ConsumeConcurrentlyStatus hold() {
        try {
            Thread.sleep(Long.MAX_VALUE);
        } catch (InterruptedException ignored) {
            Thread.currentThread().interrupt();
        }
        return ConsumeConcurrentlyStatus.RECONSUME_LATER;
    }

    /** Prints the broker's answers about messages. */
    static class Answers implements RPCHook {
        @Override
        public void doBeforeRequest(String address, RemotingCommand request) {
        }

        @Override
        public void doAfterResponse(String address, RemotingCommand request, RemotingCommand response) {
            boolean acknowledges = request.getCode() == RequestCode.ACK_MESSAGE;
            if (!acknowledges && request.getCode() != RequestCode.CHANGE_MESSAGE_INVISIBLETIME) {
                return;
            }
            String info = request.getExtFields().get("extraInfo");
            boolean taken = response != null && response.getCode() == 0;
            String told = !taken ? "refused " : acknowledges ? "acknowledged " : "postponed ";
            System.out.println(told + BODIES.get(info) + (taken ? "" : " " + response));
            UNANSWERED.remove(info);
        }
    }
}
