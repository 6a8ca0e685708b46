/* A clock the test owns: time passes only when pass() says so. */
import assert from 'node:assert/strict';

const PATIENCE_MS = 5000;

export class FakeClock {
  #now = Date.parse('2031-02-03T04:05:06.000Z');
  #timers = new Map();
  #nextId = 1;

  now = () => this.#now;

  setTimeout = (fn, ms) => {
    const id = this.#nextId++;
    this.#timers.set(id, { fn, at: this.#now + ms, ms });
    return id;
  };

  clearTimeout = (id) => {
    this.#timers.delete(id);
  };

  /** The lengths of the timers that run, shortest first. */
  get pending() {
    return [...this.#timers.values()].map(({ ms }) => ms).sort((a, b) => a - b);
  }

  /** Lets time pass; the timers that come due fire in their order. */
  advance(ms) {
    const end = this.#now + ms;
    for (;;) {
      const due = [...this.#timers.entries()].filter(([, timer]) => timer.at <= end).sort((a, b) => a[1].at - b[1].at)[0];
      if (due === undefined) break;
      this.#timers.delete(due[0]);
      this.#now = Math.max(this.#now, due[1].at);
      due[1].fn();
    }
    this.#now = end;
  }

  /** Waits (in real time) until the client has set a timer of exactly this length, then lets that time pass. */
  async pass(ms) {
    await until(() => this.pending.includes(ms), () => `a timer of ${ms} ms; there are ${this.pending.join(', ') || 'none'}`);
    this.advance(ms);
  }
}

/** Waits in real time for a condition of a test. */
export async function until(condition, what = () => 'the condition') {
  const end = performance.now() + PATIENCE_MS;
  while (!condition()) {
    assert.ok(performance.now() < end, `not within ${PATIENCE_MS} ms: ${what()}`);
    await new Promise((resolve) => setTimeout(resolve, 1));
  }
}
