// SPDX-License-Identifier: Apache-2.0
// The npm client ali-ons as a command line: send and consume, one JSON line per event.
'use strict';

const crypto = require('crypto');
// Installed beside this program in the cache: see nodeclient.py.
const { Consumer, Message, Producer } = require('ali-ons');
const httpclient = require('urllib');

const STATUS_DEADLINE = 3;
const SILENT = { debug() {}, info() {}, warn: console.error, error: console.error };

function parseOptions(words) {
  const options = { count: '1', size: '100', tags: '*', 'timeout-s': '60', 'fail-first': '0' };
  for (let i = 0; i + 1 < words.length; i += 2) {
    options[words[i].replace(/^--/, '')] = words[i + 1];
  }
  return options;
}

function print(event, fields) {
  process.stdout.write(`${JSON.stringify({ event, ...fields })}\n`);
}

function describe(message) {
  return {
    key: message.keys,
    tag: message.tags,
    sha256: crypto.createHash('sha256').update(message.body).digest('hex'),
    size: message.body.length,
    msg_id: message.msgId,
    colour: message.properties.colour,
  };
}

// Half text, half noise without NUL, at which the C++ client's Python wrapper truncates bodies.
function bodyOf(key, size) {
  const head = Buffer.from(`${key}: äöü 中文 ${'the quick brown fox '.repeat(size / 40)}`);
  const noise = crypto.randomBytes(Math.max(0, size - head.length)).map(octet => octet || 1);
  return Buffer.concat([head, noise]);
}

async function send(options) {
  const producer = new Producer({
    httpclient, logger: SILENT, nameSrv: options.namesrv, producerGroup: options.group || 'NodeProducer',
  });
  await producer.ready();
  const tags = options.tags === '*' ? ['TagA'] : options.tags.split(',');
  for (let i = 0; i < Number(options.count); i++) {
    const key = `${options.key || 'node'}-${i}`;
    const body = bodyOf(key, Number(options.size));
    const message = new Message(options.topic, tags[i % tags.length], body);
    message.keys = [key];
    message.properties.colour = 'grün 绿';
    const described = describe(message);
    const result = await producer.send(message);
    print('sent', {
      ...described,
      status: result.sendStatus,
      msg_id: result.msgId,
      queue_id: result.messageQueue.queueId,
      queue_offset: Number(result.queueOffset),
    });
  }
}

async function consume(options) {
  const consumer = new Consumer({
    httpclient,
    logger: SILENT,
    nameSrv: options.namesrv,
    consumerGroup: options.group,
    consumeFromWhere: 'CONSUME_FROM_FIRST_OFFSET',
    maxReconsumeTimes: 16,
  });
  const keys = new Set();
  const finished = new Promise(resolve => {
    consumer.subscribe(options.topic, options.tags, async message => {
      const accepted = message.reconsumeTimes >= Number(options['fail-first']);
      print(accepted ? 'received' : 'refused', {
        ...describe(message),
        topic: message.topic,
        queue_id: message.queueId,
        queue_offset: Number(message.queueOffset),
        reconsume_times: message.reconsumeTimes,
      });
      if (!accepted) return Consumer.ACTION_RETRY;
      keys.add(message.keys);
      if (keys.size >= Number(options.count)) setImmediate(resolve);
      return undefined;
    });
  });
  consumer.on('error', error => console.error(error));
  await consumer.ready();
  print('started', {});
  await finished;
  await consumer.close();
}

async function main() {
  const [command, ...words] = process.argv.slice(2);
  const options = parseOptions(words);
  const deadline = setTimeout(() => process.exit(STATUS_DEADLINE), 1000 * Number(options['timeout-s']));
  await { send, consume }[command](options);
  clearTimeout(deadline);
  process.exit(0);
}

main().catch(error => {
  console.error(error);
  process.exit(1);
});
