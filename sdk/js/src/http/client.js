/* Requests as the rest of the client makes them: sent until they are answered or the tries are spent.
 *
 * A try is one pass over the nodes: with one URL, one request; with several and failover, each node once, without a pause
 * between them. A request that got no answer (refused, reset, time-out) or a 5xx fails its try; between tries there is a
 * pause of `retryDelayMillis`, doubled each time, or what Retry-After asks for. 4xx is final. 429 is waited out on the
 * same node, inside the try, and says nothing about its health.
 *
 * Sending again is safe because the same bytes are sent again: every id in them was minted before the first try, so the
 * broker knows what it has seen. `meta.resent` tells the caller that an earlier try may have been carried out. */
import { abortedError, sleep } from '../clock.js';
import { statusError } from './errors.js';
import { Balancer } from './balancer.js';

const RETRY_AFTER_MAX_MS = 60000;
const JITTER = 0.2;
const DEFAULT_429 = Object.freeze({ maxAttempts: 10, baseMs: 500, capMs: 30000 });

export class HttpClient {
  #bases;
  #balancer;
  #options;
  #transport;
  #clock;
  #random;
  #logger;
  #headers;

  /**
   * @param {object} options the client's, checked and complete (options.js)
   * @param {{transport: object, clock: object, random: () => number, logger: object, sessionKey: string}} parts
   */
  constructor(options, { transport, clock, random, logger, sessionKey }) {
    this.#options = options;
    this.#transport = transport;
    this.#clock = clock;
    this.#random = random;
    this.#logger = logger;
    this.#bases = new Map(options.urls.map((url) => [url, new URL(url)]));
    this.#balancer = new Balancer(options.urls, {
      strategy: options.loadBalancingStrategy,
      vnodes: options.affinityHashRing,
      retryAfterMs: options.healthRetryAfterMillis,
      clock,
      sessionKey,
    });
    this.#headers = requestHeaders(options);
  }

  /** Health of the nodes, for tests and logs. */
  health() {
    return this.#balancer.health();
  }

  get(path, options) {
    return this.request('GET', path, undefined, options);
  }

  post(path, body, options) {
    return this.request('POST', path, body, options);
  }

  delete(path, options) {
    return this.request('DELETE', path, undefined, options);
  }

  /**
   * @param {string} method
   * @param {string} path
   * @param {*} body sent as JSON when truthy
   * @param {object} [options]
   * @param {number} [options.timeoutMillis] of each request; the client's when left out
   * @param {number} [options.totalMillis] of all of it: no further try begins after that
   * @param {AbortSignal} [options.signal]
   * @param {string} [options.affinityKey]
   * @param {boolean} [options.parked] a poll that waits: a 429 is waited out without a limit
   * @param {{resent?: boolean}} [options.meta] is told whether an earlier try may have been carried out
   * @returns {Promise<*>} the body as JSON, else its text, else null
   */
  async request(method, path, body, options = {}) {
    const call = {
      method,
      path,
      body: body ? Buffer.from(JSON.stringify(body), 'utf8') : undefined,
      timeoutMs: options.timeoutMillis ?? this.#options.timeoutMillis,
      signal: options.signal,
      parked: options.parked === true,
      meta: options.meta ?? {},
      deadline: options.totalMillis === undefined ? Infinity : this.#clock.now() + options.totalMillis,
    };
    const failover = this.#bases.size > 1 && this.#options.enableFailover;
    // With failover every try may use every node; without it a try takes the strategy's next one, whatever its key.
    const key = failover ? options.affinityKey : undefined;
    const tries = Math.max(1, this.#options.retryAttempts);
    for (let attempt = 0; ; attempt++) {
      try {
        return failover ? await this.#pass(call, key) : await this.#single(call, attempt);
      } catch (error) {
        if (!isTransient(error)) throw error;
        const pause = this.#pauseMs(error, attempt);
        if (attempt + 1 >= tries || this.#clock.now() + pause > call.deadline) {
          if (call.meta.resent) error.maybeCommitted = true;
          throw error;
        }
        this.#logger.warn('http.retry', { method, path, attempt: attempt + 1, pauseMillis: pause, error: error.message });
        await sleep(this.#clock, pause, call.signal);
      }
    }
  }

  /** One try without failover. */
  #single(call, attempt) {
    const nodes = this.#balancer.order();
    const node = this.#options.loadBalancingStrategy === 'round-robin' ? nodes[0] : nodes[attempt % nodes.length];
    return this.#ask(node, call);
  }

  /** One try with failover: each node once. */
  async #pass(call, key) {
    let last;
    for (const node of this.#balancer.order(key)) {
      try {
        return await this.#ask(node, call);
      } catch (error) {
        if (!isTransient(error)) throw error;
        last = error;
      }
    }
    throw last;
  }

  /** One node until it answers something other than 429, or the patience with 429 is spent. Judges the node's health. */
  async #ask(node, call) {
    const policy = this.#options.retry429 ?? {};
    const limit = policy.maxAttempts ?? (call.parked ? Infinity : DEFAULT_429.maxAttempts);
    for (let attempt = 1; ; attempt++) {
      try {
        const result = await this.#send(node, call);
        this.#balancer.succeeded(node);
        return result;
      } catch (error) {
        if (error.status === 429 && attempt < limit) {
          await sleep(this.#clock, this.#pause429Ms(error, attempt - 1, policy), call.signal);
          continue;
        }
        if (isTransient(error)) {
          this.#balancer.failed(node);
          call.meta.resent = true;
        }
        throw error;
      }
    }
  }

  /** One request; once more at once when a kept connection turned out to be closed. */
  async #send(node, call) {
    for (let again = false; ; again = true) {
      try {
        const answer = await this.#transport.exchange({ ...call, base: this.#bases.get(node.url), path: pathOn(node.url, call.path), headers: this.#headers });
        return bodyOf(answer);
      } catch (error) {
        if (!error.stale || again) throw error;
        if (call.signal?.aborted) throw abortedError();
        call.meta.resent = true;
      }
    }
  }

  #pauseMs(error, attempt) {
    if (typeof error.retryAfterSeconds === 'number') return Math.min(error.retryAfterSeconds * 1000, RETRY_AFTER_MAX_MS);
    return this.#options.retryDelayMillis * 2 ** attempt;
  }

  #pause429Ms(error, attempt, policy) {
    const base = policy.baseMs ?? DEFAULT_429.baseMs;
    const cap = policy.capMs ?? DEFAULT_429.capMs;
    const asked = error.retryAfterSeconds;
    const ms = typeof asked === 'number' ? asked * 1000 : Math.min(cap, base * 2 ** attempt);
    return Math.round(ms * (1 + JITTER * (2 * this.#random() - 1)));
  }
}

/** Worth another try: no answer at all, or the node says that the fault is its own. */
export function isTransient(error) {
  if (error.aborted) return false;
  return error.status === undefined ? error instanceof Error && !(error instanceof TypeError) : error.status >= 500;
}

function requestHeaders({ bearerToken, headers, hostHeader }) {
  const all = { 'Content-Type': 'application/json' };
  if (bearerToken) all.Authorization = `Bearer ${bearerToken}`;
  // Names are compared without case, so that a program's own spelling replaces ours.
  for (const [name, value] of Object.entries(headers)) {
    const known = Object.keys(all).find((other) => other.toLowerCase() === name.toLowerCase());
    if (known !== undefined) delete all[known];
    all[name] = value;
  }
  if (hostHeader) all.Host = hostHeader;
  return all;
}

/** The base URL's own path, if it has one, goes before the call's. */
function pathOn(url, path) {
  const at = url.indexOf('/', url.indexOf('//') + 2);
  return at < 0 ? path : url.slice(at) + path;
}

function bodyOf({ status, statusText, headers, text }) {
  if (status === 204) return null;
  if (status < 200 || status > 299) throw statusError(status, statusText, text, headers);
  if (text === '') return null;
  try {
    return JSON.parse(text);
  } catch (cause) {
    if (!(headers['content-type'] ?? '').includes('application/json')) return text;
    // An answer that says it is JSON and is not was cut or mangled on its way; that is the way's fault, so it is sent again.
    throw Object.assign(new Error('the answer is not JSON', { cause }), { malformed: true });
  }
}
