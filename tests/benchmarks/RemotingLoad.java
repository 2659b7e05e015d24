import java.util.Arrays;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.Message;

/**
 * Sends of the released client of RocketMQ 4.9: each thread waits for the answer before it sends again.
 *
 * java RemotingLoad NAMESRV TOPIC THREADS SECONDS SIZE   prints "warm", then the number of messages and the p50 and p99
 * of a send in milliseconds.
 */
public class RemotingLoad {
    static final double WARM_SECONDS = 3;
    static final AtomicBoolean failed = new AtomicBoolean();

    public static void main(String[] arguments) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("aerobee-load");
        producer.setNamesrvAddr(arguments[0]);
        producer.start();
        int threads = Integer.parseInt(arguments[2]);
        byte[] body = new byte[Integer.parseInt(arguments[4])];
        measure(producer, arguments[1], threads, WARM_SECONDS, body);
        System.out.println("warm");
        long[] durations = measure(producer, arguments[1], threads, Double.parseDouble(arguments[3]), body);
        System.out.printf(
            "%d %.3f %.3f%n",
            durations.length,
            durations[durations.length / 2] / 1e6,
            durations[(int) (durations.length * 0.99)] / 1e6);
        producer.shutdown();
        System.exit(failed.get() ? 1 : 0);
    }

    /** Nanoseconds of each send, ascending. */
    static long[] measure(DefaultMQProducer producer, String topic, int threads, double seconds, byte[] body)
        throws InterruptedException {
        long end = System.nanoTime() + (long) (seconds * 1e9);
        long[][] found = new long[threads][];
        Thread[] running = new Thread[threads];
        for (int i = 0; i < threads; i++) {
            int number = i;
            running[i] = new Thread(() -> found[number] = sends(producer, topic, end, body));
            running[i].start();
        }
        for (Thread thread : running) {
            thread.join();
        }
        return Arrays.stream(found).flatMapToLong(Arrays::stream).sorted().toArray();
    }

    static long[] sends(DefaultMQProducer producer, String topic, long end, byte[] body) {
        long[] durations = new long[1024];
        int count = 0;
        try {
            while (System.nanoTime() < end) {
                long began = System.nanoTime();
                if (producer.send(new Message(topic, body)).getSendStatus() != SendStatus.SEND_OK) {
                    throw new IllegalStateException("a send was not confirmed");
                }
                if (count == durations.length) {
                    durations = Arrays.copyOf(durations, 2 * count);
                }
                durations[count++] = System.nanoTime() - began;
            }
        } catch (Exception error) {
            failed.set(true);
            error.printStackTrace();
        }
        return Arrays.copyOf(durations, count);
    }
}
