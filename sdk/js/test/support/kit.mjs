/* What most tests need: a scripted server, a client on it with a clock of its own, both ended with the test. */
import { Queen } from '../../index.js';
import { FakeClock } from './clock.mjs';
import { ScriptedServer } from './server.mjs';

export const UUID7 = /^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/;

/** @returns {Promise<{server: ScriptedServer, clock: FakeClock, queen: Queen}>} */
export async function start(t, script = [], { fallback, ...options } = {}) {
  const server = await ScriptedServer.start(script, fallback);
  const clock = new FakeClock();
  const queen = client(t, { url: server.url, clock, ...options });
  t.after(() => server.stop());
  return { server, clock, queen };
}

/** A client that logs nothing, never jitters and leaves signals alone. */
export function client(t, options) {
  const quiet = { info() {}, warn() {}, error() {} };
  const queen = new Queen({ handleSignals: false, logger: quiet, random: () => 0.5, ...options });
  t.after(() => queen.close());
  return queen;
}

/** A message as a pop answers it. */
export function message(id, more = {}) {
  return {
    id: `m-${id}`,
    transactionId: `t-${id}`,
    traceId: null,
    data: { id },
    producerSub: null,
    createdAt: '2031-02-03T04:05:06.789Z',
    partitionId: '7',
    partition: 'p1',
    leaseId: 'lease-1',
    consumerGroup: '__QUEUE_MODE__',
    deliveryAttempt: 1,
    offset: 0,
    ...more,
  };
}

/** A pop's answer. */
export function popped(...messages) {
  return { status: 200, body: { success: true, messages, partitionsClaimed: 1 } };
}

export const EMPTY = { status: 204 };

/** Answers acknowledgments of either route as all honoured. */
export function honoured({ json }) {
  const acks = json.acknowledgments ?? [json];
  return { status: 200, body: acks.map(({ transactionId }, index) => ({ index, transactionId, success: true, error: null, leaseReleased: true, dlq: false, noop: false })) };
}

/** Requests to a path. */
export function to(server, path) {
  return server.requests.filter((request) => request.path === path);
}
