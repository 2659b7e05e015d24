package aerobee.sdk;

/**
 * Starts one of the programs: {@code java aerobee.sdk.Main producer '{"endpoint": "127.0.0.1:8081", "topic": "orders"}'}.
 */
public final class Main {
    public static void main(String[] arguments) throws Exception {
        var conversation = new Conversation(arguments[1]);
        switch (arguments[0]) {
            case "producer" -> ProducerProgram.run(conversation);
            case "simple_consumer" -> SimpleConsumerProgram.run(conversation);
            case "push_consumer" -> PushConsumerProgram.run(conversation);
            case "lite_push_consumer" -> LitePushConsumerProgram.run(conversation);
            default -> throw new IllegalArgumentException("there is no program " + arguments[0]);
        }
    }

    private Main() {}
}
