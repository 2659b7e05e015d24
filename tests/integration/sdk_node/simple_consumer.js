// Receives and acknowledges what it is told to; knows messages by their bodies. Durations are seconds.
'use strict';

const { SimpleConsumer } = require('rocketmq-client-nodejs');
const { connection, obey, options, say, subscriptions, told } = require('./conversation');

async function main() {
  const { group, await: wait = 2 } = options;
  const consumer = new SimpleConsumer({
    ...connection(),
    consumerGroup: group,
    subscriptions: subscriptions(),
    awaitDuration: wait * 1000,
  });
  await consumer.startup();
  say('ready');
  const held = new Map();
  await obey({
    receive: async ({ count, invisible }) => {
      const messages = await consumer.receive(count, invisible * 1000);
      for (const message of messages) {
        held.set(message.body.toString(), message);
      }
      return { time: Date.now() / 1000, messages: messages.map(told) };
    },
    acknowledge: async ({ bodies }) => {
      await Promise.all(bodies.map((body) => consumer.ack(held.get(body))));
      return {};
    },
    change: async ({ body, invisible }) => {
      await consumer.changeInvisibleDuration(held.get(body), invisible * 1000);
      return { time: Date.now() / 1000 };
    },
  });
  await consumer.shutdown();
}

main();
