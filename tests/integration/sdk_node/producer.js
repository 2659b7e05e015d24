// Sends what it is told to: {"do": "send", "messages": [{"body", "tag", "keys", "properties"}]}.
'use strict';

const { Producer } = require('rocketmq-client-nodejs');
const { obey, options, say } = require('./conversation');

async function main() {
  const { endpoint, topic } = options;
  const producer = new Producer({ endpoints: endpoint, namespace: '', topics: [topic] });
  await producer.startup();
  say('ready');
  await obey({
    send: async ({ messages }) => {
      const ids = [];
      for (const { body, tag, keys, properties } of messages) {
        const message = { topic, tag, keys: keys ?? [], body: Buffer.from(body) };
        if (properties) {
          message.properties = new Map(Object.entries(properties));
        }
        ids.push((await producer.send(message)).messageId);
      }
      return { message_ids: ids };
    },
  });
  await producer.shutdown();
}

main();
