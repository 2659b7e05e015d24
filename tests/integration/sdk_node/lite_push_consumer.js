// Tells of every message of the lite topics that it is told to subscribe.
//
// {"do": "subscribe", "lite_topic"}
// {"do": "unsubscribe", "lite_topic"}
'use strict';

const { ConsumeResult, LitePushConsumerBuilder } = require('rocketmq-client-nodejs');
const { connection, obey, options, say, told } = require('./conversation');

async function main() {
  const { topic, group } = options;
  const messageListener = {
    async consume(message) {
      say('message', { lite_topic: message.liteTopic, ...told(message) });
      return ConsumeResult.SUCCESS;
    },
  };
  const consumer = await new LitePushConsumerBuilder()
    .setClientConfiguration(connection())
    .setConsumerGroup(group)
    .bindTopic(topic)
    .setMessageListener(messageListener)
    .build();
  say('ready');
  await obey({
    subscribe: async ({ lite_topic: liteTopic }) => {
      await consumer.subscribeLite(liteTopic);
      return {};
    },
    unsubscribe: async ({ lite_topic: liteTopic }) => {
      await consumer.unsubscribeLite(liteTopic);
      return {};
    },
  });
  await consumer.close();
  process.exit(); // the SDK leaves the timer of a log file behind
}

main();
