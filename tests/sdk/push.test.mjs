/* The original's push.js. */
import assert from 'node:assert/strict';
import { datas, numbers, sleep, suite } from './support/suite.mjs';

const statuses = (answer) => answer.map(({ status }) => status);

suite('push', {
  async pushMessage(kit) {
    assert.deepEqual(statuses(await kit.push(await kit.queue(), [{ x: 1 }])), ['queued']);
  },

  async pushDuplicateMessage(kit) {
    const queue = await kit.queue();
    const push = () => kit.queen.queue(queue).push([{ transactionId: 'one', data: { x: 1 } }]);
    assert.deepEqual(statuses(await push()), ['queued']);
    assert.deepEqual(statuses(await push()), ['duplicate']);
  },

  async pushDuplicateMessageOnSpecificPartition(kit) {
    const queue = await kit.queue();
    const push = () => kit.queen.queue(queue).partition('p').push([{ transactionId: 'one', data: { x: 1 } }]);
    assert.deepEqual(statuses(await push()), ['queued']);
    assert.deepEqual(statuses(await push()), ['duplicate']);
  },

  async pushDuplicateMessageOnDifferentPartition(kit) {
    const queue = await kit.queue();
    for (const partition of ['p1', 'p2']) {
      assert.deepEqual(statuses(await kit.queen.queue(queue).partition(partition).push([{ transactionId: 'one', data: 1 }])), ['queued']);
    }
  },

  async pushMessageWithTransactionId(kit) {
    const queue = await kit.queue();
    const answer = await kit.queen.queue(queue).push([{ transactionId: 'my-own', data: 1 }]);
    assert.deepEqual([answer[0].status, answer[0].transaction_id], ['queued', 'my-own']);
    assert.equal((await kit.take(queue))[0].transactionId, 'my-own');
  },

  async pushBufferedMessage(kit) {
    const queue = await kit.queue();
    await kit.queen.queue(queue).buffer({ messageCount: 10, timeMillis: 1000 }).push([{ data: { x: 1 } }]);
    assert.deepEqual(await kit.now(queue), []);
    assert.deepEqual(datas(await kit.queen.queue(queue).timeoutMillis(4000).pop()), [{ x: 1 }]);
  },

  async pushDelayedMessage(kit) {
    const queue = await kit.queue({ delayedProcessing: 2 });
    await kit.push(queue, [1]);
    assert.deepEqual(await kit.now(queue), []);
    await sleep(2500);
    assert.deepEqual(datas(await kit.take(queue)), [1]);
  },

  async pushWindowBuffer(kit) {
    const queue = await kit.queue({ windowBuffer: 2 });
    for (const x of [1, 2, 3]) await kit.push(queue, [x]);
    assert.deepEqual(await kit.now(queue, 10), []);
    await sleep(2500);
    assert.deepEqual(datas(await kit.take(queue, 10)), [1, 2, 3]);
  },

  async pushLargePayload(kit) {
    const queue = await kit.queue();
    const data = { list: numbers(10000).map((i) => ({ id: i, name: `item ${i}`, text: 'x'.repeat(150) })) };
    assert.ok(JSON.stringify(data).length > 1900000);
    await kit.push(queue, [data]);
    assert.deepEqual((await kit.take(queue))[0].data, data);
  },

  async pushNullPayload(kit) {
    const queue = await kit.queue();
    await kit.push(queue, [null]);
    assert.equal((await kit.take(queue))[0].data, null);
  },

  async pushEmptyPayload(kit) {
    const queue = await kit.queue();
    await kit.push(queue, [{}]);
    assert.deepEqual((await kit.take(queue))[0].data, {});
  },

  async testSimplePushRoundTrip(kit) {
    const queue = await kit.queue();
    const data = { text: 'ünïcödé', nested: { list: [1, 2.5, null, true] } };
    await kit.push(queue, [data]);
    assert.deepEqual((await kit.take(queue))[0].data, data);
  },

  async testPushAutoCreatesQueueAndPartition(kit) {
    const queue = kit.name();
    assert.deepEqual(statuses(await kit.push(queue, [1], 'new-partition')), ['queued']);
    const [message] = await kit.take(queue, 1, (builder) => builder.partition('new-partition'));
    assert.deepEqual([message.partition, message.data], ['new-partition', 1]);
  },

  async testPushPreExistingDuplicate(kit) {
    const queue = await kit.queue();
    const push = () => kit.queen.queue(queue).push([{ transactionId: 'one', data: 1 }]);
    const [first] = await push();
    const [second] = await push();
    assert.deepEqual([second.status, second.message_id], ['duplicate', first.message_id]);
  },

  async testPushIntraBatchDuplicatesAllNew(kit) {
    const queue = await kit.queue();
    const answer = await kit.queen.queue(queue).push(numbers(3).map((data) => ({ transactionId: 'same', data })));
    assert.deepEqual(statuses(answer), ['queued', 'duplicate', 'duplicate']);
    assert.equal(new Set(answer.map(({ message_id: id }) => id)).size, 1);
  },

  async testPushIntraBatchDuplicatesMatchingPreExisting(kit) {
    const queue = await kit.queue();
    const [first] = await kit.queen.queue(queue).push([{ transactionId: 'same', data: 0 }]);
    const answer = await kit.queen.queue(queue).push(numbers(3).map((data) => ({ transactionId: 'same', data })));
    assert.deepEqual(statuses(answer), ['duplicate', 'duplicate', 'duplicate']);
    assert.ok(answer.every(({ message_id: id }) => id === first.message_id));
  },

  async testPushConcurrentBatchesToSameKey(kit) {
    const queue = await kit.queue();
    const answers = (await Promise.all(numbers(8).map((data) => kit.queen.queue(queue).push([{ transactionId: 'same', data }])))).flat();
    assert.deepEqual(statuses(answers).sort(), [...Array(7).fill('duplicate'), 'queued']);
    assert.equal(new Set(answers.map(({ message_id: id }) => id)).size, 1);
  },

  async testPushMissingTransactionId(kit) {
    const queue = await kit.queue();
    // Without the SDK, which would mint the ids.
    const response = await fetch(`${kit.broker.url}/api/v1/push`, { method: 'POST', body: JSON.stringify({ items: numbers(100).map((payload) => ({ queue, payload })) }) });
    const answer = await response.json();
    assert.ok(answer.every(({ status }) => status === 'queued'));
    assert.equal(new Set(answer.map(({ message_id: id }) => id)).size, 100);
  },

  async testPushEmptyArray(kit) {
    assert.deepEqual(await kit.queen.queue(await kit.queue()).push([]), []);
  },

  async testPushMalformedTraceId(kit) {
    const queue = await kit.queue();
    const response = await fetch(`${kit.broker.url}/api/v1/push`, { method: 'POST', body: JSON.stringify({ items: [{ queue, payload: 1, traceId: 'no-uuid' }, { queue, payload: 2 }] }) });
    assert.deepEqual(statuses(await response.json()), ['queued', 'queued']);
    assert.deepEqual((await kit.take(queue, 10)).map(({ data, traceId }) => [data, traceId]), [[1, null], [2, null]]);
  },

  async testPushProducerSubEmptyStringBecomesNull(kit) {
    const queue = await kit.queue();
    await fetch(`${kit.broker.url}/api/v1/push`, { method: 'POST', body: JSON.stringify({ items: [{ queue, payload: 1, producerSub: '' }] }) });
    assert.equal((await kit.take(queue))[0].producerSub, null);
  },

  async pushEncryptedPayload(kit) {
    const queue = await kit.queue({ encryptionEnabled: true });
    await kit.push(queue, [{ secret: 1 }]);
    assert.deepEqual((await kit.take(queue))[0].data, { secret: 1 });
  },
});
