/* The original's ackwindow.js. */
import assert from 'node:assert/strict';
import { datas, eventually, numbers, suite } from './support/suite.mjs';

suite('ackwindow', {
  async ackUnknownTxnMustFail(kit) {
    const queue = await kit.queue();
    await kit.push(queue, numbers(3));
    const messages = await kit.take(queue, 3);
    for (const status of [true, false]) {
      const refused = await kit.queen.ack({ ...messages[0], transactionId: 'never-pushed' }, status);
      assert.equal(refused.success, false);
      assert.match(refused.error, /unresolv/i);
    }
    const result = await kit.queen.ack(messages);
    assert.deepEqual([result.success, result.processed], [true, 3]);
    assert.deepEqual(await kit.now(queue, 10), []);
  },

  async ackAfterHashPurgeMustFailExplicitly(kit) {
    // The part that can be seen from outside: an ack does not depend on the dedup window.
    const queue = await kit.queue({ dedupWindowSeconds: 1 });
    await kit.push(queue, numbers(3));
    const messages = await kit.take(queue, 3);
    const push = () => kit.queen.queue(queue).push([{ transactionId: messages[0].transactionId, data: 'again' }]);
    await eventually(async () => (await push())[0].status === 'queued', 'the dedup window to pass');
    assert.equal((await kit.queen.ack(messages)).success, true);
    assert.ok(datas(await kit.now(queue, 10)).every((data) => data === 'again'));
  },

  async emptyPartitionCursorSealsAfterRetention(kit) {
    const queue = await kit.queue({ retentionEnabled: true, retentionSeconds: 2 });
    const group = (builder) => builder.group('g').subscriptionMode('all');
    await kit.push(queue, numbers(3));
    const gone = async () => (await kit.queen.admin.listMessages({ queue })).messages.length === 0;
    await eventually(gone, 'retention to remove what was not read', 20000);
    assert.deepEqual(await kit.now(queue, 10, group), []);
    assert.equal((await kit.queen.admin.getQueueDepth(queue, 'g')).pending, 0);
    await kit.push(queue, ['later']);
    assert.deepEqual(datas(await kit.take(queue, 10, group)), ['later']);
  },
}, { env: { RETENTION_INTERVAL: '200' } });
