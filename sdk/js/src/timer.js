/* Timers: a message that is pushed later, under a key by which it can be moved or cancelled until then.
 *
 * The same builder serves queen.timer(queue), whose terminals are requests, and a transaction's timer(queue), whose
 * schedule and cancel add an operation and return the transaction. */
import { parseDuration } from './duration.js';
import { uuidv7 } from './ids.js';
import { codeFromText, resultsOf } from './wire.js';

const PATH = '/api/v1/timers';

/** What schedule and cancel have in common: the settings, and the operations made of them. */
class TimerSettings {
  #queue;
  #key = null;
  #partition = null;
  #delayMs = null;
  #payload = undefined;
  #txn = null;

  constructor(queue) {
    if (typeof queue !== 'string' || queue === '') throw new TypeError('Timer needs the name of a queue');
    this.#queue = queue;
  }

  /** The timer's name within its queue. */
  key(key) {
    this.#key = key;
    return this;
  }

  /** The partition the message goes to. */
  partition(name) {
    this.#partition = name;
    return this;
  }

  /** How long from now, as a duration string. */
  delay(duration) {
    this.#delayMs = parseDuration(duration);
    return this;
  }

  /** How long from now in milliseconds; a negative one is due at once. */
  delayMs(ms) {
    if (typeof ms !== 'number' || !Number.isFinite(ms)) throw new TypeError(`delayMs needs a finite number, got ${String(ms)}`);
    this.#delayMs = Math.round(ms);
    return this;
  }

  /** The message: anything that JSON can hold, or bytes that are JSON. */
  payload(value) {
    this.#payload = value;
    return this;
  }

  /** The transaction id the message will carry; a new one for each schedule when left out. */
  txn(id) {
    this.#txn = id;
    return this;
  }

  _queue() {
    return this.#queue;
  }

  _key() {
    if (typeof this.#key !== 'string' || this.#key === '') throw new Error('Timer needs key()');
    return this.#key;
  }

  _txn() {
    return this.#txn;
  }

  _scheduleOp() {
    const timerKey = this._key();
    if (this.#delayMs === null) throw new Error('Timer needs delay() or delayMs()');
    if (this.#payload === undefined) throw new Error('Timer needs payload()');
    const op = { op: 'schedule', queue: this.#queue, timerKey };
    if (this.#partition !== null) op.partition = this.#partition;
    return { ...op, delayMs: Math.round(this.#delayMs), txn: this.#txn ?? uuidv7(), payload: base64Of(this.#payload) };
  }

  _cancelOp() {
    const op = { op: 'cancel', queue: this.#queue, timerKey: this._key() };
    if (this.#txn !== null) op.txn = this.#txn;
    return op;
  }
}

function base64Of(payload) {
  if (payload instanceof Uint8Array) return Buffer.from(payload.buffer, payload.byteOffset, payload.byteLength).toString('base64');
  return Buffer.from(JSON.stringify(payload), 'utf8').toString('base64');
}

/** queen.timer(queue) */
export class TimerBuilder extends TimerSettings {
  #http;

  constructor(client, queue) {
    super(queue);
    this.#http = client.http;
  }

  /** Schedules, or moves the timer of this key: `{ok, status, timerKey, txn, messageId, deliverAt}`. */
  async schedule() {
    const op = this._scheduleOp();
    const body = await codeFromText(this.#http.post(PATH, { operations: [op] }));
    return resultsOf(body, 1, 'timer operation')[0];
  }

  /** Cancels: `{ok: true, status: 'cancelled'}` or `{ok: false, status: 'absent', txn}`. */
  async cancel() {
    const txn = this._txn();
    const query = txn === null ? '' : `?txn=${encodeURIComponent(txn)}`;
    return codeFromText(this.#http.delete(`${this.#path(this._key())}${query}`));
  }

  /** Looks: `{found: true, timerKey, txn, deliverAt, payload}` or `{found: false}`. */
  async peek() {
    return codeFromText(this.#http.get(this.#path(this._key())));
  }

  /** A page of the queue's timers in the order of their keys: `{rows, truncated, nextAfter}`. */
  async list({ after, limit } = {}) {
    const query = new URLSearchParams();
    if (after !== undefined && after !== null) query.set('after', after);
    if (limit !== undefined) query.set('limit', String(limit));
    const text = query.toString();
    return codeFromText(this.#http.get(`${PATH}/${encodeURIComponent(this._queue())}${text === '' ? '' : `?${text}`}`));
  }

  #path(key) {
    return `${PATH}/${encodeURIComponent(this._queue())}/${encodeURIComponent(key)}`;
  }
}

/** transaction().timer(queue) */
export class TransactionTimer extends TimerSettings {
  #transaction;
  #add;

  constructor(transaction, queue, add) {
    super(queue);
    this.#transaction = transaction;
    this.#add = add;
  }

  /** Adds the schedule; returns the transaction. */
  schedule() {
    this.#add(this._scheduleOp());
    return this.#transaction;
  }

  /** Adds the cancel; returns the transaction. */
  cancel() {
    this.#add(this._cancelOp());
    return this.#transaction;
  }

  peek() {
    throw new Error('peek is not possible inside a transaction; use queen.timer(queue).key(key).peek()');
  }

  list() {
    throw new Error('list is not possible inside a transaction; use queen.timer(queue).list()');
  }
}
