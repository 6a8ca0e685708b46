/* A lock (or one permit of a semaphore) as a handle: acquired, renewed in the background, released, or lost.
 *
 *            acquire() true                release()
 *   free  ------------------->  held  -------------------> free
 *                                |
 *                                | renew refused / guard refused / lifetime over by the local clock
 *                                v
 *                              free, onLost told, signal aborted
 *
 * The local deadline counts from when the request was sent, so the client lets go before the broker does. When the broker
 * can not be asked, the renewal is tried again sooner until that deadline. One renewal at a time; a guard waits for it, so
 * that it never takes a token that is being replaced. The timers do not keep the process alive. */
import { randomBytes } from 'node:crypto';
import { hostname } from 'node:os';
import { abortedError, sleep } from '../clock.js';
import { parseDuration } from '../duration.js';
import { LOCK_NOT_HELD } from './locks.js';
import { acquireOp, checkedLimit, checkedName, checkedOwner, lifetimeSeconds, releaseOp, renewOp } from './ops.js';

const RETRY_GROWTH = 1.5;
const RETRY_SHORTER = 0.25;
const RENEW_AGAIN_PARTS = 4;
const RENEW_AGAIN_MIN_MS = 50;

export class Lock {
  #client;
  #name;
  #limit;
  #owner;
  #ttlSeconds;
  #autoRenew;
  #renewEveryMs;
  #retryMinMs;
  #retryMaxMs;
  #permit = null;
  #acquiring = null;
  #renewing = null;
  #renewTimer = null;
  #expiryTimer = null;
  #controller = new AbortController();
  #listeners = [];

  constructor(client, name, limit, options = {}) {
    this.#client = client;
    this.#name = checkedName(name);
    this.#limit = checkedLimit(limit);
    this.#ttlSeconds = lifetimeSeconds(options);
    this.#owner = options.owner === undefined ? `${hostname()}:${process.pid}:${randomBytes(6).toString('hex')}` : checkedOwner(options.owner);
    this.#autoRenew = options.autoRenew !== false;
    const lifetimeMs = this.#ttlSeconds * 1000;
    this.#renewEveryMs = options.renewEvery === undefined ? lifetimeMs / 3 : parseDuration(options.renewEvery);
    if (this.#renewEveryMs >= lifetimeMs) throw new RangeError('renewEvery must be shorter than the lifetime');
    this.#retryMinMs = options.retryMinMs ?? 100;
    this.#retryMaxMs = Math.max(this.#retryMinMs, options.retryMaxMs ?? 1000);
  }

  get name() {
    return this.#name;
  }

  get owner() {
    return this.#owner;
  }

  get limit() {
    return this.#limit;
  }

  get ttlSeconds() {
    return this.#ttlSeconds;
  }

  /** Whether it is held, as far as the local clock can tell. */
  get held() {
    return this.#permit !== null && this.#client.clock.now() < this.#permit.validUntil;
  }

  /** The fencing token, or null. */
  get token() {
    return this.#permit?.token ?? null;
  }

  /** Which permit of the semaphore, or null. */
  get slot() {
    return this.#permit?.slot ?? null;
  }

  /** When it runs out by the local clock (epoch milliseconds), or null. */
  get validUntil() {
    return this.#permit?.validUntil ?? null;
  }

  /** Aborted when the lock is lost (not when it is released). A new one for each acquisition. */
  get signal() {
    return this.#controller.signal;
  }

  /** Calls back when the lock is lost, with 'renew', 'guard' or 'expired'. */
  onLost(fn) {
    if (typeof fn !== 'function') throw new TypeError('onLost needs a function');
    this.#listeners.push(fn);
    return this;
  }

  /**
   * Takes the lock. Without `wait` one try, else tries until that duration is over.
   *
   * @param {{wait?: string, signal?: AbortSignal}} [options]
   * @returns {Promise<boolean>}
   */
  async acquire({ wait, signal } = {}) {
    if (this.held) return true;
    this.#acquiring ??= this.#acquire(wait === undefined ? 0 : parseDuration(wait), signal).finally(() => {
      this.#acquiring = null;
    });
    return this.#acquiring;
  }

  async #acquire(waitMs, signal) {
    const clock = this.#client.clock;
    const deadline = clock.now() + waitMs;
    for (let pause = this.#retryMinMs; ; pause = Math.min(pause * RETRY_GROWTH, this.#retryMaxMs)) {
      if (signal?.aborted) throw abortedError();
      if (await this.#tryOnce()) return true;
      const left = deadline - clock.now();
      if (left <= 0) return false;
      await sleep(clock, Math.min(left, pause * (1 - RETRY_SHORTER * this.#client.random())), signal);
    }
  }

  async #tryOnce() {
    const sentAt = this.#client.clock.now();
    const options = { ttlSeconds: this.#ttlSeconds, owner: this.#owner };
    if (this.#limit > 1) options.limit = this.#limit;
    const [result] = await this.#client.locks.batch([acquireOp(this.#name, options)]);
    if (!result.acquired) return false;
    this.#hold(result, sentAt);
    // A permit this owner had before runs on its old lifetime, of which nothing is known here.
    return result.already === true ? this.renew() : true;
  }

  #hold({ token, slot, guard }, sentAt) {
    if (!Number.isSafeInteger(token) || token <= 0) throw new Error(`the broker's token is not usable: ${String(token)}`);
    if (this.#permit === null && this.#controller.signal.aborted) this.#controller = new AbortController();
    this.#permit = { token, slot: slot ?? 0, guard, validUntil: sentAt + this.#ttlSeconds * 1000 };
    this.#client.heldLocks.add(this);
    this.#arm(this.#renewEveryMs);
  }

  #arm(renewInMs) {
    this.#disarm();
    const clock = this.#client.clock;
    const left = Math.max(0, this.#permit.validUntil - clock.now());
    this.#expiryTimer = clock.setTimeout(() => this._markLost('expired'), left);
    this.#expiryTimer?.unref?.();
    if (!this.#autoRenew) return;
    this.#renewTimer = clock.setTimeout(() => this.#renewInBackground(), Math.min(renewInMs, left));
    this.#renewTimer?.unref?.();
  }

  #disarm() {
    for (const timer of [this.#renewTimer, this.#expiryTimer]) {
      if (timer !== null) this.#client.clock.clearTimeout(timer);
    }
    this.#renewTimer = null;
    this.#expiryTimer = null;
  }

  async #renewInBackground() {
    try {
      await this.renew();
    } catch (error) {
      this.#client.logger.warn('lock.renew', { name: this.#name, error: error.message });
      if (this.held) this.#arm(Math.max(RENEW_AGAIN_MIN_MS, this.#renewEveryMs / RENEW_AGAIN_PARTS));
    }
  }

  /** Extends the lifetime and takes the new token. False when the lock is not held any more; rejects when nobody answers. */
  async renew() {
    if (!this.held) return false;
    this.#renewing ??= this.#renew().finally(() => {
      this.#renewing = null;
    });
    return this.#renewing;
  }

  async #renew() {
    const permit = this.#permit;
    const sentAt = this.#client.clock.now();
    const op = renewOp(this.#name, { token: permit.token, slot: permit.slot, ttlSeconds: this.#ttlSeconds, owner: this.#owner });
    const left = Math.max(1, permit.validUntil - sentAt);
    const [result] = await this.#client.locks.batch([op], { timeoutMillis: Math.min(left, this.#client.timeoutMillis), totalMillis: left });
    if (this.#permit !== permit) return false;
    if (!result.renewed) {
      this._markLost('renew');
      return false;
    }
    this.#hold({ slot: permit.slot, ...result }, sentAt);
    return true;
  }

  /** Gives the lock back. False, without a request, when nothing is held. */
  async release() {
    if (this.#permit === null) return false;
    this.#disarm();
    await this.#renewing?.catch(() => {});
    const permit = this.#permit;
    if (permit === null) return false;
    this.#letGo();
    const [result] = await this.#client.locks.batch([releaseOp(this.#name, { token: permit.token, slot: permit.slot })]);
    return result.released;
  }

  /**
   * Runs work under the lock, and releases it whatever happens.
   *
   * @returns {Promise<{acquired: false}|{acquired: true, value: *}>}
   */
  async run(fn, options = {}) {
    if (!(await this.acquire(options))) return { acquired: false };
    try {
      return { acquired: true, value: await fn(this) };
    } finally {
      await this.release().catch((error) => this.#client.logger.warn('lock.release', { name: this.#name, error: error.message }));
    }
  }

  /** The KV check that makes a transaction depend on this lock. Throws, with code LOCK_NOT_HELD, when it is not held. */
  guard() {
    if (!this.held) {
      const error = new Error(`The lock '${this.#name}' is not held`);
      error.code = LOCK_NOT_HELD;
      throw error;
    }
    const { token, slot, guard } = this.#permit;
    return guard ?? { op: 'check', ns: 'queen-locks', key: `${this.#name}#${slot}`, expect: token, required: true };
  }

  /** The guard once no renewal is on its way. */
  async _guardNow() {
    await this.#renewing?.catch(() => {});
    return this.guard();
  }

  _markLost(reason) {
    if (this.#permit === null) return;
    this.#letGo();
    this.#client.logger.warn('lock.lost', { name: this.#name, reason });
    this.#controller.abort(new Error(`The lock '${this.#name}' was lost (${reason})`));
    for (const listener of this.#listeners) {
      try {
        listener(reason);
      } catch (error) {
        this.#client.logger.error('lock.onLost', { error: error.message });
      }
    }
  }

  #letGo() {
    this.#disarm();
    this.#permit = null;
    this.#client.heldLocks.delete(this);
  }
}
