/* Pushes that wait a little on the client's side, so that many small ones travel together.
 *
 * One buffer per queue and partition. A flush begins when `messageCount` items wait, or `timeMillis` after the first; it
 * sends batches of `messageCount`, one at a time, until nothing is left that is due. When `maxSize` items wait, add() waits
 * until a batch was sent.
 *
 * Failures: a batch that could not be sent goes back to the front and is sent again after `retryDelayMillis`, for as long
 * as it takes; its ids were set when it was pushed, so no item is stored twice. A batch the broker will never take (400,
 * 413) is dropped, and an item it refused is not sent again: both are reported to the buffer's `onError` and the log. */
import { isAccepted, refusalText } from './push.js';
import { sleep } from '../clock.js';

const NEVER_TAKEN = new Set([400, 413]);

class Buffer {
  #manager;
  #options;
  #items = [];
  #firstAt = null;
  #timer = null;
  #sending = null;
  #waiters = [];
  #draining = 0;
  // The batch on its way, or waiting to be sent again.
  #inHand = 0;

  constructor(manager, options) {
    this.#manager = manager;
    this.#options = options;
  }

  get size() {
    return this.#items.length;
  }

  get firstAt() {
    return this.#firstAt;
  }

  get idle() {
    return this.#items.length === 0 && this.#sending === null;
  }

  async add(items) {
    for (const item of items) {
      while (this.#items.length >= this.#options.maxSize) {
        await new Promise((resolve) => this.#waiters.push(resolve));
        this.#manager.mustBeOpen();
      }
      this.#items.push(item);
      this.#firstAt ??= this.#manager.clock.now();
      if (this.#items.length >= this.#options.messageCount) this.#send();
      else this.#arm();
    }
  }

  /** Sends all that waits now, and resolves when it is sent. */
  async drain() {
    this.#draining += 1;
    try {
      while (!this.idle && !this.#manager.abandoned) await this.#send();
    } finally {
      this.#draining -= 1;
    }
  }

  /** Gives up: forgets what waits, and says how many that were (a batch on its way may still arrive). */
  abandon() {
    this.#disarm();
    const dropped = this.#items.length + this.#inHand;
    this.#items = [];
    this.#wake();
    return dropped;
  }

  #arm() {
    if (this.#timer !== null || this.#sending !== null) return;
    this.#timer = this.#manager.clock.setTimeout(() => {
      this.#timer = null;
      this.#send(true);
    }, this.#options.timeMillis);
  }

  #disarm() {
    if (this.#timer !== null) this.#manager.clock.clearTimeout(this.#timer);
    this.#timer = null;
  }

  #send(due = false) {
    this.#disarm();
    this.#sending ??= this.#sendAll(due).finally(() => {
      this.#sending = null;
      if (this.#items.length > 0 && !this.#manager.abandoned) {
        this.#firstAt = this.#manager.clock.now();
        this.#arm();
      }
    });
    return this.#sending;
  }

  async #sendAll(due) {
    let rest = due;
    while (this.#items.length > 0 && !this.#manager.abandoned) {
      if (!rest && this.#draining === 0 && this.#items.length < this.#options.messageCount) return;
      rest = false;
      const batch = this.#items.splice(0, this.#options.messageCount);
      this.#firstAt = this.#items.length > 0 ? this.#manager.clock.now() : null;
      this.#inHand = batch.length;
      const error = await this.#sendBatch(batch);
      this.#inHand = 0;
      if (error !== null && this.#manager.abandoned) return;
      if (error !== null) {
        this.#items = batch.concat(this.#items);
        this.#firstAt ??= this.#manager.clock.now();
        rest = true;
        await sleep(this.#manager.clock, this.#options.retryDelayMillis);
      } else {
        this.#wake();
      }
    }
  }

  /** Null when the batch is done with, else the error that says it has to be sent again. */
  async #sendBatch(batch) {
    try {
      const answer = await this.#manager.post(batch);
      const refused = Array.isArray(answer) ? batch.map((item, i) => ({ ...item, result: answer[i] ?? {} })).filter((item) => !isAccepted(item.result)) : [];
      if (refused.length > 0) this.#report(refused, new Error(refusalText(refused[0].result)));
      return null;
    } catch (error) {
      if (!NEVER_TAKEN.has(error.status)) return error;
      this.#report(batch, error);
      return null;
    }
  }

  #report(items, error) {
    this.#manager.logger.error('buffer.refused', { count: items.length, error: error.message });
    try {
      this.#options.onError?.(items, error);
    } catch (thrown) {
      this.#manager.logger.error('buffer.onError', { error: thrown.message });
    }
  }

  #wake() {
    for (const resolve of this.#waiters.splice(0)) resolve();
  }
}

export class BufferManager {
  #buffers = new Map();
  #post;
  #flushes = 0;
  #closed = false;
  #abandoned = false;

  /** @param {{clock: object, logger: object, post: (items: object[]) => Promise<*>}} parts */
  constructor({ clock, logger, post }) {
    this.clock = clock;
    this.logger = logger;
    this.#post = post;
  }

  get abandoned() {
    return this.#abandoned;
  }

  mustBeOpen() {
    if (this.#closed) throw new Error('The client is closed: a buffered push is not accepted any more');
  }

  async post(items) {
    this.#flushes += 1;
    return this.#post(items);
  }

  /** Resolves once every item is in the buffer. The options of the call that makes a buffer count. */
  async add(address, items, options) {
    this.mustBeOpen();
    let buffer = this.#buffers.get(address);
    if (buffer === undefined) {
      buffer = new Buffer(this, options);
      this.#buffers.set(address, buffer);
    }
    await buffer.add(items);
    return { buffered: true, count: items.length };
  }

  async flush(address) {
    await this.#buffers.get(address)?.drain();
  }

  async flushAll() {
    await Promise.all([...this.#buffers.values()].map((buffer) => buffer.drain()));
  }

  stats() {
    const buffers = [...this.#buffers.values()];
    const waiting = buffers.filter((buffer) => !buffer.idle);
    const oldest = waiting.map((buffer) => buffer.firstAt).filter((at) => at !== null);
    return {
      activeBuffers: waiting.length,
      totalBufferedMessages: buffers.reduce((sum, buffer) => sum + buffer.size, 0),
      oldestBufferAge: oldest.length > 0 ? this.clock.now() - Math.min(...oldest) : 0,
      flushesPerformed: this.#flushes,
    };
  }

  /** Sends what waits, for at most `deadlineMs`; what is left then is dropped, with a log line. Takes nothing more. */
  async close(deadlineMs) {
    this.#closed = true;
    let timer;
    const deadline = new Promise((resolve) => {
      timer = this.clock.setTimeout(resolve, deadlineMs);
    });
    await Promise.race([this.flushAll(), deadline]);
    this.clock.clearTimeout(timer);
    this.#abandoned = true;
    const dropped = [...this.#buffers.values()].reduce((sum, buffer) => sum + buffer.abandon(), 0);
    if (dropped > 0) this.logger.error('buffer.dropped', { count: dropped });
  }
}
