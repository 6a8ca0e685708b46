/* The original's consume.js, load.js (at a tenth of its size) and complete.js. */
import assert from 'node:assert/strict';
import { datas, eventually, numbers, sleep, suite } from './support/suite.mjs';

const LOAD = process.env.QUEEN_TEST_ALL === '1' ? 100000 : 10000;
const IDLE_MS = 1500;

/** Consumes until `count` messages were handled; the handler is called as the builder says. */
async function consumeAll(builder, count, handler = () => {}) {
  const controller = new AbortController();
  const seen = [];
  await builder.consume(async (given) => {
    const messages = Array.isArray(given) ? given : [given];
    await handler(given);
    seen.push(...messages);
    if (seen.length >= count) controller.abort();
  }, { signal: controller.signal });
  return seen;
}

/** Pushes 0..count-1 in batches of at most 1000. */
async function fill(kit, queue, count, partition = 'Default') {
  for (let at = 0; at < count; at += 1000) await kit.push(queue, numbers(Math.min(1000, count - at), at), partition);
}

suite('consume', {
  async testConsumer(kit) {
    const queue = await kit.queue();
    await kit.push(queue, ['hello']);
    let got;
    await kit.queen.queue(queue).batch(1).limit(1).each().consume(({ data }) => {
      got = data;
    });
    assert.equal(got, 'hello');
    assert.equal((await kit.queen.admin.getQueueDepth(queue)).pending, 0);
  },

  async testConsumerTrace(kit) {
    const queue = await kit.queue();
    await kit.push(queue, [1]);
    let result;
    await kit.queen.queue(queue).limit(1).each().consume(async (message) => {
      result = await message.trace({ traceName: ['a', 'b'], data: { step: 1 } });
    });
    assert.equal(typeof result.success, 'boolean');
    assert.equal((await kit.queen.admin.getQueueDepth(queue)).pending, 0);
  },

  async testConsumerWithPartition(kit) {
    const queue = await kit.queue();
    for (const partition of ['p1', 'p2']) {
      await kit.queen.queue(queue).partition(partition).buffer({ messageCount: 100, timeMillis: 1000 }).push(numbers(100).map((i) => ({ data: `${partition} ${i}` })));
    }
    await kit.queen.flushAllBuffers();
    for (const partition of ['p1', 'p2']) {
      const seen = [];
      await kit.queen.queue(queue).partition(partition).batch(100).limit(1).consume((messages) => {
        seen.push(...datas(messages));
      });
      assert.deepEqual(seen, numbers(100).map((i) => `${partition} ${i}`));
    }
  },

  async testConsumerBatchConsume(kit) {
    const queue = await kit.queue();
    await kit.push(queue, [1, 2, 3]);
    let got;
    await kit.queen.queue(queue).batch(10).limit(1).consume((messages) => {
      got = datas(messages);
    });
    assert.deepEqual(got, [1, 2, 3]);
  },

  async testConsumerOrdering(kit) {
    const queue = await kit.queue();
    await fill(kit, queue, 100);
    assert.deepEqual(datas(await consumeAll(kit.queen.queue(queue).batch(1).each(), 100)), numbers(100));
  },

  async testConsumerOrderingBatch(kit) {
    const queue = await kit.queue();
    await fill(kit, queue, 100);
    let calls = 0;
    const seen = await consumeAll(kit.queen.queue(queue).batch(100), 100, () => {
      calls += 1;
    });
    assert.deepEqual(datas(seen), numbers(100));
    assert.equal(calls, 1);
  },

  async testConsumerBatchConsumeBatch(kit) {
    const queue = await kit.queue();
    await kit.push(queue, ['old', 'old']);
    await kit.queen.queue(queue).delete();
    await kit.queen.queue(queue).create();
    await kit.push(queue, [1, 2, 3]);
    const seen = [];
    await kit.queen.queue(queue).batch(10).idleMillis(IDLE_MS).consume((messages) => {
      seen.push(...datas(messages));
    });
    assert.deepEqual(seen, [1, 2, 3]);
  },

  async testConsumerOrderingConcurrency(kit) {
    const queue = await kit.queue();
    await fill(kit, queue, 200);
    const seen = await consumeAll(kit.queen.queue(queue).batch(1).each().concurrency(10), 200, () => sleep(1));
    assert.deepEqual(datas(seen), numbers(200));
  },

  async testConsumerOrderingConcurrencyWithBufferedPush(kit) {
    const queue = await kit.queue();
    const consumed = consumeAll(kit.queen.queue(queue).batch(10).each().concurrency(10), 500);
    const producer = kit.queen.queue(queue).buffer({ messageCount: 50, timeMillis: 50 });
    for (const i of numbers(500)) await producer.push([{ data: i }]);
    await producer.flushBuffer();
    assert.deepEqual(datas(await consumed), numbers(500));
  },

  async consumerGroup(kit) {
    const queue = await kit.queue();
    await fill(kit, queue, 100);
    for (const group of ['g1', 'g2']) {
      const seen = await consumeAll(kit.queen.queue(queue).group(group).subscriptionMode('from_beginning').batch(100), 100);
      assert.deepEqual(datas(seen), numbers(100));
    }
  },

  async consumerGroupWithPartition(kit) {
    const queue = await kit.queue();
    await fill(kit, queue, 100, 'p');
    await fill(kit, queue, 10, 'other');
    for (const group of ['g1', 'g2']) {
      const seen = await consumeAll(kit.queen.queue(queue).partition('p').group(group).subscriptionMode('from_beginning').batch(100), 100);
      assert.deepEqual(datas(seen), numbers(100));
      assert.ok(seen.every(({ partition }) => partition === 'p'));
    }
  },

  async manualAck(kit) {
    const queue = await kit.queue();
    await fill(kit, queue, 10000);
    const controller = new AbortController();
    const seen = [];
    await kit.queen
      .queue(queue)
      .batch(1000)
      .autoAck(false)
      .consume((messages) => messages, { signal: controller.signal })
      .onSuccess(async (messages) => {
        assert.equal((await kit.queen.ack(messages)).success, true);
        seen.push(...datas(messages));
        if (seen.length === 10000) controller.abort();
      });
    assert.deepEqual(seen, numbers(10000));
    assert.equal((await kit.queen.admin.getQueueDepth(queue)).pending, 0);
  },

  async retries(kit) {
    const queue = await kit.queue({ retryLimit: 3 });
    await fill(kit, queue, 10);
    const calls = [];
    await consumeAll(kit.queen.queue(queue).batch(10), 10, (messages) => {
      calls.push(datas(messages));
      if (calls.length < 3) throw new Error(`attempt ${calls.length}`);
    });
    assert.deepEqual(calls, Array(3).fill(numbers(10)));
  },

  async retriesConsumerGroup(kit) {
    const queue = await kit.queue({ retryLimit: 3 });
    await fill(kit, queue, 10);
    const builder = (group) => kit.queen.queue(queue).group(group).subscriptionMode('all').batch(10);
    let calls = 0;
    await consumeAll(builder('g1'), 10, () => {
      if (++calls < 3) throw new Error('again');
    });
    assert.equal(calls, 3);
    const other = await consumeAll(builder('g2'), 10);
    assert.ok(other.every(({ deliveryAttempt }) => deliveryAttempt === 1));
  },

  async autoRenewLease(kit) {
    const queue = await kit.queue({ leaseTime: 3 });
    await kit.push(queue, [1]);
    let result;
    await kit.queen
      .queue(queue)
      .limit(1)
      .renewLease(true, 1000)
      .consume(() => sleep(5000))
      .onSuccess(async (messages) => {
        result = await kit.queen.ack(messages);
      });
    assert.equal(result.success, true);
  },

  async testConsumerMultiPartition(kit) {
    const queue = await kit.queue();
    for (const partition of ['a', 'b', 'c']) await fill(kit, queue, 4, partition);
    let got;
    await kit.queen.queue(queue).batch(100).partitions(3).limit(1).consume((messages) => {
      got = messages;
    });
    const count = (member) => new Set(got.map((message) => message[member])).size;
    assert.deepEqual([got.length, count('partitionId'), count('leaseId')], [12, 3, 1]);
  },

  async testConsumerMultiPartitionGlobalCap(kit) {
    const queue = await kit.queue();
    for (const partition of ['a', 'b', 'c', 'd', 'e']) await fill(kit, queue, 20, partition);
    let got;
    await kit.queen.queue(queue).batch(20).partitions(5).limit(1).consume((messages) => {
      got = messages;
    });
    assert.equal(got.length, 20);
  },

  async testLoad(kit) {
    const queue = await kit.queue();
    await fill(kit, queue, LOAD);
    assert.deepEqual(datas(await consumeAll(kit.queen.queue(queue).batch(100).concurrency(10), LOAD)), numbers(LOAD));
  },

  async testLoadPartition(kit) {
    const queue = await kit.queue();
    const each = LOAD / 10;
    for (const p of numbers(10)) await fill(kit, queue, each, `p${p}`);
    for (const p of numbers(10)) {
      assert.deepEqual(datas(await consumeAll(kit.queen.queue(queue).partition(`p${p}`).batch(1000), each)), numbers(each));
    }
  },

  async testLoadConsumerGroup(kit) {
    const queue = await kit.queue();
    await fill(kit, queue, LOAD);
    const groups = ['g1', 'g2'].map((group) => consumeAll(kit.queen.queue(queue).group(group).subscriptionMode('all').batch(1000), LOAD));
    for (const seen of await Promise.all(groups)) assert.deepEqual(datas(seen), numbers(LOAD));
  },

  async testComplete(kit) {
    const [first, second, third] = [await kit.queue(), await kit.queue(), await kit.queue()];
    await kit.push(first, [{ value: 1 }]);
    for (const [from, to] of [[first, second], [second, third]]) {
      await kit.queen.queue(from).limit(1).autoAck(false).each().consume(async (message) => {
        await kit.queen.transaction().ack(message).queue(to).push([{ data: { value: message.data.value + 1 } }]).commit();
      });
    }
    assert.deepEqual(datas(await kit.take(third)), [{ value: 3 }]);
    await eventually(async () => (await kit.queen.admin.getQueueDepth(first)).pending === 0);
  },
});
