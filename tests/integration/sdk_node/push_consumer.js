// Tells of every message that its listener gets, of every acknowledgement that the broker has answered, and of every
// Settings that it received.
//
// `failures`: the listener fails with that many first attempts of each message, the first of them by throwing.
// `failing_calls`: body -> how many calls for that message fail, whatever the attempt.
// `seconds`: how long it works on a message.
'use strict';

const { ConsumeResult, PushConsumer } = require('rocketmq-client-nodejs');
const { connection, obey, options, say, seconds, subscriptions, told } = require('./conversation');

// The SDK's, which does not say when an acknowledgement has been answered or settings have come.
class ObservedPushConsumer extends PushConsumer {
  async ackMessageViaRpc(endpoints, request, timeout) {
    const response = await super.ackMessageViaRpc(endpoints, request, timeout);
    for (const entry of request.getEntriesList()) {
      const code = response.getStatus().getCode();
      say('acknowledged', { body: bodies.get(entry.getMessageId()), code });
    }
    return response;
  }

  onSettingsCommand(endpoints, settings) {
    say('settings');
    return super.onSettingsCommand(endpoints, settings);
  }
}

const bodies = new Map();

async function main() {
  const { group, failures = 0, failing_calls: failingCalls = {}, seconds: workSeconds = 0 } = options;
  const consumer = new ObservedPushConsumer({
    ...connection(),
    consumerGroup: group,
    subscriptions: subscriptions(),
    messageListener: {
      async consume(message) {
        say('message', told(message));
        bodies.set(message.messageId, message.body.toString());
        await new Promise((resolve) => setTimeout(resolve, workSeconds * 1000));
        const body = message.body.toString();
        if (failingCalls[body] > 0) {
          failingCalls[body] -= 1;
          return ConsumeResult.FAILURE;
        }
        if (message.deliveryAttempt > failures) {
          return ConsumeResult.SUCCESS;
        }
        if (message.deliveryAttempt === 1) {
          throw new Error('the listener fails, as it was told');
        }
        return ConsumeResult.FAILURE;
      },
    },
  });
  await consumer.startup();
  say('ready');
  let ended = false;
  const shutdown = () => {
    ended = true;
    return seconds(() => consumer.shutdown());
  };
  await obey({ shutdown });
  if (!ended) {
    await shutdown();
  }
  process.exit(); // the SDK leaves the timer of a log file behind
}

main();
