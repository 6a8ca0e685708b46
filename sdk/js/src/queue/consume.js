/* Consuming: workers that poll, hand messages to the program, and acknowledge.
 *
 * One worker: poll; when messages came, start renewing their lease if that is wanted, give them to the handler (one by
 * one with each(), else as one array), acknowledge, poll again.
 *
 * What can go wrong, and what happens then:
 *   the handler throws            the message (or the batch) is acknowledged as failed with the error's text; with each(),
 *                                 the later ones of its partition are left to the redelivery that the nack brings
 *   the signal fires, or the limit is reached with messages in hand (each)   what was not begun goes back with `retry`,
 *                                 which charges no attempt
 *   the signal fires during a poll   the poll is closed; an answer that had begun is read, and its messages go back
 *   a poll is not answered, or with 429 or 5xx   pause (Retry-After, or a second and then longer), poll again
 *   a poll is refused otherwise (401, 403, 404, 400)   consume rejects, and the other workers stop
 *   an acknowledgment is refused  it is logged: the lease was lost, and the message comes again */
import { setMaxListeners } from 'node:events';
import { sleep } from '../clock.js';
import { ackMany, ackOne, renewLeases } from '../ack.js';
import { QUEUE_MODE } from '../defaults.js';
import { Acker } from './acker.js';
import { isConflationFault } from './conflation.js';
import { poll, pollPath } from './poll.js';
import { startSupervision } from './supervision.js';
import { traceFunction } from './trace.js';

const EMPTY_PAUSE_MS = 100;
const TROUBLE_PAUSE_MS = 1000;
const TROUBLE_PAUSE_MAX_MS = 10000;
// When no interval was named: soon at first, since the length of the lease is not known; a renewal then gives a minute.
const RENEW_FIRST_MS = 500;
const RENEW_NEXT_MS = 20000;

/**
 * Starts the workers; resolves when all have ended, rejects with the first fatal error.
 *
 * @param {object} client
 * @param {object} settings the builder's, copied
 * @param {Function} handler
 * @param {AbortSignal|undefined} signal the program's
 * @param {{onSuccess?: Function, onError?: Function}} callbacks
 */
export async function startConsume(client, settings, handler, signal, callbacks) {
  pollPath(settings);
  const run = new Run(client, settings, handler, callbacks);
  const supervision = startSupervision(client, settings, run);
  const done = client.runs.add(run);
  const onAbort = () => run.stop();
  if (signal?.aborted) run.stop();
  else signal?.addEventListener('abort', onAbort, { once: true });
  const workers = Array.from({ length: settings.concurrency }, () => run.work());
  const settled = Promise.allSettled(workers).then(async () => {
    signal?.removeEventListener('abort', onAbort);
    await supervision?.end();
    done();
  });
  try {
    await Promise.all(workers);
  } catch (error) {
    run.stop();
    throw error;
  }
  await settled;
}

class Run {
  #client;
  #settings;
  #handler;
  #callbacks;
  #context;
  #acker;
  #trace;
  #controller = new AbortController();

  constructor(client, settings, handler, callbacks) {
    this.#client = client;
    this.#settings = settings;
    this.#handler = handler;
    this.#callbacks = callbacks;
    this.#context = { group: settings.group };
    this.#acker = new Acker(client, { group: settings.group, gathers: settings.concurrency > 1 });
    this.#trace = traceFunction(client, settings.group ?? QUEUE_MODE);
    // What supervision tells of this run.
    this.counts = { running: 0, busy: 0, completed: 0, failed: 0, lastCompletedAt: null };
    this.inFlightSince = new Set();
    setMaxListeners(0, this.#controller.signal);
  }

  /** Ends the polls and, between two messages, the workers. A handler that runs is left to end. */
  stop() {
    this.#controller.abort();
  }

  get #stopped() {
    return this.#controller.signal.aborted;
  }

  /** One worker's life. */
  async work() {
    const { limit, idleMillis } = this.#settings;
    const clock = this.#client.clock;
    const worker = { handled: 0, lastAt: clock.now(), troubles: 0 };
    this.counts.running += 1;
    try {
      for (;;) {
        if (this.#stopped) return;
        if (limit !== null && worker.handled >= limit) return;
        if (idleMillis !== null && clock.now() - worker.lastAt >= idleMillis) return;
        const messages = await this.#poll(worker);
        if (messages === null || messages.length === 0) continue;
        worker.lastAt = clock.now();
        await this.#handle(worker, messages);
        worker.lastAt = clock.now();
      }
    } catch (error) {
      if (!error.aborted) throw error;
    } finally {
      this.counts.running -= 1;
    }
  }

  /** Messages, or null when there are none and the pause that belongs to that is over. Throws what ends the consumer. */
  async #poll(worker) {
    const { wait, conflation } = this.#settings;
    let pause = null;
    try {
      const result = await poll(this.#client, this.#settings, {
        consume: true,
        autopilot: this.#settings.autopilot && !this.#client.autopilotOff,
        timeoutMillis: this.#pollMillis(worker),
        signal: this.#controller.signal,
      });
      worker.troubles = 0;
      if (result.messages.length > 0) {
        for (const message of result.messages) message.trace = this.#trace;
        return result.messages;
      }
      if (!wait) pause = result.autopilot?.waitMs > 0 ? result.autopilot.waitMs : EMPTY_PAUSE_MS;
    } catch (error) {
      if (error.aborted || isConflationFault(error, conflation)) throw error;
      if (error.timeout !== undefined && wait) return null;
      if (error.status !== undefined && error.status < 500 && error.status !== 429) throw error;
      this.#client.logger.warn('consume.poll', { error: error.message });
      pause = troublePause(error, worker.troubles++);
    }
    if (pause !== null) await sleep(this.#client.clock, pause, this.#controller.signal);
    return null;
  }

  /** A poll never waits past the moment at which the worker would end for being idle. */
  #pollMillis({ lastAt }) {
    const { timeoutMillis, idleMillis, wait } = this.#settings;
    if (idleMillis === null || !wait) return timeoutMillis;
    return Math.max(1, Math.min(timeoutMillis, idleMillis - (this.#client.clock.now() - lastAt)));
  }

  async #handle(worker, messages) {
    const stopRenewal = this.#startRenewal(messages);
    this.counts.busy += 1;
    try {
      if (this.#settings.each) await this.#handleEach(worker, messages);
      else if (this.#stopped) await this.#giveBack(messages);
      else {
        worker.handled += messages.length;
        await this.#handleOne(messages);
      }
    } finally {
      this.counts.busy -= 1;
      stopRenewal();
    }
  }

  async #handleEach(worker, messages) {
    const { limit } = this.#settings;
    const nacked = new Set();
    for (let i = 0; i < messages.length; i++) {
      const message = messages[i];
      if (this.#stopped || (limit !== null && worker.handled >= limit)) {
        await this.#giveBack(messages.slice(i).filter((rest) => !nacked.has(rest.partitionId)));
        return;
      }
      if (nacked.has(message.partitionId)) continue;
      worker.handled += 1;
      if (!(await this.#handleOne(message))) nacked.add(message.partitionId);
    }
  }

  /** Runs the handler on a message or a batch, and acknowledges. False when it was nacked. */
  async #handleOne(given) {
    const { onSuccess, onError } = this.#callbacks;
    const began = { at: this.#client.clock.now() };
    this.inFlightSince.add(began);
    let result;
    try {
      result = await this.#handler(given);
    } catch (thrown) {
      this.counts.failed += countOf(given);
      const error = thrown instanceof Error ? thrown : new Error(String(thrown));
      if (onError) {
        await onError(given, error);
        return true;
      }
      await this.#nack(given, error);
      return false;
    } finally {
      this.inFlightSince.delete(began);
    }
    this.counts.completed += countOf(given);
    this.counts.lastCompletedAt = this.#client.clock.now();
    if (onSuccess) await onSuccess(given, result);
    else if (this.#settings.autoAck && !onError) await this.#complete(given);
    return true;
  }

  async #complete(given) {
    const result = Array.isArray(given) ? await ackMany(this.#client, given, true, this.#context) : await this.#acker.complete(given);
    if (!result.success) this.#client.logger.error('consume.ack', { error: result.error });
  }

  async #nack(given, error) {
    this.#client.logger.error('consume.handler', { error: error.message });
    const context = { ...this.#context, error: error.message };
    const result = Array.isArray(given) ? await ackMany(this.#client, given, false, context) : await ackOne(this.#client, given, false, context);
    if (!result.success) this.#client.logger.error('consume.nack', { error: result.error });
  }

  /** Releases messages no handler has seen, without charging an attempt. Best effort: a lease runs out by itself. */
  async #giveBack(messages) {
    if (messages.length === 0) return;
    const result = await ackMany(this.#client, messages, 'retry', this.#context);
    if (!result.success) this.#client.logger.warn('consume.giveBack', { error: result.error });
  }

  #startRenewal(messages) {
    const { renewLease, renewLeaseIntervalMillis: interval } = this.#settings;
    if (!renewLease) return () => {};
    const clock = this.#client.clock;
    let timer;
    const arm = (ms) => {
      timer = clock.setTimeout(async () => {
        timer = null;
        await renewLeases(this.#client, messages);
        if (!ended) arm(interval ?? RENEW_NEXT_MS);
      }, ms);
    };
    let ended = false;
    arm(interval ?? RENEW_FIRST_MS);
    return () => {
      ended = true;
      if (timer !== null) clock.clearTimeout(timer);
    };
  }
}

function countOf(given) {
  return Array.isArray(given) ? given.length : 1;
}

function troublePause(error, troubles) {
  if (typeof error.retryAfterSeconds === 'number') return error.retryAfterSeconds * 1000;
  return error.status === 429 ? TROUBLE_PAUSE_MS : Math.min(TROUBLE_PAUSE_MAX_MS, TROUBLE_PAUSE_MS * 2 ** Math.min(troubles, 10));
}
