/* The original's pop.js. */
import assert from 'node:assert/strict';
import { datas, numbers, sleep, suite } from './support/suite.mjs';

const distinct = (messages, member) => new Set(messages.map((message) => message[member])).size;

/** Pushes `count` messages to each of these partitions. */
async function fill(kit, partitions, count) {
  const queue = await kit.queue();
  for (const partition of partitions) await kit.push(queue, numbers(count), partition);
  return queue;
}

suite('pop', {
  async popEmptyQueue(kit) {
    assert.deepEqual(await kit.queen.queue(await kit.queue()).wait(false).pop(), []);
  },

  async popNonEmptyQueue(kit) {
    const queue = await fill(kit, ['Default'], 1);
    assert.deepEqual(datas(await kit.queen.queue(queue).wait(true).pop()), [0]);
  },

  async popWithWait(kit) {
    const queue = await kit.queue();
    const waiting = kit.queen.queue(queue).wait(true).timeoutMillis(10000).pop();
    await sleep(2000);
    await kit.push(queue, ['late']);
    assert.deepEqual(datas(await waiting), ['late']);
  },

  async popWithAck(kit) {
    const queue = await fill(kit, ['Default'], 1);
    const [message] = await kit.take(queue);
    assert.equal((await kit.queen.ack(message)).success, true);
  },

  async popWithAckReconsume(kit) {
    const queue = await kit.queue({ leaseTime: 1 });
    await kit.push(queue, ['again']);
    const [first] = await kit.take(queue);
    await sleep(2000);
    const [second] = await kit.take(queue);
    assert.equal(second.id, first.id);
    assert.equal((await kit.queen.ack(second)).success, true);
  },

  async popV4MultiPartitionBasic(kit) {
    const queue = await fill(kit, ['a', 'b', 'c'], 2);
    const messages = await kit.take(queue, 100, (builder) => builder.partitions(3));
    assert.deepEqual([messages.length, distinct(messages, 'partitionId'), distinct(messages, 'leaseId')], [6, 3, 1]);
  },

  async popV4GlobalCap(kit) {
    const queue = await fill(kit, ['a', 'b', 'c', 'd', 'e'], 100);
    assert.equal((await kit.take(queue, 10, (builder) => builder.partitions(5))).length, 10);
  },

  async popV4DefaultOne(kit) {
    const queue = await fill(kit, ['a', 'b', 'c'], 5);
    const messages = await kit.take(queue, 100, (builder) => builder.autopilot(false));
    assert.deepEqual([messages.length, distinct(messages, 'partitionId')], [5, 1]);
  },

  async popV4MultiPartitionAck(kit) {
    const queue = await fill(kit, ['a', 'b'], 3);
    const messages = await kit.take(queue, 100, (builder) => builder.partitions(2));
    assert.equal(distinct(messages, 'partitionId'), 2);
    const result = await kit.queen.ack(messages);
    assert.deepEqual([result.success, result.processed], [true, 6]);
    assert.deepEqual(await kit.now(queue, 100), []);
  },

  async popV4SharedLeaseRenew(kit) {
    const queue = await fill(kit, ['a', 'b', 'c'], 2);
    const messages = await kit.take(queue, 100, (builder) => builder.partitions(3));
    const renewed = await kit.queen.renew(messages[0]);
    assert.deepEqual([renewed.success, renewed.renewed], [true, 3]);
  },

  async aPlainPopLetsTheBrokerChoose(kit) {
    const queue = await fill(kit, ['a', 'b'], 3);
    const { messages, autopilot } = await kit.queen.queue(queue).popResult();
    assert.ok(messages.length > 0);
    assert.ok(autopilot.batch >= 1 && autopilot.partitions >= 1);
  },
});
