/* queen.kv: one operation a request, POST /api/v1/kv. Lost conditions are answers, not errors; errors reject. */
import { codeFromText } from '../wire.js';
import { kvOps } from './ops.js';

const PATH = '/api/v1/kv';

export class Kv {
  #http;
  #ops;

  constructor(client) {
    this.#http = client.http;
    this.#ops = kvOps(() => client.clock.now());
  }

  async #one(build) {
    const body = await codeFromText(this.#http.post(PATH, { operations: [build()] }));
    if (body?.ok === false) return preconditionResult(build(), body);
    if (!Array.isArray(body?.results) || body.results.length !== 1) {
      throw new Error(`1 KV operation sent, ${body?.results?.length ?? 'none'} answered`);
    }
    return body.results[0];
  }

  async #write(build) {
    const result = await this.#one(build);
    if (typeof result.applied !== 'boolean') throw new Error('the answer to a KV write does not say whether it was applied');
    return result;
  }

  /** The row `{found, key, value, version, expiresAt, updatedAt}`; a found null is a value. */
  async get(ns, key) {
    return this.#one(this.#ops.get(ns, key));
  }

  /** `{rows, missing, truncated}` of several keys. */
  async getMany(ns, keys) {
    return this.#one(this.#ops.getMany(ns, keys));
  }

  /** A page of rows whose keys begin so: `{rows, truncated, nextAfter}`. */
  async getPrefix(ns, prefix, options = {}) {
    return this.#one(this.#ops.getPrefix(ns, prefix, options));
  }

  /** Every row whose key begins so, page by page. */
  async *listAll(ns, prefix, options = {}) {
    let after = options.after;
    for (;;) {
      const page = await this.getPrefix(ns, prefix, { ...options, after });
      yield* page.rows ?? [];
      if (!page.truncated || !page.nextAfter) return;
      after = page.nextAfter;
    }
  }

  /** Writes a row. */
  async put(ns, key, value, options = {}) {
    return this.#write(this.#ops.put(ns, key, value, options));
  }

  /** Writes a row unless the key has one. */
  async putIfAbsent(ns, key, value, options = {}) {
    return this.#write(this.#ops.putIfAbsent(ns, key, value, options));
  }

  /** Removes a row. */
  async delete(ns, key, options = {}) {
    return this.#write(this.#ops.delete(ns, key, options));
  }

  /** Adds to a number, within `min` and `max`. */
  async incr(ns, key, delta = 1, options = {}) {
    const result = await this.#write(this.#ops.incr(ns, key, delta, options));
    if (typeof result.value === 'number' && Math.abs(result.value) > Number.MAX_SAFE_INTEGER) {
      throw new RangeError(`the counter ${ns}/${key} is beyond 2^53`);
    }
    return result;
  }

  /** Whether a row is at a version (0: absent); writes nothing. */
  async check(ns, key, options = {}) {
    return this.#write(this.#ops.check(ns, key, options));
  }

  /** Claims a key: `{won, value, version, result}`. The value is the winner's, whoever won. */
  async once(ns, key, options = {}) {
    const { value = true, ...rest } = options;
    const result = await this.putIfAbsent(ns, key, value, rest);
    return { won: result.applied, value: result.value, version: result.version, result };
  }
}

/** The verdict on a lost `required` operation, in the shape of a write result. */
function preconditionResult(op, body) {
  return {
    op: op.op,
    key: op.key,
    applied: false,
    precondition: true,
    reason: body.kvReason,
    value: body.value,
    version: body.version,
    failedIndex: body.failedIndex,
  };
}
