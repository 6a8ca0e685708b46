/* One HTTP/1.1 exchange with one node, over connections that are kept and used again.
 *
 * The steps: take a connection from the agent, send head and body, read the whole answer. One timer covers all of it.
 *
 * Failures: no connection or a broken one rejects with the system's error; the timer rejects with a time-out error and
 * cuts the connection; the caller's signal rejects with an abort error and cuts the connection, but only while no answer
 * has begun: an answer that has begun may carry messages, so it is read to its end. A kept connection that the other side
 * had closed meanwhile is told by `error.stale`: nothing was wrong with the node. */
import http from 'node:http';
import https from 'node:https';
import { abortedError } from '../clock.js';
import { timeoutError } from './errors.js';

// Shorter than any server's idle limit that is in use, so that a connection is seldom closed under a request.
const IDLE_CONNECTION_MS = 4000;
const FREE_CONNECTIONS_MAX = 256;
const ANSWER_BYTES_MAX = 512 * 1024 * 1024;

export class Transport {
  #agents = new Map();
  #clock;
  #closed = false;

  constructor(clock) {
    this.#clock = clock;
  }

  /** Cuts the idle connections; requests made afterwards use fresh ones that are not kept. */
  close() {
    this.#closed = true;
    for (const agent of this.#agents.values()) agent.destroy();
    this.#agents.clear();
  }

  /**
   * @param {object} call
   * @param {URL} call.base the node
   * @param {string} call.method
   * @param {string} call.path as it goes on the wire, with its query
   * @param {object} call.headers
   * @param {Buffer|undefined} call.body
   * @param {number} call.timeoutMs
   * @param {AbortSignal} [call.signal]
   * @returns {Promise<{status: number, statusText: string, headers: object, text: string}>}
   */
  exchange(call) {
    return new Promise((resolve, reject) => {
      if (call.signal?.aborted) {
        reject(abortedError());
        return;
      }
      let answerBegan = false;
      let done = false;
      const finish = (settle, value) => {
        if (done) return;
        done = true;
        this.#clock.clearTimeout(timer);
        call.signal?.removeEventListener('abort', onAbort);
        settle(value);
      };
      const fail = (error) => finish(reject, error);
      const request = this.#open(call);
      const timer = this.#clock.setTimeout(() => {
        fail(timeoutError(call.timeoutMs));
        request.destroy();
      }, call.timeoutMs);
      const onAbort = () => {
        if (answerBegan) return;
        fail(abortedError());
        request.destroy();
      };
      call.signal?.addEventListener('abort', onAbort, { once: true });
      request.on('error', (error) => {
        if (request.reusedSocket && !answerBegan && error.code === 'ECONNRESET') error.stale = true;
        fail(error);
      });
      request.on('response', (response) => {
        answerBegan = true;
        readAll(response, (answer) => finish(resolve, answer), fail);
      });
      request.end(call.body);
    });
  }

  #open({ base, method, path, headers, body }) {
    const secure = base.protocol === 'https:';
    const length = body === undefined && method !== 'POST' && method !== 'PUT' ? {} : { 'Content-Length': body?.length ?? 0 };
    const hostName = headers.Host?.replace(/:\d+$/, '');
    return (secure ? https : http).request({
      agent: this.#agentOf(secure),
      hostname: base.hostname.replace(/^\[(.*)\]$/, '$1'),
      port: base.port || (secure ? 443 : 80),
      method,
      path,
      headers: { ...headers, ...length },
      ...(secure && hostName ? { servername: hostName } : {}),
    });
  }

  #agentOf(secure) {
    if (this.#closed) return false;
    let agent = this.#agents.get(secure);
    if (agent === undefined) {
      const options = { keepAlive: true, maxFreeSockets: FREE_CONNECTIONS_MAX, scheduling: 'lifo', timeout: IDLE_CONNECTION_MS };
      agent = new (secure ? https : http).Agent(options);
      this.#agents.set(secure, agent);
    }
    return agent;
  }
}

function readAll(response, resolve, reject) {
  const chunks = [];
  let bytes = 0;
  response.on('data', (chunk) => {
    bytes += chunk.length;
    if (bytes > ANSWER_BYTES_MAX) {
      response.destroy(new Error(`the answer is larger than ${ANSWER_BYTES_MAX} bytes`));
      return;
    }
    chunks.push(chunk);
  });
  response.on('error', reject);
  response.on('aborted', () => reject(Object.assign(new Error('the answer broke off'), { code: 'ECONNRESET' })));
  response.on('end', () => {
    const text = chunks.length === 1 ? chunks[0].toString('utf8') : Buffer.concat(chunks, bytes).toString('utf8');
    resolve({ status: response.statusCode, statusText: response.statusMessage ?? '', headers: response.headers, text });
  });
}
