/* Which node a request goes to when there are several.
 *
 *   affinity      a consistent ring: a key keeps its node while that is healthy, and few keys move when it is not
 *   session       a key keeps the node it was first given
 *   round-robin   one after the other
 *
 * order() names all nodes, best first: the healthy ones as the strategy says, then the ones that failed lately. So a
 * request tries every node there is before it fails, and a node that failed is asked again at the latest when no other is
 * left. A failed node counts as healthy again after `retryAfterMs`. */

const SESSIONS_MAX = 10000;

/** 32-bit FNV-1a over UTF-16 code units. */
export function fnv1a(text) {
  let hash = 0x811c9dc5;
  for (let i = 0; i < text.length; i++) {
    hash ^= text.charCodeAt(i);
    hash = Math.imul(hash, 0x01000193);
  }
  return hash >>> 0;
}

export class Balancer {
  #nodes;
  #strategy;
  #ring;
  #retryAfterMs;
  #clock;
  #sessionKey;
  #sessions = new Map();
  #turn = 0;

  /**
   * @param {string[]} urls
   * @param {{strategy: string, vnodes: number, retryAfterMs: number, clock: object, sessionKey: string}} options
   */
  constructor(urls, { strategy, vnodes, retryAfterMs, clock, sessionKey }) {
    this.#nodes = urls.map((url, index) => ({ url, index, failedAt: null }));
    this.#strategy = strategy;
    this.#retryAfterMs = retryAfterMs;
    this.#clock = clock;
    this.#sessionKey = sessionKey;
    this.#ring = strategy === 'affinity' ? this.#ringOf(vnodes) : [];
  }

  /** All nodes, in the order they should be tried. */
  order(key) {
    const start = this.#preferred(key ?? this.#sessionKey);
    return [...start.filter((node) => this.#healthy(node)), ...start.filter((node) => !this.#healthy(node))];
  }

  succeeded(node) {
    node.failedAt = null;
  }

  failed(node) {
    node.failedAt = this.#clock.now();
  }

  /** What is known of each node, for tests and logs. */
  health() {
    return this.#nodes.map((node) => ({ url: node.url, healthy: this.#healthy(node) }));
  }

  #healthy(node) {
    return node.failedAt === null || this.#clock.now() - node.failedAt >= this.#retryAfterMs;
  }

  #preferred(key) {
    if (this.#strategy === 'affinity') return this.#walk(fnv1a(key));
    if (this.#strategy === 'session') return this.#sticky(key);
    return this.#from(this.#turn++ % this.#nodes.length);
  }

  /** The nodes in the order of the array, beginning at one of them. */
  #from(index) {
    return [...this.#nodes.slice(index), ...this.#nodes.slice(0, index)];
  }

  #sticky(key) {
    let node = this.#sessions.get(key);
    if (node === undefined || !this.#healthy(node)) {
      const turn = this.#from(this.#turn++ % this.#nodes.length);
      node = turn.find((candidate) => this.#healthy(candidate)) ?? turn[0];
      if (this.#sessions.size >= SESSIONS_MAX) this.#sessions.delete(this.#sessions.keys().next().value);
      this.#sessions.set(key, node);
    }
    return this.#from(node.index);
  }

  #ringOf(vnodes) {
    const points = [];
    for (const node of this.#nodes) {
      for (let i = 0; i < vnodes; i++) points.push({ hash: fnv1a(`${node.url}#vnode${i}`), node });
    }
    return points.sort((a, b) => a.hash - b.hash || a.node.index - b.node.index);
  }

  /** Every node once, in the order the ring has them from `hash` on. */
  #walk(hash) {
    let low = 0;
    let high = this.#ring.length;
    while (low < high) {
      const middle = (low + high) >>> 1;
      if (this.#ring[middle].hash < hash) low = middle + 1;
      else high = middle;
    }
    const seen = new Set();
    for (let i = 0; i < this.#ring.length && seen.size < this.#nodes.length; i++) {
      seen.add(this.#ring[(low + i) % this.#ring.length].node);
    }
    return [...seen];
  }
}
