/* The original's dlq.js. */
import assert from 'node:assert/strict';
import { suite } from './support/suite.mjs';

suite('dlq', {
  async testDLQ(kit) {
    const queue = await kit.queue({ retryLimit: 1 });
    await kit.push(queue, [{ poison: true }]);
    for (const attempt of [1, 2]) {
      const [message] = await kit.take(queue);
      assert.equal((await kit.queen.ack(message, false, { error: `failure number ${attempt}` })).success, true);
    }
    assert.deepEqual(await kit.now(queue), []);
    const { messages, total } = await kit.queen.queue(queue).dlq().limit(10).get();
    assert.equal(total, 1);
    assert.deepEqual(messages[0].data, { poison: true });
    assert.match(messages[0].errorMessage, /failure number 2/);
  },

  async aThrowingHandlerFillsTheDlqWithItsText(kit) {
    const queue = await kit.queue({ retryLimit: 1 });
    await kit.push(queue, ['poison']);
    let calls = 0;
    const controller = new AbortController();
    await kit.queen.queue(queue).group('g').subscriptionMode('all').each().consume(() => {
      if (++calls === 2) setTimeout(() => controller.abort(), 100);
      throw new Error('can not be handled');
    }, { signal: controller.signal });
    assert.equal(calls, 2);
    const { messages } = await kit.queen.queue(queue).dlq('g').get();
    assert.equal(messages[0].errorMessage, 'can not be handled');
    assert.deepEqual((await kit.queen.queue(queue).dlq('other').get()).messages, []);
  },
});
