/* Supervision: a consume run publishes a status document about itself in KV, at its start, every ten seconds, at its end.
 *
 * Two rows a run: <group>/<id>/head tells of <group>/<id>/chunk/0000, which holds the document in base64; both carry the
 * same `write` id and expire after a minute, so a run that died disappears. Publications never overlap, take at most two
 * seconds each, and their failures only reach the log. */
import { hostname } from 'node:os';
import { uuidv7 } from '../ids.js';

const EVERY_MS = 10000;
const DEADLINE_MS = 2000;
const TTL_SECONDS = 60;
const NAMESPACE = 'queen-supervisor';
const GROUP = /^[A-Za-z0-9][A-Za-z0-9._-]{0,254}$/;
const CONCURRENCY_MAX = 4096;

/**
 * Begins to publish. Throws, before anything is sent, when the options are not usable.
 *
 * @returns {{end: () => Promise<void>}|null} null without supervision
 */
export function startSupervision(client, settings, run) {
  const options = settings.supervision;
  if (options === null || options === undefined) return null;
  const group = options.group;
  if (typeof group !== 'string' || !GROUP.test(group) || group === 'coordination') {
    throw new Error(`Invalid supervision group: ${JSON.stringify(group)}`);
  }
  if (!Number.isInteger(settings.concurrency) || settings.concurrency > CONCURRENCY_MAX) {
    throw new Error(`Supervision needs a concurrency of 1 to ${CONCURRENCY_MAX}`);
  }
  return new Publisher(client, settings, run, group);
}

class Publisher {
  #client;
  #settings;
  #run;
  #group;
  #id = uuidv7();
  #startedAt;
  #timer = null;
  #publishing = Promise.resolve();
  #ended = false;

  constructor(client, settings, run, group) {
    this.#client = client;
    this.#settings = settings;
    this.#run = run;
    this.#group = group;
    this.#startedAt = client.clock.now();
    this.#publish('running');
    this.#arm();
  }

  async end() {
    this.#ended = true;
    if (this.#timer !== null) this.#client.clock.clearTimeout(this.#timer);
    await this.#publish('stopped');
  }

  #arm() {
    this.#timer = this.#client.clock.setTimeout(() => {
      this.#publish('running');
      if (!this.#ended) this.#arm();
    }, EVERY_MS);
    this.#timer?.unref?.();
  }

  #publish(state) {
    this.#publishing = this.#publishing.then(async () => {
      try {
        await this.#client.http.post('/api/v1/kv', { operations: this.#rows(state) }, { timeoutMillis: DEADLINE_MS, totalMillis: DEADLINE_MS });
      } catch (error) {
        this.#client.logger.warn('supervision', { error: error.message });
      }
    });
    return this.#publishing;
  }

  #rows(state) {
    const write = uuidv7();
    const text = JSON.stringify(this.#document(state));
    const bytes = Buffer.from(text, 'utf8');
    const row = (key, value) => ({ op: 'put', ns: NAMESPACE, key: `${this.#group}/${this.#id}/${key}`, value, ttlSeconds: TTL_SECONDS });
    return [
      row('chunk/0000', { write, index: 0, data: bytes.toString('base64') }),
      row('head', { format: 'queen.supervisor.remote-status/v1', write, chunks: 1, bytes: bytes.length }),
    ];
  }

  #document(state) {
    const { counts, inFlightSince } = this.#run;
    const now = this.#client.clock.now();
    const oldest = Math.min(...[...inFlightSince].map(({ at }) => at), now);
    return {
      schema: 'queen.consumer.status/v1',
      instance_id: this.#id,
      engine: 'js',
      execution_model: 'async-tasks',
      hostname: hostname(),
      pid: process.pid,
      state,
      started_at_epoch: this.#startedAt / 1000,
      updated_at_epoch: now / 1000,
      pool_status: [
        {
          name: this.#settings.queue ?? this.#settings.namespace ?? this.#settings.task,
          queue: this.#settings.queue,
          namespace: this.#settings.namespace,
          task: this.#settings.task,
          consumer_group: this.#settings.group,
          desired: this.#settings.concurrency,
          running: counts.running,
          busy: counts.busy,
          completed: counts.completed,
          failed: counts.failed,
          last_completed_at_epoch: counts.lastCompletedAt === null ? null : counts.lastCompletedAt / 1000,
          oldest_inflight_seconds: (now - oldest) / 1000,
        },
      ],
    };
  }
}
