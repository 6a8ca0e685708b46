/* The original's transaction.js. */
import assert from 'node:assert/strict';
import { datas, numbers, sleep, suite } from './support/suite.mjs';

/** A queue with these messages, popped. */
async function popped(kit, messages, options) {
  const queue = await kit.queue(options);
  await kit.push(queue, messages);
  return { queue, messages: await kit.take(queue, messages.length) };
}

async function empty(kit, queue) {
  assert.deepEqual(await kit.now(queue, 100), []);
}

suite('transaction', {
  async transactionBasicPushAck(kit) {
    const a = await popped(kit, [{ n: 1 }]);
    const b = await kit.queue();
    const answer = await kit.queen.transaction().ack(a.messages[0]).queue(b).push([{ data: { n: 2 } }]).commit();
    assert.equal(answer.success, true);
    assert.deepEqual(answer.results.map(({ type }) => type), ['ack', 'push']);
    assert.deepEqual(datas(await kit.take(b)), [{ n: 2 }]);
    await empty(kit, a.queue);
  },

  async transactionMultiplePushes(kit) {
    const a = await popped(kit, [1]);
    const [b, c] = [await kit.queue(), await kit.queue()];
    await kit.queen.transaction().queue(b).push([{ data: 'b' }]).queue(c).push([{ data: 'c' }]).ack(a.messages).commit();
    assert.deepEqual(datas(await kit.take(b)), ['b']);
    assert.deepEqual(datas(await kit.take(c)), ['c']);
    await empty(kit, a.queue);
  },

  async transactionMultipleAcks(kit) {
    const a = await popped(kit, [1, 2, 3]);
    const b = await kit.queue();
    await kit.queen.transaction().ack(a.messages).queue(b).push([{ data: 'sum' }]).commit();
    assert.deepEqual(datas(await kit.take(b)), ['sum']);
    await empty(kit, a.queue);
  },

  async transactionAckWithStatus(kit) {
    const a = await popped(kit, [1], { retryLimit: 0 });
    const b = await kit.queue();
    await kit.queen.transaction().ack(a.messages[0], 'failed').queue(b).push([{ data: 2 }]).commit();
    assert.deepEqual(datas(await kit.take(b)), [2]);
    await empty(kit, a.queue);
  },

  async transactionAtomicity(kit) {
    const a = await popped(kit, [1]);
    const b = await kit.queue();
    await kit.queen.transaction().ack(a.messages[0]).queue(b).push([{ data: 2 }]).commit();
    assert.equal((await kit.queen.admin.getQueueDepth(a.queue)).pending, 0);
    assert.equal((await kit.queen.admin.getQueueDepth(b)).pending, 1);
  },

  async transactionChainedProcessing(kit) {
    const a = await popped(kit, [1]);
    const [b, c] = [await kit.queue(), await kit.queue()];
    await kit.queen.transaction().ack(a.messages[0]).queue(b).push([{ data: 2 }]).commit();
    const [message] = await kit.take(b);
    await kit.queen.transaction().ack(message).queue(c).push([{ data: 3 }]).commit();
    assert.deepEqual(datas(await kit.take(c)), [3]);
    await empty(kit, b);
  },

  async transactionBatchPush(kit) {
    const a = await popped(kit, [1]);
    const b = await kit.queue();
    await kit.queen.transaction().ack(a.messages[0]).queue(b).push(numbers(5).map((data) => ({ data }))).commit();
    assert.deepEqual(datas(await kit.drain(b, 5)), numbers(5));
  },

  async transactionWithPartitions(kit) {
    const queue = await kit.queue();
    const target = await kit.queue();
    const messages = [];
    for (const partition of ['p1', 'p2']) {
      await kit.push(queue, [partition], partition);
      messages.push(...(await kit.take(queue, 1, (builder) => builder.partition(partition))));
    }
    assert.equal(new Set(messages.map(({ leaseId }) => leaseId)).size, 2);
    await kit.queen.transaction().ack(messages).queue(target).partition('out').push([{ data: 'both' }]).commit();
    assert.deepEqual((await kit.take(target)).map(({ data, partition }) => [data, partition]), [['both', 'out']]);
    await empty(kit, queue);
  },

  async transactionWithConsumer(kit) {
    const queue = await kit.queue();
    const target = await kit.queue();
    await kit.push(queue, numbers(5));
    await kit.queen.queue(queue).autoAck(false).each().limit(5).batch(5).consume(async (message) => {
      await kit.queen.transaction().ack(message).queue(target).push([{ data: message.data * 10 }]).commit();
    });
    assert.deepEqual(datas(await kit.drain(target, 5)), [0, 10, 20, 30, 40]);
    await empty(kit, queue);
  },

  async transactionEmptyCommit(kit) {
    await assert.rejects(kit.queen.transaction().commit(), { message: 'Transaction has no operations to commit' });
  },

  async transactionLargePayload(kit) {
    const a = await popped(kit, [1]);
    const b = await kit.queue();
    const data = { list: numbers(1000).map((id) => ({ id, text: 'x'.repeat(100) })) };
    await kit.queen.transaction().ack(a.messages[0]).queue(b).push([{ data }]).commit();
    assert.deepEqual((await kit.take(b))[0].data, data);
  },

  async transactionMultipleQueues(kit) {
    const [a, b] = [await popped(kit, [1]), await popped(kit, [2])];
    const c = await kit.queue();
    await kit.queen.transaction().ack(a.messages[0]).ack(b.messages[0]).queue(c).push([{ data: 3 }]).commit();
    assert.deepEqual(datas(await kit.take(c)), [3]);
    await empty(kit, a.queue);
    await empty(kit, b.queue);
  },

  async transactionRollback(kit) {
    const a = await popped(kit, ['source'], { leaseTime: 1 });
    const b = await kit.queue();
    const unknown = { ...a.messages[0], transactionId: 'never-pushed' };
    await assert.rejects(
      kit.queen.transaction().queue(b).push([{ data: 'never' }]).ack(a.messages[0]).ack(unknown).commit(),
      (error) => error.reason === 'rejected_ack' && error.result.success === false,
    );
    await empty(kit, b);
    await sleep(1200);
    assert.deepEqual(datas(await kit.take(a.queue)), ['source']);
  },

  async transactionAckWithConsumerGroup(kit) {
    const queue = await kit.queue();
    const target = await kit.queue();
    await kit.push(queue, [1, 2]);
    const of = (group) => (builder) => builder.group(group).subscriptionMode('all');
    const messages = await kit.take(queue, 2, of('g1'));
    await kit.queen.transaction().ack(messages, 'completed', { consumerGroup: 'g1' }).queue(target).push([{ data: 'done' }]).commit();
    assert.deepEqual(await kit.now(queue, 2, of('g1')), []);
    assert.deepEqual(datas(await kit.take(queue, 2, of('g2'))), [1, 2]);
  },

  async nextBringsTheFollowingBatch(kit) {
    const a = await popped(kit, [1]);
    await kit.push(a.queue, [2]);
    const answer = await kit.queen.transaction().ack(a.messages[0]).next({ queue: a.queue, batch: 1 }).commit();
    assert.deepEqual(datas(answer.next.messages), [2]);
    assert.equal((await kit.queen.ack(answer.next.messages[0])).success, true);
  },
});
