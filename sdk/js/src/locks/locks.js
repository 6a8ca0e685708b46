/* queen.locks: the lock operations one by one, POST /api/v1/locks. queen.lock() gives a handle that keeps a lock (lock.js). */
import { codeFromText, resultsOf } from '../wire.js';
import { acquireOp, getOp, releaseOp, renewOp } from './ops.js';

/** `code` of the error when something needs a lock that is not held. */
export const LOCK_NOT_HELD = 'LOCK_NOT_HELD';

const FLAGS = { acquire: 'acquired', renew: 'renewed', release: 'released', get: 'held' };

export class Locks {
  #http;

  constructor(client) {
    this.#http = client.http;
  }

  /** `{acquired: true, slot, token, owner, guard, already?}` or `{acquired: false, reason, holders}`. */
  async acquire(name, options) {
    return this.#one(acquireOp(name, options));
  }

  /** `{renewed: true, slot, token, guard}` or `{renewed: false, reason: 'lost', holders}`. */
  async renew(name, options) {
    return this.#one(renewOp(name, options));
  }

  /** `{released: true, slot}` or `{released: false, reason: 'lost'}`. */
  async release(name, options) {
    return this.#one(releaseOp(name, options));
  }

  /** `{held, holders}`. */
  async get(name) {
    return this.#one(getOp(name));
  }

  /** Several operations as they travel, each on a different lock; they do not depend on each other. */
  async batch(operations, request = {}) {
    if (!Array.isArray(operations)) throw new TypeError('batch needs an array of operations');
    const body = await codeFromText(this.#http.post('/api/v1/locks', { operations }, request));
    const results = resultsOf(body, operations.length, 'lock operations');
    results.forEach((result, i) => {
      const flag = FLAGS[operations[i].op];
      if (flag !== undefined && typeof result[flag] !== 'boolean') throw new Error(`the answer to ${operations[i].op} does not say '${flag}'`);
    });
    return results;
  }

  async #one(operation) {
    return (await this.batch([operation]))[0];
  }
}
