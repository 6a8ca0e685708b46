/* Acknowledgments of a consumer that runs many workers: they gather while earlier ones are on their way.
 *
 * An acknowledgment is sent at once when none is on its way; those that come up meanwhile go together in the next
 * request. So a lone worker sends one request a message, as ever, and fifty workers share a few requests. A worker waits
 * for its own answer in either case, before it goes on. */
import { ackMany, ackOne } from '../ack.js';

const IN_FLIGHT_MAX = 2;
const BATCH_MAX = 500;

export class Acker {
  #client;
  #context;
  #gathers;
  #pending = [];
  #inFlight = 0;
  #scheduled = false;

  /** @param {{group: string|null, gathers: boolean}} options */
  constructor(client, { group, gathers }) {
    this.#client = client;
    this.#context = { group };
    this.#gathers = gathers;
  }

  /** Completes one message. Resolves with its result; never rejects. */
  complete(message) {
    if (!this.#gathers) return ackOne(this.#client, message, true, this.#context);
    return new Promise((resolve) => {
      this.#pending.push({ message, resolve });
      this.#schedule();
    });
  }

  /** The workers that one answer set free come up in the same turn of the event loop: let them all arrive. */
  #schedule() {
    if (this.#scheduled || this.#inFlight >= IN_FLIGHT_MAX) return;
    this.#scheduled = true;
    setImmediate(() => {
      this.#scheduled = false;
      this.#send();
    });
  }

  async #send() {
    const batch = this.#pending.splice(0, BATCH_MAX);
    if (batch.length === 0) return;
    this.#inFlight += 1;
    if (this.#pending.length > 0) this.#schedule();
    const results = await this.#results(batch.map(({ message }) => message));
    this.#inFlight -= 1;
    batch.forEach(({ resolve }, i) => resolve(results[i]));
    if (this.#pending.length > 0) this.#schedule();
  }

  async #results(messages) {
    try {
      if (messages.length === 1) return [await ackOne(this.#client, messages[0], true, this.#context)];
      const answer = await ackMany(this.#client, messages, true, this.#context);
      return messages.map((_, i) => answer.results?.[i] ?? { success: false, error: answer.error });
    } catch (error) {
      return messages.map(() => ({ success: false, error: error.message }));
    }
  }
}
