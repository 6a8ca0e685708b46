/* A real broker for the tests: `queen serve` on a free port with a data directory of its own.
 *
 *   QUEEN_BIN        the broker; build/queen of this checkout by default
 *   QUEEN_TEST_DIR   where data directories are made; the system's temporary directory by default */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, mkdirSync, mkdtempSync, rmSync } from 'node:fs';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { fileURLToPath } from 'node:url';

const ROOT = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '..', '..', '..');
const BINARY = path.resolve(process.env.QUEEN_BIN ?? path.join(ROOT, 'build', 'queen'));
const START_DEADLINE_MS = 20000;
const STOP_DEADLINE_MS = 20000;

/** A port nobody listens on right now. */
async function freePort() {
  const server = createServer();
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address();
  server.close();
  await once(server, 'close');
  return port;
}

export class Broker {
  #directory;
  #child = null;
  #output = '';
  #env;

  /** @param {object} [env] further settings */
  static async start(env = {}) {
    const broker = new Broker();
    broker.#env = env;
    if (!existsSync(BINARY)) throw new Error(`${BINARY} is not there; build it first: ./dev build`);
    const base = process.env.QUEEN_TEST_DIR ?? tmpdir();
    mkdirSync(base, { recursive: true });
    broker.#directory = mkdtempSync(path.join(base, 'sdk-'));
    broker.port = await freePort();
    await broker.start();
    return broker;
  }

  get url() {
    return `http://127.0.0.1:${this.port}`;
  }

  async start() {
    // Variables of the caller's shell that the broker would read do not count.
    const clean = Object.fromEntries(Object.entries(process.env).filter(([name]) => !/^(QUEEN_|JWT_|PORT|HOST|DEFAULT_|POP_|LOG_LEVEL|RETENTION_|METRICS_)/.test(name)));
    const args = ['serve', '--data', path.join(this.#directory, 'data'), '--port', String(this.port)];
    this.#child = spawn(BINARY, args, { env: { ...clean, ...this.#env }, stdio: ['ignore', 'pipe', 'pipe'] });
    const keep = (chunk) => {
      this.#output = (this.#output + chunk).slice(-20000);
    };
    this.#child.stdout.on('data', keep);
    this.#child.stderr.on('data', keep);
    const end = performance.now() + START_DEADLINE_MS;
    for (;;) {
      if (this.#child.exitCode !== null || performance.now() > end) throw new Error(`the broker did not start:\n${this.#output}`);
      try {
        if ((await fetch(`${this.url}/health`)).status === 200) return;
      } catch {
        // Not there yet.
      }
      await new Promise((resolve) => setTimeout(resolve, 25));
    }
  }

  /** SIGTERM; the exit code must be 0. */
  async stop() {
    const code = await this.#end('SIGTERM');
    rmSync(this.#directory, { recursive: true, force: true });
    if (code !== 0) throw new Error(`the broker ended with ${code}:\n${this.#output}`);
  }

  /** SIGKILL; start() brings it back with what it had stored. */
  async kill() {
    await this.#end('SIGKILL');
  }

  async #end(signal) {
    const child = this.#child;
    if (child.exitCode !== null || child.signalCode !== null) return child.exitCode;
    child.kill(signal);
    const timer = setTimeout(() => child.kill('SIGKILL'), STOP_DEADLINE_MS);
    const [code] = await once(child, 'exit');
    clearTimeout(timer);
    return code;
  }
}
