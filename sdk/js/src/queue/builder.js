/* The builder behind queen.queue(): one object that gathers settings and serves create, delete, push, pop, consume, dlq. */
import { BUFFER_DEFAULTS, CONSUME_DEFAULTS, DEFAULT_PARTITION, QUEUE_DEFAULTS } from '../defaults.js';
import { LazyOperation, PushOperation } from '../lazy.js';
import { isConflationFault } from './conflation.js';
import { startConsume } from './consume.js';
import { DlqBuilder } from './dlq.js';
import { poll } from './poll.js';
import { formatItems, pushItems } from './push.js';

export class QueueBuilder {
  #client;
  #settings;
  #config = null;
  #bufferOptions = null;

  constructor(client, name) {
    this.#client = client;
    this.#settings = {
      queue: name ?? null,
      partition: DEFAULT_PARTITION,
      namespace: null,
      task: null,
      group: null,
      batch: null,
      partitions: null,
      autopilot: true,
      supervision: null,
      ...CONSUME_DEFAULTS,
    };
    this.#settings.batch = null;
  }

  /** The name of the queue, or null. */
  get name() {
    return this.#settings.queue;
  }

  #set(name, value) {
    this.#settings[name] = value;
    return this;
  }

  /** Of a new queue, and of pops that name no queue. */
  namespace(name) {
    return this.#set('namespace', name);
  }

  /** Of a new queue, and of pops that name no queue. */
  task(name) {
    return this.#set('task', name);
  }

  /** Options of `create()`. What is not named gets its default, also when the queue exists. */
  config(options) {
    this.#config = { ...QUEUE_DEFAULTS, ...options };
    return this;
  }

  /** The partition to push to or pop from. A pop of 'Default' takes any partition. */
  partition(name) {
    return this.#set('partition', name);
  }

  /** The consumer group; none is queue mode. */
  group(name) {
    return this.#set('group', name);
  }

  /** Pins how many messages a pop takes; 0 or less leaves it to the broker. */
  batch(count) {
    return this.#set('batch', count > 0 ? count : null);
  }

  /** Pins how many partitions a pop takes from; 0 or less leaves it to the broker. */
  partitions(count) {
    return this.#set('partitions', count > 0 ? count : null);
  }

  /** Whether the broker may choose what is not pinned (it may, by default). */
  autopilot(on = true) {
    return this.#set('autopilot', on !== false);
  }

  /** Each worker of `consume` ends after this many messages. */
  limit(count) {
    return this.#set('limit', count);
  }

  /** Each worker of `consume` ends after this long without a message. */
  idleMillis(ms) {
    return this.#set('idleMillis', ms);
  }

  /** How many workers `consume` runs side by side. */
  concurrency(count) {
    return this.#set('concurrency', Math.max(1, count));
  }

  /** The handler gets one message at a time, not the array. */
  each() {
    return this.#set('each', true);
  }

  /** Whether `consume` acknowledges by itself. No effect on `pop`. */
  autoAck(on) {
    return this.#set('autoAck', on);
  }

  /** Whether pops wait for messages. */
  wait(on) {
    return this.#set('wait', on);
  }

  /** How long a pop waits. */
  timeoutMillis(ms) {
    return this.#set('timeoutMillis', Math.max(1, ms));
  }

  /** Whether `consume` renews leases while a handler runs; without an interval it chooses one. */
  renewLease(on, intervalMillis = null) {
    this.#settings.renewLease = on;
    return this.#set('renewLeaseIntervalMillis', intervalMillis);
  }

  /** Where a new group begins: 'all' or 'new'. */
  subscriptionMode(mode) {
    return this.#set('subscriptionMode', mode);
  }

  /** Where a new group begins: 'now' or an ISO time. */
  subscriptionFrom(from) {
    return this.#set('subscriptionFrom', from);
  }

  /** Declares a group that gets only the last value of each partition. */
  conflation(on = true) {
    return this.#set('conflation', on !== false);
  }

  /** `consume` publishes a status document about itself under this supervision group. */
  supervision(options) {
    return this.#set('supervision', options);
  }

  /** Pushes gather on this side first. */
  buffer(options = {}) {
    const given = Object.fromEntries(Object.entries(options ?? {}).filter(([, value]) => value !== undefined));
    const messageCount = Math.max(1, given.messageCount ?? BUFFER_DEFAULTS.messageCount);
    const maxSize = Math.max(messageCount, given.maxSize ?? 4 * messageCount);
    this.#bufferOptions = { ...BUFFER_DEFAULTS, ...given, messageCount, maxSize };
    return this;
  }

  /** Creates or configures the queue. */
  create() {
    const { queue, namespace, task } = this.#settings;
    const body = { queue, namespace, task, options: this.#config ?? { ...QUEUE_DEFAULTS } };
    return this.#operation(() => this.#client.http.post('/api/v1/configure', body));
  }

  /** Deletes the queue with all it holds. */
  delete() {
    const { queue } = this.#settings;
    if (!queue) throw new Error('Queue name is required for delete operation');
    return this.#operation(() => this.#client.http.delete(`/api/v1/resources/queues/${encodeURIComponent(queue)}`));
  }

  #operation(send) {
    return new LazyOperation(async ({ onSuccess, onError }) => {
      try {
        const result = await send();
        if (result?.error) throw new Error(String(result.error));
        if (onSuccess) await onSuccess(result);
        return result;
      } catch (error) {
        if (!onError) throw error;
        await onError(error);
        return { success: false, error: error.message };
      }
    });
  }

  /** Pushes one item or an array of items. Ids are set now, the request is sent when the push is awaited. */
  push(items) {
    const { queue, partition } = this.#settings;
    if (!queue) throw new Error('Queue name is required for push operation');
    const formatted = formatItems(queue, partition, items);
    const buffered = this.#bufferOptions;
    return new PushOperation(async (callbacks) => {
      if (buffered === null) return pushItems(this.#client, formatted, callbacks);
      const result = await this.#client.buffers.add(this.#address(), formatted, buffered);
      if (callbacks.onSuccess) await callbacks.onSuccess(formatted);
      return result;
    });
  }

  #address() {
    return `${this.#settings.queue}/${this.#settings.partition}`;
  }

  /** Sends what waits in this queue's and partition's buffer, and resolves when it is sent. */
  async flushBuffer() {
    if (!this.#settings.queue) throw new Error('Queue name is required for buffer flush');
    await this.#client.buffers.flush(this.#address());
  }

  /** Takes messages under a lease. Never rejects: an error gives an empty array (and is said once). */
  async pop() {
    return (await this.popResult()).messages;
  }

  /** As pop, with what the broker chose (`autopilot`) and, when the pop failed, the `error`. */
  async popResult() {
    const settings = { ...this.#settings };
    try {
      return await poll(this.#client, settings, {
        consume: false,
        autopilot: settings.autopilot && !this.#client.autopilotOff,
        timeoutMillis: settings.timeoutMillis,
      });
    } catch (error) {
      if (isConflationFault(error, settings.conflation)) throw error;
      this.#client.logger.hidden('pop failed and answers no messages', error);
      return { messages: [], autopilot: null, error };
    }
  }

  /**
   * Runs the handler on messages until the signal fires, the limit is reached or nothing came for idleMillis.
   * Sends nothing until it is awaited.
   */
  consume(handler, options = {}) {
    if (typeof handler !== 'function') throw new TypeError('consume needs a handler function');
    const settings = { ...this.#settings };
    return new LazyOperation((callbacks) => startConsume(this.#client, settings, handler, options?.signal, callbacks));
  }

  /** Reads the queue's dead letters. */
  dlq(group = null) {
    return new DlqBuilder(this.#client, this.#settings.queue, group, this.#settings.partition);
  }
}
