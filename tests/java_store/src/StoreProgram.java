import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Properties;

import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.GetMessageResult;
import org.apache.rocketmq.store.PutMessageResult;
import org.apache.rocketmq.store.QueryMessageResult;
import org.apache.rocketmq.store.config.MessageStoreConfig;

/**
 * Apache RocketMQ's store on one directory, for a test that talks to it in lines of tab-separated fields.
 *
 * Arguments: the directory, then settings of MessageStoreConfig as name=value. First answer: "ready", the smallest
 * and the largest physical offset; or "refused" and why, and the program ends. Each command is answered by lines, the
 * last of which is "done" or "failed" and why:
 *
 *   read   topic queue                    range min max; message (see message) for every message of the queue
 *   query  topic key                      found physical-offset, for each hit
 *   time   topic queue timestamp          offset queue-offset
 *   put    topic queue properties body    put status queue-offset physical-offset. Properties and body in hexadecimal
 *   flood  topic queue body-size          put ... for ever: whoever asks kills the program
 *   behind                                behind bytes, that dispatch has not seen
 *   table  kind text                      table text again, as RocketMQ reads and writes it. Text in hexadecimal
 *
 * At the end of input the store is shut down, and "closed" is the last line.
 */
public final class StoreProgram {
    /** Standard output belongs to the test; what RocketMQ prints goes to standard error. */
    private static final PrintStream ANSWERS = new PrintStream(new FileOutputStream(FileDescriptor.out), true);

    private final DefaultMessageStore store;

    private StoreProgram(DefaultMessageStore store) {
        this.store = store;
    }

    public static void main(String[] arguments) {
        System.setOut(System.err);
        try {
            run(arguments);
        } catch (Throwable error) {
            error.printStackTrace();
            System.exit(4); // the store's threads would keep the process alive
        }
    }

    private static void run(String[] arguments) throws Exception {
        Properties settings = new Properties();
        settings.setProperty("storePathRootDir", arguments[0]);
        settings.setProperty("storePathCommitLog", arguments[0] + "/commitlog");
        settings.setProperty("haListenPort", "0");
        for (int number = 1; number < arguments.length; number++) {
            String[] setting = arguments[number].split("=", 2);
            settings.setProperty(setting[0], setting[1]);
        }
        MessageStoreConfig config = new MessageStoreConfig();
        MixAll.properties2Object(settings, config);
        DefaultMessageStore store;
        try {
            store = Release.open(config);
            if (!store.load()) {
                throw new IllegalStateException("load() answers false");
            }
            Release.start(store);
        } catch (Exception error) {
            answer("refused", error);
            System.exit(3);
            return;
        }
        answer("ready", store.getMinPhyOffset(), store.getMaxPhyOffset());
        new StoreProgram(store).serve();
        Release.shutdown(store);
        answer("closed");
        System.exit(0);
    }

    private void serve() throws Exception {
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            try {
                obey(line.split("\t", -1));
                answer("done");
            } catch (Exception error) {
                error.printStackTrace();
                answer("failed", error);
            }
        }
    }

    private void obey(String[] command) throws Exception {
        switch (command[0]) {
            case "read": read(command[1], Integer.parseInt(command[2])); break;
            case "query": query(command[1], command[2]); break;
            case "time":
                answer("offset", store.getOffsetInQueueByTime(
                    command[1], Integer.parseInt(command[2]), Long.parseLong(command[3])));
                break;
            case "put": put(command[1], Integer.parseInt(command[2]), bytes(command[3]), bytes(command[4])); break;
            case "flood":
                for (int number = 0; ; number++) {
                    byte[] properties = ("KEYS\1n" + number + "\2TAGS\1t" + number % 3 + "\2").getBytes();
                    put(command[1], Integer.parseInt(command[2]), properties, new byte[Integer.parseInt(command[3])]);
                }
            case "behind": answer("behind", store.dispatchBehindBytes()); break;
            case "table": answer("table", hexadecimal(Release.table(command[1], text(bytes(command[2]))))); break;
            default: throw new IllegalArgumentException("no such command: " + command[0]);
        }
    }

    private void read(String topic, int queueId) throws Exception {
        long offset = store.getMinOffsetInQueue(topic, queueId);
        long end = store.getMaxOffsetInQueue(topic, queueId);
        answer("range", offset, end);
        while (offset < end) {
            GetMessageResult result = store.getMessage("reader", topic, queueId, offset, 32, null);
            try {
                for (ByteBuffer record : result.getMessageBufferList()) {
                    message(record);
                }
                if (result.getNextBeginOffset() <= offset) {
                    throw new IllegalStateException("stuck at " + offset + ": " + result.getStatus());
                }
                offset = result.getNextBeginOffset();
            } finally {
                result.release();
            }
        }
    }

    /** message queue-offset physical-offset tag keys properties body record; the last three in hexadecimal. */
    private static void message(ByteBuffer buffer) {
        byte[] record = new byte[buffer.remaining()];
        buffer.duplicate().get(record);
        MessageExt message = MessageDecoder.decode(ByteBuffer.wrap(record), true, false);
        if (message == null) {
            throw new IllegalStateException("the decoder cannot read " + hexadecimal(record));
        }
        Map<String, String> found = message.getProperties(); // null where release 4.9 finds none
        StringBuilder properties = new StringBuilder();
        for (Map.Entry<String, String> entry : (found == null ? Map.<String, String>of() : found).entrySet()) {
            properties.append(entry.getKey()).append('\1').append(entry.getValue()).append('\2');
        }
        answer("message", message.getQueueOffset(), message.getCommitLogOffset(), message.getTags(), message.getKeys(),
            hexadecimal(properties.toString()), hexadecimal(message.getBody()), hexadecimal(record));
    }

    private void query(String topic, String key) {
        QueryMessageResult result = store.queryMessage(topic, key, 64, 0, Long.MAX_VALUE);
        try {
            for (ByteBuffer record : result.getMessageBufferList()) {
                answer("found", record.getLong(28));
            }
        } finally {
            result.release();
        }
    }

    private void put(String topic, int queueId, byte[] properties, byte[] body) {
        MessageExt message = Release.message();
        message.setTopic(topic);
        message.setQueueId(queueId);
        message.setBody(body);
        MessageAccessor.setProperties(message, MessageDecoder.string2messageProperties(text(properties)));
        message.setBornTimestamp(System.currentTimeMillis());
        message.setBornHost(new InetSocketAddress("10.0.0.1", 4000));
        message.setStoreHost(new InetSocketAddress("127.0.0.1", 10911));
        PutMessageResult result = Release.put(store, message);
        answer("put", result.getPutMessageStatus(), result.getAppendMessageResult().getLogicsOffset(),
            result.getAppendMessageResult().getWroteOffset());
    }

    private static synchronized void answer(Object... fields) {
        List<String> texts = new ArrayList<>();
        for (Object field : fields) {
            texts.add(String.valueOf(field).replace('\t', ' ').replace('\n', ' '));
        }
        ANSWERS.println(String.join("\t", texts));
    }

    private static String hexadecimal(String text) {
        return hexadecimal(text.getBytes(StandardCharsets.UTF_8));
    }

    private static String hexadecimal(byte[] bytes) {
        StringBuilder text = new StringBuilder();
        for (byte each : bytes == null ? new byte[0] : bytes) {
            text.append(String.format("%02x", each));
        }
        return text.toString();
    }

    private static byte[] bytes(String hexadecimal) {
        byte[] bytes = new byte[hexadecimal.length() / 2];
        for (int number = 0; number < bytes.length; number++) {
            bytes[number] = (byte) Integer.parseInt(hexadecimal.substring(2 * number, 2 * number + 2), 16);
        }
        return bytes;
    }

    private static String text(byte[] bytes) {
        return new String(bytes, StandardCharsets.UTF_8);
    }
}
