/* The client. One object a program; it sends nothing until it is asked to. */
import { ackMany, ackOne, renewLeases } from './ack.js';
import { Admin } from './admin.js';
import { systemClock } from './clock.js';
import { CLOSE_DEADLINE_MILLIS } from './defaults.js';
import { HttpClient } from './http/client.js';
import { Transport } from './http/transport.js';
import { uuidv7 } from './ids.js';
import { Kv } from './kv/kv.js';
import { unwatchSignals, watchSignals } from './lifecycle.js';
import { Lock } from './locks/lock.js';
import { Locks } from './locks/locks.js';
import { Logger } from './logger.js';
import { autopilotIsOff, clientOptions } from './options.js';
import { BufferManager } from './queue/buffer.js';
import { QueueBuilder } from './queue/builder.js';
import { Runs } from './runs.js';
import { TimerBuilder } from './timer.js';
import { TransactionBuilder } from './transaction.js';
import { Ephemeral, refuseWindows } from './unsupported.js';

export class Queen {
  #parts;
  #transport;
  #buffers;
  #kv = null;
  #locks = null;
  #admin = null;
  #ephemeral = null;
  #autopilotOff;

  /**
   * @param {string|string[]|object} config a URL, several, or an object of options with `url` or `urls`
   */
  constructor(config) {
    const options = clientOptions(config);
    const clock = options.clock ?? systemClock;
    const random = options.random ?? Math.random;
    const logger = new Logger(options.logger, {
      structuredLogs: options.structuredLogs === true,
      console: process.env.QUEEN_CLIENT_LOG === 'true',
    });
    this.#autopilotOff = autopilotIsOff(process.env);
    this.#transport = new Transport(clock);
    const http = new HttpClient(options, { transport: this.#transport, clock, random, logger, sessionKey: uuidv7() });
    this.#buffers = new BufferManager({ clock, logger, post: (items) => http.post('/api/v1/push', { items }) });
    const conflicts = new Set();
    // What the parts of the client share.
    this.#parts = {
      http,
      clock,
      random,
      logger,
      buffers: this.#buffers,
      runs: new Runs(),
      heldLocks: new Set(),
      timeoutMillis: options.timeoutMillis,
      autopilotOff: this.#autopilotOff,
      warnConflict({ queue, group }) {
        const key = `${queue}/${group}`;
        if (conflicts.has(key)) return;
        conflicts.add(key);
        logger.hidden('conflation', new Error(`group '${group}' of queue '${queue}' is stored without conflation`));
      },
    };
    const parts = this.#parts;
    Object.defineProperty(parts, 'locks', { get: () => this.locks });
    if (options.handleSignals) watchSignals(this);
  }

  /** Whether QUEEN_SDK_POP_AUTOPILOT switched the broker's choice of batches off. */
  get autopilotOff() {
    return this.#autopilotOff;
  }

  /** The builder for a queue: create, push, pop, consume, dlq. */
  queue(name = null) {
    return new QueueBuilder(this.#parts, name);
  }

  /** A transaction. */
  transaction() {
    return new TransactionBuilder(this.#parts);
  }

  /** A timer on a queue. */
  timer(queue) {
    return new TimerBuilder(this.#parts, queue);
  }

  /** Key-value storage. */
  get kv() {
    this.#kv ??= new Kv(this.#parts);
    return this.#kv;
  }

  /** Locks and semaphores, one operation at a time. */
  get locks() {
    this.#locks ??= new Locks(this.#parts);
    return this.#locks;
  }

  /** Calls for looking and operating. */
  get admin() {
    this.#admin ??= new Admin(this.#parts);
    return this.#admin;
  }

  /** Ephemeral queues: not served; every call rejects. */
  get ephemeral() {
    this.#ephemeral ??= new Ephemeral();
    return this.#ephemeral;
  }

  /** A lock as a handle; sends nothing yet. */
  lock(name, options = {}) {
    if (options.limit !== undefined && options.limit !== 1) throw new RangeError('A lock has limit 1; use semaphore(name, limit)');
    return new Lock(this.#parts, name, 1, options);
  }

  /** One permit of `limit` as a handle; sends nothing yet. */
  semaphore(name, limit, options = {}) {
    return new Lock(this.#parts, name, limit, options);
  }

  /**
   * Acknowledges one message or an array.
   *
   * @param {object|object[]} message
   * @param {boolean|string} [status] true or 'completed', false or 'failed', 'retry' (charges no attempt), 'dlq'
   * @param {{group?: string, consumerGroup?: string, error?: string}} [context]
   */
  async ack(message, status = true, context = {}) {
    const about = context ?? {};
    return Array.isArray(message) ? ackMany(this.#parts, message, status, about) : ackOne(this.#parts, message, status, about);
  }

  /** Extends leases: of a lease id, a message, or an array of either. */
  async renew(what) {
    return renewLeases(this.#parts, what);
  }

  /** Deletes a consumer group everywhere. */
  async deleteConsumerGroup(group, deleteMetadata = true) {
    return this.#parts.http.delete(`/api/v1/consumer-groups/${encodeURIComponent(group)}?deleteMetadata=${deleteMetadata}`);
  }

  /** Moves where a consumer group's subscription begins. */
  async updateConsumerGroupTimestamp(group, timestamp) {
    return this.#parts.http.post(`/api/v1/consumer-groups/${encodeURIComponent(group)}/subscription`, { subscriptionTimestamp: timestamp });
  }

  /** Sends all that waits in buffers. */
  async flushAllBuffers() {
    await this.#buffers.flushAll();
  }

  /** `{activeBuffers, totalBufferedMessages, oldestBufferAge, flushesPerformed}` */
  getBufferStats() {
    return this.#buffers.stats();
  }

  /** Window streams of the 0.x line: not served. */
  stream() {
    refuseWindows();
  }

  /** Window streams of the 0.x line: not served. */
  consumer() {
    refuseWindows();
  }

  /** SIGINT and SIGTERM shut this client down and end the process. */
  enableGracefulShutdown() {
    watchSignals(this);
  }

  /** Signals leave this client alone. */
  disableGracefulShutdown() {
    unwatchSignals(this);
  }

  /**
   * What a signal does, without ending the process: running consumers stop (a running handler is left to end, what was not
   * begun goes back without charging an attempt), then close().
   */
  async shutdown() {
    await this.#parts.runs.stop(this.#parts.clock, CLOSE_DEADLINE_MILLIS);
    await this.close();
  }

  /** Sends what is buffered (for up to 30 s), releases held locks, lets connections go. Consumers run on. */
  async close() {
    await this.#buffers.close(CLOSE_DEADLINE_MILLIS);
    await Promise.allSettled([...this.#parts.heldLocks].map((lock) => lock.release()));
    unwatchSignals(this);
    this.#transport.close();
  }
}
