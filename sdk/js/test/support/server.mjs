/* An HTTP server that answers what a test scripted and remembers what it was asked, byte for byte.
 *
 * An answer is {status, body, headers, text}, or one of
 *   {hang: true}        never answered; ends when the client cuts the connection (noted in `cut`)
 *   {drop: true}        the connection is cut without an answer
 *   {slow: ms|promise, ...}   head at once, body later
 * or a function of the request that gives one. When the script is used up, `fallback` answers. */
import http from 'node:http';

export class ScriptedServer {
  requests = [];
  cut = 0;
  #script = [];
  #fallback;
  #server;
  #sockets = new Set();

  /** @param {Array} script  @param {Function|object} [fallback] */
  static async start(script = [], fallback = { status: 410, body: { error: 'the script is used up' } }) {
    const one = new ScriptedServer();
    one.#script = [...script];
    one.#fallback = fallback;
    one.#server = http.createServer((request, response) => one.#serve(request, response));
    one.#server.keepAliveTimeout = 60000;
    one.#server.on('connection', (socket) => {
      one.#sockets.add(socket);
      socket.on('close', () => one.#sockets.delete(socket));
    });
    await new Promise((resolve) => one.#server.listen(0, '127.0.0.1', resolve));
    return one;
  }

  get url() {
    return `http://127.0.0.1:${this.#server.address().port}`;
  }

  /** Adds answers to the script. */
  then_(...answers) {
    this.#script.push(...answers);
  }

  get last() {
    return this.requests.at(-1);
  }

  /** Cuts the connections that are open, as a server does that was restarted. */
  cutConnections() {
    for (const socket of this.#sockets) socket.destroy();
  }

  async stop() {
    this.cutConnections();
    await new Promise((resolve) => this.#server.close(resolve));
  }

  async #serve(request, response) {
    const chunks = [];
    for await (const chunk of request) chunks.push(chunk);
    const text = Buffer.concat(chunks).toString('utf8');
    const url = new URL(request.url, 'http://x');
    const seen = {
      method: request.method,
      url: request.url,
      path: url.pathname,
      query: Object.fromEntries(url.searchParams),
      headers: request.headers,
      text,
      json: text === '' ? undefined : JSON.parse(text),
    };
    this.requests.push(seen);
    response.on('close', () => {
      if (!response.writableFinished) this.cut += 1;
    });
    let answer = this.#script.length > 0 ? this.#script.shift() : this.#fallback;
    while (typeof answer === 'function') answer = await answer(seen);
    if (answer.hang) return;
    if (answer.drop) {
      request.socket.destroy();
      return;
    }
    const { status = 200, body, text: plain, headers = {} } = answer;
    const payload = plain ?? (body === undefined ? '' : JSON.stringify(body));
    const type = plain === undefined ? { 'Content-Type': 'application/json' } : { 'Content-Type': 'text/plain' };
    if (status === 204) {
      response.writeHead(204, headers).end();
      return;
    }
    response.writeHead(status, { ...type, 'Content-Length': Buffer.byteLength(payload), ...headers });
    if (answer.slow !== undefined) {
      response.flushHeaders();
      response.write(payload.slice(0, 1));
      await answer.slow;
      response.end(payload.slice(1));
    } else {
      response.end(payload);
    }
  }
}
