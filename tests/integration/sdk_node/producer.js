// Sends what it is told to, takes it back, and ends transactions.
//
// {"do": "send", "messages": [{"body", "tag", "keys", "properties", "message_group", "lite_topic", "priority",
//                            "due": Unix seconds}]}
// {"do": "recall", "body": of a message that was sent}
// {"do": "transact", "body": "...", "decision": "commit", "rollback", or none yet}
//
// `answer`: what its checker says when the broker asks, or anything else for "not known"; it tells of every question.
'use strict';

const { Producer } = require('rocketmq-client-nodejs');
const { connection, obey, options, say, told } = require('./conversation');

const RESOLUTIONS = { commit: 1, rollback: 2 }; // of the protocol; the SDK does not export them

async function main() {
  const { topic } = options;
  const checker = {
    check: async (message) => {
      say('checked', told(message));
      return RESOLUTIONS[options.answer] ?? 0;
    },
  };
  const producer = new Producer({ ...connection(), topics: [topic], checker });
  const receipts = new Map();
  await producer.startup();
  say('ready');
  await obey({
    send: async ({ messages }) => {
      const ids = [];
      for (const each of messages) {
        const { body, tag, keys, properties, message_group: messageGroup, lite_topic: liteTopic, priority, due } = each;
        const message = { topic, tag, keys: keys ?? [], body: Buffer.from(body), messageGroup, liteTopic, priority };
        if (due) {
          message.deliveryTimestamp = new Date(due * 1000);
        }
        if (properties) {
          message.properties = new Map(Object.entries(properties));
        }
        const receipt = await producer.send(message);
        receipts.set(body, receipt);
        ids.push(receipt.messageId);
      }
      return { message_ids: ids };
    },
    recall: async ({ body }) => {
      const { messageId } = await producer.recallMessage(topic, receipts.get(body).recallHandle);
      return { message_id: messageId };
    },
    transact: async ({ body, decision }) => {
      const transaction = producer.beginTransaction();
      const { messageId } = await producer.send({ topic, keys: [], body: Buffer.from(body) }, transaction);
      if (decision) {
        await transaction[decision]();
      }
      return { message_id: messageId };
    },
  });
  await producer.shutdown();
}

main();
