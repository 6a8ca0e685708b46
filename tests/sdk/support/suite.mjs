/* A suite: one broker and one client for the tests of a file, which run side by side, each on queues of its own.
 *
 * A test's body gets a `kit`: the client, a unique queue name, and the few things most tests do. */
import { after, before, describe, test } from 'node:test';
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { Queen } from '../../../sdk/js/index.js';
import { Broker } from './broker.mjs';

const SIDE_BY_SIDE = 24;
const TEST_DEADLINE_MS = process.env.QUEEN_TEST_ALL === '1' ? 300000 : 60000;

/**
 * @param {string} name
 * @param {Object<string, (kit: Kit) => Promise<void>>} tests by name
 * @param {{env?: object}} [options]
 */
export function suite(name, tests, { env } = {}) {
  describe(name, { concurrency: SIDE_BY_SIDE }, () => {
    const shared = {};
    before(async () => {
      shared.broker = await Broker.start(env);
      shared.queen = new Queen({ url: shared.broker.url, handleSignals: false });
    });
    after(async () => {
      await shared.queen?.close();
      await shared.broker?.stop();
    });
    for (const [title, body] of Object.entries(tests)) {
      test(title, { timeout: TEST_DEADLINE_MS }, (t) => body(new Kit(shared, title, t)));
    }
  });
}

export const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

/** Waits until fn() answers something true, and gives that. */
export async function eventually(fn, what = 'the condition', ms = 15000) {
  const end = performance.now() + ms;
  for (;;) {
    const value = await fn();
    if (value) return value;
    assert.ok(performance.now() < end, `not within ${ms} ms: ${what}`);
    await sleep(20);
  }
}

export class Kit {
  #shared;
  #title;
  #names = 0;

  constructor(shared, title, t) {
    this.#shared = shared;
    this.#title = title;
    this.t = t;
  }

  get queen() {
    return this.#shared.queen;
  }

  get broker() {
    return this.#shared.broker;
  }

  /** A name nothing else uses. It has no dot, so the namespace is the name. */
  name(prefix = this.#title) {
    return `${prefix}-${randomBytes(4).toString('hex')}-${++this.#names}`;
  }

  /** A KV namespace nothing else uses. */
  get ns() {
    return this.name().toLowerCase();
  }

  /** A queue, created with these options. */
  async queue(options = {}) {
    const name = this.name();
    const created = await this.queen.queue(name).config(options).create();
    assert.equal(created.configured, true);
    return name;
  }

  /** Pushes each of these as data; gives the answers. */
  push(queue, datas, partition = 'Default') {
    return this.queen.queue(queue).partition(partition).push(datas.map((data) => ({ data })));
  }

  /** Waits for messages: at least one, at most `batch`. */
  take(queue, batch = 1, build = (builder) => builder) {
    return build(this.queen.queue(queue).batch(batch).timeoutMillis(10000)).pop();
  }

  /** What is there right now. */
  now(queue, batch = 1, build = (builder) => builder) {
    return build(this.queen.queue(queue).batch(batch).wait(false)).pop();
  }

  /** Takes exactly this many, in as many pops as that needs, and acknowledges them. */
  async drain(queue, count, build = (builder) => builder) {
    const all = [];
    while (all.length < count) {
      const messages = await this.take(queue, count - all.length, build);
      assert.ok(messages.length > 0, `${all.length} of ${count} messages came`);
      all.push(...messages);
      assert.equal((await this.queen.ack(messages)).success, true);
    }
    return all;
  }
}

/** The data of messages. */
export const datas = (messages) => messages.map(({ data }) => data);

/** 0, 1, 2, ... */
export const numbers = (count, from = 0) => Array.from({ length: count }, (_, i) => from + i);
