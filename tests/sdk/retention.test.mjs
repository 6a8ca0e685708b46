/* The original's retention.js with shorter times, and what of auth.js needs no tokens. */
import assert from 'node:assert/strict';
import { datas, eventually, numbers, suite } from './support/suite.mjs';

suite('retention', {
  async retentionTest(kit) {
    const queue = await kit.queue({ retentionEnabled: true, retentionSeconds: 2, completedRetentionSeconds: 1 });
    await kit.push(queue, numbers(100));
    const size = async () => (await kit.queen.admin.listMessages({ queue, limit: 1000 })).messages.length;
    assert.equal(await size(), 100);
    await eventually(async () => (await size()) === 0, 'unread messages to be removed', 20000);
    assert.deepEqual(await kit.now(queue, 100), []);
  },

  async retentionTestMaxTime(kit) {
    const queue = await kit.queue({ retentionEnabled: true, maxWaitTimeSeconds: 2 });
    await kit.push(queue, numbers(10));
    await eventually(async () => {
      const messages = await kit.now(queue, 1);
      if (messages.length > 0) await kit.queen.ack(messages[0], 'retry');
      return messages.length === 0;
    }, 'what waited too long to be left out', 20000);
  },

  async producerSubIgnoredFromBodyWithoutAuth(kit) {
    const queue = await kit.queue();
    await fetch(`${kit.broker.url}/api/v1/push`, { method: 'POST', body: JSON.stringify({ items: [{ queue, payload: 1, producerSub: 'forged' }] }) });
    const messages = await kit.take(queue);
    assert.deepEqual(datas(messages), [1]);
    assert.equal(messages[0].producerSub, null);
  },
}, { env: { RETENTION_INTERVAL: '200' } });
