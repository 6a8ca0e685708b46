/* What the client does when the broker goes away, with real processes: restarts under consumers, producers and buffers, and
 * a second URL that nobody listens on. */
import assert from 'node:assert/strict';
import { after, before, describe, test } from 'node:test';
import { Queen } from '../../sdk/js/index.js';
import { Broker } from './support/broker.mjs';
import { datas, eventually, numbers, sleep } from './support/suite.mjs';

const quiet = { info() {}, warn() {}, error() {} };

describe('client', () => {
  let broker;
  let queen;

  before(async () => {
    broker = await Broker.start();
    queen = new Queen({ url: broker.url, handleSignals: false, retryAttempts: 8, retryDelayMillis: 100, logger: quiet });
  });
  after(async () => {
    await queen.close();
    await broker.stop();
  });

  test('a killed broker comes back: the consumer goes on, each message is handled, none is stored twice', { timeout: 60000 }, async () => {
    const count = 300;
    await queen.queue('restarts').config({ leaseTime: 2 }).create();
    const handled = [];
    const controller = new AbortController();
    const consumer = queen.queue('restarts').group('g').subscriptionMode('all').batch(5).each().concurrency(4).consume(async ({ data }) => {
      handled.push(data);
      await sleep(5);
    }, { signal: controller.signal });
    const producer = (async () => {
      for (const i of numbers(count)) {
        const [{ status }] = await queen.queue('restarts').partition(`p${i % 4}`).push([{ data: i }]);
        assert.ok(['queued', 'duplicate'].includes(status));
        await sleep(2);
      }
    })();
    const running = Promise.all([producer, consumer.then(() => {})]);
    await eventually(() => handled.length > 50, 'the first messages');
    await broker.kill();
    await sleep(300);
    await broker.start();
    await producer;
    await eventually(async () => new Set(handled).size === count && (await queen.admin.getQueueDepth('restarts', 'g')).pending === 0, 'all of them', 30000);
    controller.abort();
    await running;
    // A message whose ack was lost with the broker may be handled again, but it is stored once.
    const stored = [];
    for (;;) {
      const messages = await queen.queue('restarts').batch(1000).partitions(4).wait(false).pop();
      if (messages.length === 0) break;
      await queen.ack(messages);
      stored.push(...datas(messages));
    }
    assert.deepEqual(stored.sort((a, b) => a - b), numbers(count));
  });

  test('buffered pushes outlive a restart', { timeout: 60000 }, async () => {
    await queen.queue('buffered').create();
    await broker.kill();
    const buffered = queen.queue('buffered').buffer({ messageCount: 10, timeMillis: 20, maxSize: 100, retryDelayMillis: 50 });
    await buffered.push(numbers(50).map((data) => ({ data })));
    await sleep(200);
    await broker.start();
    await buffered.flushBuffer();
    const messages = await queen.queue('buffered').batch(100).wait(false).pop();
    assert.deepEqual(datas(messages), numbers(50));
  });

  test('a URL that nobody listens on costs nothing once it is known', { timeout: 60000 }, async () => {
    const both = new Queen({ urls: ['http://127.0.0.1:1', broker.url], loadBalancingStrategy: 'round-robin', handleSignals: false, logger: quiet });
    for (const data of numbers(10)) assert.equal((await both.queue('failover').push([{ data }]))[0].status, 'queued');
    assert.equal((await both.queue('failover').batch(10).pop()).length, 10);
    await both.close();
  });

  test('a poll that its signal closed takes no message with it', { timeout: 60000 }, async () => {
    await queen.queue('closed').config({ leaseTime: 300 }).create();
    for (const data of numbers(5)) {
      const controller = new AbortController();
      const consumer = queen.queue('closed').consume(() => assert.fail('a message for a closed poll'), { signal: controller.signal }).then(() => {});
      await sleep(20);
      controller.abort();
      await consumer;
      // The broker has to see the close before it has something to hand out.
      await sleep(250);
      await queen.queue('closed').push([{ data }]);
      const messages = await queen.queue('closed').batch(10).timeoutMillis(5000).pop();
      assert.deepEqual(datas(messages), [data]);
      assert.equal((await queen.ack(messages)).success, true);
    }
  });
});
