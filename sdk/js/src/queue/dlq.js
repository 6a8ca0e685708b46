/* Reading dead letters: GET /api/v1/dlq. Errors give an empty page, as programs expect; they are said once. */
import { DEFAULT_PARTITION } from '../defaults.js';

export class DlqBuilder {
  #client;
  #queue;
  #group;
  #partition;
  #limit = 100;
  #offset = 0;
  #from = null;
  #to = null;

  constructor(client, queue, group, partition) {
    this.#client = client;
    this.#queue = queue;
    this.#group = group;
    this.#partition = partition;
  }

  /** At most this many (1 or more; 100 by default). */
  limit(count) {
    this.#limit = Math.max(1, count);
    return this;
  }

  /** Skips this many. */
  offset(count) {
    this.#offset = Math.max(0, count);
    return this;
  }

  /** Only those filed at or after this time (ISO text). */
  from(timestamp) {
    this.#from = timestamp;
    return this;
  }

  /** Only those filed before this time (ISO text). */
  to(timestamp) {
    this.#to = timestamp;
    return this;
  }

  /** @returns {Promise<{messages: object[], total: number}>} never rejects */
  async get() {
    const query = new URLSearchParams({ queue: this.#queue ?? '', limit: String(this.#limit), offset: String(this.#offset) });
    if (this.#group) query.set('consumerGroup', this.#group);
    if (this.#partition !== DEFAULT_PARTITION) query.set('partition', this.#partition);
    if (this.#from) query.set('from', String(this.#from));
    if (this.#to) query.set('to', String(this.#to));
    try {
      const body = await this.#client.http.get(`/api/v1/dlq?${query}`);
      return body ?? { messages: [], total: 0 };
    } catch (error) {
      this.#client.logger.hidden('dlq.get failed and answers an empty page', error);
      return { messages: [], total: 0 };
    }
  }
}
