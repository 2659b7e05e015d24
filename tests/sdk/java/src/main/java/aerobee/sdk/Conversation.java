package aerobee.sdk;

import com.google.gson.Gson;
import com.google.gson.GsonBuilder;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.StaticSessionCredentialsProvider;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.FilterExpressionType;
import org.apache.rocketmq.client.apis.message.MessageView;

/** Lines of JSON with the test that started this program. */
final class Conversation {
    /** What the test gave on the command line. */
    static final class Options {
        String endpoint;
        String topic;
        String group;
        String namespace = "";
        boolean tls; // true: as the SDK does it by default
        String access_key = "";
        String secret_key = "";
        String expression = "*";
        boolean sql;
        double await = 2;
        String answer = "";
        int failures;
        double seconds;
        Map<String, Integer> failing_calls = Map.of(); // body -> how many calls for that message fail
    }

    /** A command of the test; which fields it has depends on {@code do}. */
    static final class Command {
        @com.google.gson.annotations.SerializedName("do")
        String name;
        String body;
        List<String> bodies;
        int count;
        String decision;
        double invisible;
        String lite_topic;
        List<Outgoing> messages;
    }

    static final class Outgoing {
        String body;
        String tag;
        List<String> keys = List.of();
        Map<String, String> properties = Map.of();
        String message_group;
        String lite_topic;
        Integer priority;
        double due; // Unix seconds
    }

    interface Answer {
        Map<String, ?> to(Command command) throws Exception;
    }

    final Options options;
    private final Gson gson = new GsonBuilder().serializeNulls().disableHtmlEscaping().create();
    private final PrintStream output = new PrintStream(System.out, true, StandardCharsets.UTF_8);

    Conversation(String options) {
        this.options = gson.fromJson(options, Options.class);
    }

    /** Tell the test; from any thread. */
    synchronized void say(String event, Map<String, ?> fields) {
        var line = new LinkedHashMap<String, Object>(fields);
        line.put("event", event);
        output.println(gson.toJson(line));
    }

    /** Answer commands by their name until the test closes the pipe; an exception is told, and the next command read. */
    void obey(Map<String, Answer> answers) throws Exception {
        var input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            Command command = gson.fromJson(line, Command.class);
            Map<String, ?> answer;
            try {
                answer = answers.get(command.name).to(command);
            } catch (Exception error) {
                say("error", Map.of("error", error.toString()));
                continue;
            }
            say("answer", answer);
        }
    }

    ClientConfiguration configuration() {
        var builder = ClientConfiguration.newBuilder().setEndpoints(options.endpoint).setNamespace(options.namespace);
        if (!options.tls) {
            builder.enableSsl(false);
        }
        if (!options.access_key.isEmpty()) {
            builder.setCredentialProvider(
                    new StaticSessionCredentialsProvider(options.access_key, options.secret_key));
        }
        return builder.build();
    }

    Map<String, FilterExpression> subscription() {
        var type = options.sql ? FilterExpressionType.SQL92 : FilterExpressionType.TAG;
        return Map.of(options.topic, new FilterExpression(options.expression, type));
    }

    /** A received message in JSON. */
    static Map<String, Object> told(MessageView message) {
        var fields = new LinkedHashMap<String, Object>();
        fields.put("time", unixNow());
        fields.put("message_id", message.getMessageId().toString());
        fields.put("topic", message.getTopic());
        fields.put("body", body(message));
        fields.put("tag", message.getTag().orElse(null));
        fields.put("keys", message.getKeys().stream().sorted().toList());
        fields.put("properties", message.getProperties());
        fields.put("message_group", message.getMessageGroup().orElse(null));
        fields.put("attempt", message.getDeliveryAttempt());
        fields.put("born_host", message.getBornHost());
        fields.put("born_timestamp", message.getBornTimestamp());
        return fields;
    }

    static String body(MessageView message) {
        return StandardCharsets.UTF_8.decode(message.getBody()).toString();
    }

    static double unixNow() {
        return System.currentTimeMillis() / 1e3;
    }

    static Duration duration(double seconds) {
        return Duration.ofMillis((long) (seconds * 1000));
    }
}
