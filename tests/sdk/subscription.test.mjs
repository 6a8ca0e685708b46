/* The original's subscription.js. */
import assert from 'node:assert/strict';
import { datas, numbers, sleep, suite } from './support/suite.mjs';

const as = (group, mode, from) => (builder) => {
  builder.group(group);
  if (mode) builder.subscriptionMode(mode);
  if (from) builder.subscriptionFrom(from);
  return builder;
};

/** What a group gets right now, acknowledged. */
async function read(kit, queue, build) {
  const messages = await kit.now(queue, 100, build);
  if (messages.length > 0) assert.equal((await kit.queen.ack(messages)).success, true);
  return datas(messages);
}

suite('subscription', {
  async subscriptionModeNew(kit) {
    const queue = await kit.queue();
    await kit.push(queue, numbers(5));
    assert.deepEqual(await read(kit, queue, as('all', 'all')), numbers(5));
    assert.deepEqual(await read(kit, queue, as('new', 'new')), []);
    await kit.push(queue, numbers(3, 5));
    assert.deepEqual(await read(kit, queue, as('all')), [5, 6, 7]);
    assert.deepEqual(await read(kit, queue, as('new')), [5, 6, 7]);
  },

  async subscriptionModeNewOnly(kit) {
    const queue = await kit.queue();
    await kit.push(queue, numbers(5));
    assert.deepEqual(await read(kit, queue, as('g', 'new')), []);
    await kit.push(queue, numbers(3, 5));
    assert.deepEqual(await read(kit, queue, as('g', 'new')), [5, 6, 7]);
  },

  async subscriptionFromNow(kit) {
    const queue = await kit.queue();
    await kit.push(queue, numbers(5));
    assert.deepEqual(await read(kit, queue, as('g', null, 'now')), []);
    await kit.push(queue, numbers(3, 5));
    assert.deepEqual(await read(kit, queue, as('g', null, 'now')), [5, 6, 7]);
  },

  async subscriptionFromTimestamp(kit) {
    const queue = await kit.queue();
    await kit.push(queue, numbers(3));
    await sleep(50);
    const between = new Date().toISOString();
    await sleep(50);
    await kit.push(queue, numbers(3, 3));
    assert.deepEqual(await read(kit, queue, as('g', null, between)), [3, 4, 5]);
  },

  async subscriptionModeAll(kit) {
    const queue = await kit.queue();
    await kit.push(queue, numbers(5));
    for (const group of ['g1', 'g2']) assert.deepEqual(await read(kit, queue, as(group, 'all')), numbers(5));
  },

  async subscriptionModeServerDefault(kit) {
    const queue = await kit.queue();
    await kit.push(queue, numbers(5));
    assert.deepEqual(await read(kit, queue, as('all', 'all')), numbers(5));
    // The default of a new group is 'new'.
    assert.deepEqual(await read(kit, queue, as('none')), []);
    await kit.push(queue, numbers(2, 5));
    assert.deepEqual(await read(kit, queue, as('all')), [5, 6]);
    assert.deepEqual(await read(kit, queue, as('none')), [5, 6]);
  },
});
