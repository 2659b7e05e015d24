// Lines of JSON with the test that started this program.
'use strict';

const readline = require('node:readline');

const { FilterExpression } = require('rocketmq-client-nodejs');

const SQL = 2; // of the protocol's FilterType, which the SDK does not export

// What the test gave on the command line.
const options = JSON.parse(process.argv[2]);

// What every client of the SDK is told; all but `endpoint` may be missing.
function connection() {
  const { endpoint, namespace = '', tls = false, access_key: accessKey, secret_key: accessSecret } = options;
  const given = { endpoints: endpoint, namespace, sslEnabled: tls };
  return accessKey ? { ...given, sessionCredentials: { accessKey, accessSecret } } : given;
}

// What a consumer reads: `topic`, as far as `expression` lets through, which may be `sql`.
function subscriptions() {
  const { topic, expression = '*', sql = false } = options;
  return new Map([[topic, sql ? new FilterExpression(expression, SQL) : expression]]);
}

function say(event, fields = {}) {
  process.stdout.write(`${JSON.stringify({ event, ...fields })}\n`);
}

// Answer commands by their name until the test closes the pipe; a rejection is told, and the next command read.
async function obey(answers) {
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const { do: name, ...command } = JSON.parse(line);
    try {
      say('answer', await answers[name](command));
    } catch (error) {
      say('error', { error: `${error.name}: ${error.message}` });
    }
  }
}

// A received message in JSON.
function told(message) {
  return {
    time: Date.now() / 1000,
    message_id: message.messageId,
    topic: message.topic,
    body: message.body.toString(),
    tag: message.tag || null, // the SDK reads an absent tag as ''
    keys: [...message.keys].sort(),
    properties: Object.fromEntries(message.properties),
    attempt: message.deliveryAttempt,
    corrupted: Boolean(message.corrupted),
    born_host: message.bornHost,
    born_timestamp: message.bornTimestamp.getTime(),
  };
}

async function seconds(action) {
  const started = process.hrtime.bigint();
  await action();
  return { seconds: Number(process.hrtime.bigint() - started) / 1e9 };
}

module.exports = { connection, obey, options, say, seconds, subscriptions, told };
