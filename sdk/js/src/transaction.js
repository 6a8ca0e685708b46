/* One transaction: acknowledgments, pushes, KV operations and timers that happen together or not at all, in one request.
 *
 *   queen.transaction().ack(message).queue('receipts').push({data}).once('payments', id, {ttl: '30d'}).commit()
 *
 * Every id in it is minted when its method is called, so a commit that is sent again can not happen twice.
 *
 * commit() resolves with the broker's body when it committed, and also when a `required` KV operation (or once) lost:
 * then `success` is false and `reason` is 'kv_precondition'. Any other refusal rejects with `reason` and `result`. When an
 * earlier try may have been carried out, the error says `maybeCommitted`. */
import { contextGroup, groupOf, statusText } from './ack.js';
import { POLL_SLACK_MILLIS } from './defaults.js';
import { kvOps } from './kv/ops.js';
import { formatItems } from './queue/push.js';
import { TransactionTimer } from './timer.js';

const PATH = '/api/v1/transaction';
const GUARD_TRIES_MAX = 4;
const NEXT_MEMBERS = ['queue', 'partition', 'consumerGroup', 'batch', 'partitions', 'wait', 'timeout', 'leaseSeconds', 'subscriptionMode', 'subscriptionFrom', 'conflation'];

export class TransactionBuilder {
  #client;
  #operations = [];
  #leases = new Set();
  #kv = [];
  #timers = [];
  #guards = [];
  #next = null;
  #kvApi = null;
  #ops;

  constructor(client) {
    this.#client = client;
    this.#ops = kvOps(() => client.clock.now());
  }

  /** Acknowledges one message or several. */
  ack(messages, status = 'completed', context = {}) {
    for (const message of Array.isArray(messages) ? messages : [messages]) {
      const transactionId = message?.transactionId || message?.id;
      if (!transactionId) throw new Error('Message must have transactionId or id property');
      if (!message.partitionId) throw new Error('Message must have partitionId property to ensure message uniqueness');
      const op = { type: 'ack', transactionId, partitionId: message.partitionId, status: statusText(status) };
      const group = contextGroup(context) ?? groupOf(message);
      if (group !== null) op.consumerGroup = group;
      if (context?.error !== undefined && context.error !== null) op.error = String(context.error);
      if (message.leaseId) {
        op.leaseId = message.leaseId;
        this.#leases.add(message.leaseId);
      }
      this.#operations.push(op);
    }
    return this;
  }

  /** Where the next push goes: `.queue(name).partition(p).push(items)`. */
  queue(name) {
    if (typeof name !== 'string' || name === '') throw new TypeError('A transaction push needs the name of a queue');
    const transaction = this;
    let partition = null;
    return {
      partition(value) {
        partition = value;
        return this;
      },
      push(items) {
        transaction.#operations.push({ type: 'push', items: formatItems(name, partition, items) });
        return transaction;
      },
    };
  }

  /** The KV operations; each returns the transaction. */
  get kv() {
    if (this.#kvApi === null) {
      const add = (name) => (...args) => {
        this.#kv.push(this.#ops[name](...args));
        return this;
      };
      this.#kvApi = Object.fromEntries(['get', 'getMany', 'put', 'putIfAbsent', 'delete', 'incr', 'check'].map((name) => [name, add(name)]));
      this.#kvApi.getPrefix = () => {
        throw new Error('getPrefix is not possible inside a transaction; use queen.kv.getPrefix');
      };
    }
    return this.#kvApi;
  }

  /** The whole transaction happens once: it is refused (kv_precondition) when the key is already claimed. */
  once(ns, key, options = {}) {
    const { value = true, required = true, ...rest } = options;
    return this.kv.putIfAbsent(ns, key, value, { ...rest, required: required !== false });
  }

  /** Commits only while the lock is held. */
  guard(lock) {
    if (typeof lock?._guardNow !== 'function') throw new TypeError('guard needs a lock of queen.lock() or queen.semaphore()');
    this.#guards.push(lock);
    return this;
  }

  /** A timer: `.timer(queue).key(k).delay('1d').payload(x).schedule()`. */
  timer(queue) {
    return new TransactionTimer(this, queue, (op) => this.#timers.push(op));
  }

  /**
   * Also takes the next messages, as a pop would, in the same round trip: they are in the answer's `next.messages`, with a
   * lease of their own. Only this broker serves it.
   */
  next(options) {
    if (options === null || typeof options !== 'object' || !options.queue) throw new TypeError('next needs {queue, ...}');
    const next = { ...options, consumerGroup: contextGroup(options) ?? undefined };
    delete next.group;
    const unknown = Object.keys(next).find((name) => !NEXT_MEMBERS.includes(name));
    if (unknown !== undefined) throw new TypeError(`next does not take ${unknown}`);
    this.#next = next;
    return this;
  }

  /** Sends it. */
  async commit() {
    const nothing = this.#operations.length + this.#kv.length + this.#timers.length === 0;
    if (nothing && this.#guards.length === 0) throw new Error('Transaction has no operations to commit');
    for (let attempt = 1; ; attempt++) {
      const meta = {};
      const body = await this.#client.http.post(PATH, await this.#body(), { meta, ...this.#timeout() });
      if (body?.success === true) return body;
      if (body?.reason === 'kv_precondition') {
        if (attempt < GUARD_TRIES_MAX && this.#movedByItself(body)) continue;
        return body;
      }
      const error = new Error(body?.error ? String(body.error) : 'Transaction failed');
      error.reason = body?.reason;
      error.result = body;
      if (meta.resent === true) error.maybeCommitted = true;
      throw error;
    }
  }

  async #body() {
    const guards = [];
    for (const lock of this.#guards) guards.push(await lock._guardNow());
    const kv = [...guards, ...this.#kv.map((build) => build())];
    const body = { operations: this.#operations, requiredLeases: [...this.#leases] };
    if (kv.length > 0) body.kv = kv;
    if (this.#timers.length > 0) body.timers = this.#timers;
    if (this.#next !== null) body.next = this.#next;
    return body;
  }

  #timeout() {
    return this.#next?.wait ? { timeoutMillis: (this.#next.timeout ?? 30000) + POLL_SLACK_MILLIS } : {};
  }

  /**
   * Whether the refusal is of a guard whose lock this very client has renewed meanwhile: then the same step is sent again
   * with the new token. A guard that lost for good marks its lock as lost.
   */
  #movedByItself(verdict) {
    const before = this.#operations.reduce((sum, op) => sum + (op.type === 'push' ? op.items.length : 1), 0);
    const lock = this.#guards[verdict.failedIndex - before];
    if (lock === undefined) return false;
    if (verdict.kvReason === 'version' && verdict.value?.owner === lock.owner) return true;
    lock._markLost('guard');
    return false;
  }
}
