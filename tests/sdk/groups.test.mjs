/* The original's bootstrap.js, watermark.js and docs.js: where groups begin, and how their cursors are moved. */
import assert from 'node:assert/strict';
import { datas, numbers, suite } from './support/suite.mjs';

const PARTITIONS = 5000;
const WATERMARKS = 10;

/** One message in each of `count` partitions. */
async function spread(kit, queue, count, data) {
  for (let at = 0; at < count; at += 1000) {
    const items = numbers(Math.min(1000, count - at), at).map((p) => ({ queue, partition: `p${p}`, payload: data }));
    const response = await fetch(`${kit.broker.url}/api/v1/push`, { method: 'POST', body: JSON.stringify({ items }) });
    assert.equal(response.status, 201);
  }
}

/** Takes everything a group can get. */
async function readAll(kit, queue, build = (builder) => builder) {
  const all = [];
  for (;;) {
    const messages = await kit.now(queue, 1000, (builder) => build(builder.partitions(1000)));
    if (messages.length === 0) return all;
    assert.equal((await kit.queen.ack(messages)).success, true);
    all.push(...messages);
  }
}

async function bootstrap(kit, begin) {
  const queue = await kit.queue();
  await spread(kit, queue, PARTITIONS, 'old');
  assert.equal((await readAll(kit, queue)).length, PARTITIONS);
  const started = performance.now();
  assert.deepEqual(await kit.now(queue, 1000, begin), []);
  assert.ok(performance.now() - started < 10000);
  await spread(kit, queue, PARTITIONS, 'new');
  const messages = await readAll(kit, queue, begin);
  assert.equal(messages.length, PARTITIONS);
  assert.ok(messages.every(({ data }) => data === 'new'));
}

/** A queue of ten partitions that group g has read. */
async function watermarks(kit) {
  const queue = await kit.queue();
  const before = new Date(Date.now() - 1000).toISOString();
  await spread(kit, queue, WATERMARKS, 'x');
  const group = (builder) => builder.group(`g-${queue}`).subscriptionMode('all');
  const again = async () => (await readAll(kit, queue, group)).length;
  assert.equal(await again(), WATERMARKS);
  assert.equal(await again(), 0);
  return { queue, before, again, group: `g-${queue}` };
}

suite('groups', {
  async testCgBootstrapNew(kit) {
    await bootstrap(kit, (builder) => builder.group('g').subscriptionMode('new'));
  },

  async testCgBootstrapTimestamp(kit) {
    let from;
    await bootstrap(kit, (builder) => builder.group('g').subscriptionFrom((from ??= new Date().toISOString())));
  },

  async seekBackwardsAllowsReconsume(kit) {
    const { queue, before, again, group } = await watermarks(kit);
    await kit.queen.admin.seekConsumerGroup(group, queue, { timestamp: before });
    assert.equal(await again(), WATERMARKS);
  },

  async deleteConsumerGroupAllowsReconsume(kit) {
    const { again, group } = await watermarks(kit);
    await kit.queen.deleteConsumerGroup(group);
    assert.equal(await again(), WATERMARKS);
  },

  async deleteConsumerGroupForQueueAllowsReconsume(kit) {
    const { queue, again, group } = await watermarks(kit);
    await kit.queen.admin.deleteConsumerGroupForQueue(group, queue);
    assert.equal(await again(), WATERMARKS);
  },

  async docsProduceAndConsume(kit) {
    const queue = await kit.queue();
    await kit.push(queue, [{ orderId: 1 }]);
    const seen = [];
    await kit.queen.queue(queue).group('workers').subscriptionMode('all').limit(1).each().consume(({ data }) => {
      seen.push(data);
    });
    assert.deepEqual(seen, [{ orderId: 1 }]);
    assert.equal((await kit.queen.admin.getQueueDepth(queue, 'workers')).pending, 0);
    assert.deepEqual(datas(await kit.take(queue)), [{ orderId: 1 }]);
  },

  async docsDeduplication(kit) {
    const queue = await kit.queue();
    const push = () => kit.queen.queue(queue).push([{ transactionId: 'order-1', data: 1 }]);
    const [first] = await push();
    const [second] = await push();
    assert.deepEqual([first.status, second.status, second.message_id], ['queued', 'duplicate', first.message_id]);
  },

  async docsReplayAndSeek(kit) {
    const queue = await kit.queue();
    await kit.push(queue, [1, 2, 3]);
    const group = (builder) => builder.group('replay').subscriptionMode('all');
    // Leased, not acknowledged: the seek releases the lease.
    assert.deepEqual(datas(await kit.take(queue, 10, group)), [1, 2, 3]);
    await kit.queen.admin.seekConsumerGroup('replay', queue, { timestamp: new Date(Date.now() - 3600000).toISOString() });
    assert.deepEqual(datas(await kit.take(queue, 10, group)), [1, 2, 3]);
  },

  async docsTransactionalHandoff(kit) {
    const [orders, invoices] = [await kit.queue(), await kit.queue()];
    await kit.push(orders, [{ orderId: 7 }]);
    await kit.queen.queue(orders).group('billing').subscriptionMode('all').autoAck(false).limit(1).each().consume(async (message) => {
      await kit.queen.transaction().ack(message).queue(invoices).push([{ data: { invoiceFor: message.data.orderId } }]).commit();
    });
    assert.deepEqual(datas(await kit.take(invoices)), [{ invoiceFor: 7 }]);
  },
});
