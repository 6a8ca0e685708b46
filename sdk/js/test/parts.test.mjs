/* The small parts: ids, durations, logger, admin paths, exports, what is left out, signals. */
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import * as sdk from '../index.js';
import { parseDuration, durationSeconds } from '../src/duration.js';
import { isUuid, uuidv7 } from '../src/ids.js';
import { Logger } from '../src/logger.js';
import { fnv1a } from '../src/http/balancer.js';
import { until } from './support/clock.mjs';
import { honoured, message, popped, start, UUID7 } from './support/kit.mjs';
import { ScriptedServer } from './support/server.mjs';

test('uuidv7: form, time, order within a millisecond, no repeat', () => {
  const now = Date.now() + 1000000;
  const ids = Array.from({ length: 20000 }, () => uuidv7(now));
  for (const id of ids) assert.match(id, UUID7);
  assert.equal(parseInt(ids[0].replaceAll('-', '').slice(0, 12), 16), now);
  assert.deepEqual([...ids].sort(), ids);
  assert.equal(new Set(ids).size, ids.length);
  const later = uuidv7(now - 5000);
  assert.ok(later > ids.at(-1), 'a clock that steps back does not break the order');
  assert.ok(isUuid(later) && isUuid('7F0C2F4E-36A5-4C37-8F6E-0D8A52B1C111') && !isUuid('x') && !isUuid(7));
});

test('durations', () => {
  const cases = { '30d': 2592000000, '24h': 86400000, '1h30m': 5400000, '1.5s': 1500, '250ms': 250, '1H': 3600000, '1m1ms': 60001 };
  for (const [text, ms] of Object.entries(cases)) assert.equal(parseDuration(text), ms, text);
  for (const bad of ['', ' ', '5', '5 s', 's', '5x', '1h 30m', '-1s', '0s', '1.s', 5, null, undefined]) {
    assert.throws(() => parseDuration(bad), TypeError, String(bad));
  }
  assert.equal(durationSeconds('1ms'), 1);
  assert.equal(durationSeconds('1.2s'), 2);
});

test('fnv1a is the 32-bit one', () => {
  assert.equal(fnv1a(''), 0x811c9dc5);
  assert.equal(fnv1a('a'), 0xe40c292c);
  assert.equal(fnv1a('foobar'), 0xbf9cf968);
});

test('the logger: levels, debug falls back to info, structured form, a logger that throws is harmless', () => {
  const lines = [];
  const own = { info: (...args) => lines.push(['info', ...args]), warn: (...args) => lines.push(['warn', ...args]), error: (...args) => lines.push(['error', ...args]) };
  const plain = new Logger(own);
  plain.info('a', { x: 1 });
  plain.warn('b', 'text');
  plain.error('c');
  plain.debug('d');
  assert.deepEqual(lines, [['info', '[queen] a {"x":1}'], ['warn', '[queen] b text'], ['error', '[queen] c'], ['info', '[queen] d']]);
  lines.length = 0;
  new Logger({ ...own, debug: (...args) => lines.push(['debug', ...args]) }, { structuredLogs: true }).debug('d', { x: 1 });
  assert.deepEqual(lines, [['debug', { x: 1 }, 'd']]);
  for (const bad of [{}, { info() {}, warn() {} }]) assert.throws(() => new Logger(bad), /Invalid logger/);
  const throws = () => {
    throw new Error('x');
  };
  new Logger({ info: throws, warn: throws, error: throws }).error('a');
  assert.equal(new Logger(null).enabled, false);
  assert.equal(new Logger(null, { console: true }).enabled, true);
});

test('admin: method, path and body of every call', async (t) => {
  const { server, queen } = await start(t, [], { fallback: { body: {} } });
  const { admin } = queen;
  const calls = [
    [() => admin.getOverview(), 'GET /api/v1/resources/overview'],
    [() => admin.getNamespaces(), 'GET /api/v1/resources/namespaces'],
    [() => admin.getTasks(), 'GET /api/v1/resources/tasks'],
    [() => admin.listQueues({ namespace: 'n', limit: 5, task: null, other: undefined }), 'GET /api/v1/resources/queues?namespace=n&limit=5'],
    [() => admin.getQueue('a/b'), 'GET /api/v1/resources/queues/a%2Fb'],
    [() => admin.getQueueDepth('q', 'g 1'), 'GET /api/v1/resources/queues/q/depth?group=g+1'],
    [() => admin.getQueueDepth('q'), 'GET /api/v1/resources/queues/q/depth'],
    [() => admin.getPartitions({ queue: 'q' }), 'GET /api/v1/resources/partitions?queue=q'],
    [() => admin.listMessages({ queue: 'q' }), 'GET /api/v1/messages?queue=q'],
    [() => admin.getMessage('7', 't/1'), 'GET /api/v1/messages/7/t%2F1'],
    [() => admin.deleteMessage('7', 't'), 'DELETE /api/v1/messages/7/t'],
    [() => admin.retryMessage('7', 't'), 'POST /api/v1/messages/7/t/retry {}'],
    [() => admin.getTracesByName('n 1', { limit: 1 }), 'GET /api/v1/traces/by-name/n%201?limit=1'],
    [() => admin.getTraceNames(), 'GET /api/v1/traces/names'],
    [() => admin.getTracesForMessage('7', 't'), 'GET /api/v1/traces/7/t'],
    [() => admin.getStatus({ from: 'x' }), 'GET /api/v1/status?from=x'],
    [() => admin.getQueueStats(), 'GET /api/v1/status/queues'],
    [() => admin.getQueueDetail('q', { includePartitions: true }), 'GET /api/v1/status/queues/q?includePartitions=true'],
    [() => admin.getAnalytics(), 'GET /api/v1/status/analytics'],
    [() => admin.listConsumerGroups(), 'GET /api/v1/consumer-groups'],
    [() => admin.getConsumerGroup('g/1'), 'GET /api/v1/consumer-groups/g%2F1'],
    [() => admin.getLaggingConsumers(), 'GET /api/v1/consumer-groups/lagging?minLagSeconds=60'],
    [() => admin.refreshConsumerStats(), 'POST /api/v1/stats/refresh {}'],
    [() => admin.deleteConsumerGroupForQueue('g', 'q'), 'DELETE /api/v1/consumer-groups/g/queues/q?deleteMetadata=true'],
    [() => admin.deleteConsumerGroupForQueue('g', 'q', false), 'DELETE /api/v1/consumer-groups/g/queues/q?deleteMetadata=false'],
    [() => admin.seekConsumerGroup('g', 'q', { toEnd: true }), 'POST /api/v1/consumer-groups/g/queues/q/seek {"toEnd":true}'],
    [() => admin.health(), 'GET /health'],
    [() => admin.metrics(), 'GET /metrics'],
    [() => admin.getSystemMetrics({ from: 'x' }), 'GET /api/v1/analytics/system-metrics?from=x'],
    [() => admin.getWorkerMetrics(), 'GET /api/v1/analytics/worker-metrics'],
    [() => queen.deleteConsumerGroup('g/1'), 'DELETE /api/v1/consumer-groups/g%2F1?deleteMetadata=true'],
    [() => queen.deleteConsumerGroup('g', false), 'DELETE /api/v1/consumer-groups/g?deleteMetadata=false'],
    [() => queen.updateConsumerGroupTimestamp('g', '2031-01-01T00:00:00Z'), 'POST /api/v1/consumer-groups/g/subscription {"subscriptionTimestamp":"2031-01-01T00:00:00Z"}'],
  ];
  for (const [call, expected] of calls) {
    await call();
    const { method, url, text } = server.last;
    assert.equal(`${method} ${url}${text === '' ? '' : ` ${text}`}`, expected);
  }
  const count = server.requests.length;
  await assert.rejects(admin.moveMessageToDLQ('7', 't'), /status 'dlq'/);
  await assert.rejects(admin.clearQueue('q'), /seek/);
  assert.equal(server.requests.length, count);
});

test('every public name is there', () => {
  const names = [
    'Admin', 'BUFFER_DEFAULTS', 'CLIENT_DEFAULTS', 'CONFLATION_UNSUPPORTED', 'CONSUME_DEFAULTS', 'EPHEMERAL_QUEUE_NOT_FOUND', 'EPHEMERAL_UNSUPPORTED',
    'Ephemeral', 'LOCK_NOT_HELD', 'Lock', 'Locks', 'POP_DEFAULTS', 'QUEUE_DEFAULTS', 'Queen', 'Stream', 'slidingWindowGate', 'tokenBucketGate',
  ];
  assert.deepEqual(Object.keys(sdk).sort(), names);
  assert.equal(sdk.CLIENT_DEFAULTS.timeoutMillis, 30000);
  assert.equal(sdk.POP_DEFAULTS.wait, true);
});

test('index.d.ts declares every public name', async (t) => {
  const { queen } = await start(t);
  const text = readFileSync(new URL('../index.d.ts', import.meta.url), 'utf8');
  const declared = (name) => assert.match(text, new RegExp(`\\b${name}\\b`), name);
  Object.keys(sdk).forEach(declared);
  const lock = queen.lock('l', { ttl: '1s' });
  const transaction = queen.transaction();
  const objects = [queen, queen.queue('q'), queen.queue('q').dlq(), transaction, transaction.kv, queen.kv, queen.locks, queen.admin, queen.ephemeral, lock, queen.timer('q')];
  for (const object of objects) {
    const names = new Set();
    for (let level = object; level !== Object.prototype; level = Object.getPrototypeOf(level)) Object.getOwnPropertyNames(level).forEach((name) => names.add(name));
    names.delete('constructor');
    for (const name of names) if (!name.startsWith('_')) declared(name);
  }
  for (const defaults of [sdk.CLIENT_DEFAULTS, sdk.QUEUE_DEFAULTS, sdk.BUFFER_DEFAULTS]) Object.keys(defaults).forEach(declared);
});

test('what is left out says so', async (t) => {
  const { server, queen } = await start(t);
  assert.throws(() => sdk.Stream.from(queen.queue('q')), /not part of this client/);
  assert.throws(() => sdk.tokenBucketGate({}), /not part of this client/);
  assert.throws(() => sdk.slidingWindowGate({}), /not part of this client/);
  assert.throws(() => queen.stream('s', 'n'), /not part of this client/);
  assert.throws(() => queen.consumer('s', 'g'), /not part of this client/);
  for (const call of ['configure', 'reset', 'delete', 'push', 'pop', 'ack', 'queues', 'depth', 'flush']) {
    await assert.rejects(queen.ephemeral[call]('q'), { code: sdk.EPHEMERAL_UNSUPPORTED });
  }
  assert.equal(server.requests.length, 0);
});

test('the getters build their object once; many clients share one pair of signal handlers', async (t) => {
  const { queen } = await start(t);
  for (const name of ['kv', 'locks', 'admin', 'ephemeral']) assert.equal(queen[name], queen[name]);
  const before = process.listenerCount('SIGTERM');
  const clients = Array.from({ length: 20 }, () => new sdk.Queen('http://127.0.0.1:1'));
  assert.equal(process.listenerCount('SIGTERM'), before + 1);
  clients[0].disableGracefulShutdown();
  assert.equal(process.listenerCount('SIGTERM'), before + 1);
  for (const client of clients) await client.close();
  assert.equal(process.listenerCount('SIGTERM'), before);
  queen.enableGracefulShutdown();
  assert.equal(process.listenerCount('SIGTERM'), before + 1);
  queen.disableGracefulShutdown();
  assert.equal(process.listenerCount('SIGTERM'), before);
});

const PROGRAM = `
  import { Queen } from ${JSON.stringify(fileURLToPath(new URL('../index.js', import.meta.url)))};
  const queen = new Queen(process.argv[1]);
  await queen.queue('other').buffer().push({ data: 'waits' });
  await queen.queue('q').each().consume(async ({ data }) => {
    console.log('began ' + data.id);
    await new Promise((resolve) => setTimeout(resolve, Number(process.argv[2])));
  });
`;

async function program(t, workMillis) {
  let first = true;
  const server = await ScriptedServer.start([], (request) => {
    if (request.path.startsWith('/api/v1/ack')) return honoured(request);
    if (request.path === '/api/v1/push') return { status: 201, body: [{ status: 'queued' }] };
    const answer = first ? popped(message(1), message(2), message(3)) : { hang: true };
    first = false;
    return answer;
  });
  const child = spawn(process.execPath, ['--input-type=module', '-e', PROGRAM, server.url, String(workMillis)], { stdio: ['ignore', 'pipe', 'inherit'] });
  t.after(async () => {
    child.kill('SIGKILL');
    await server.stop();
  });
  await once(child.stdout, 'data');
  return { server, child };
}

test('SIGTERM during consume: the running handler ends, the rest goes back with retry, buffers are sent, exit 0', async (t) => {
  const { server, child } = await program(t, 300);
  child.kill('SIGTERM');
  const [code] = await once(child, 'exit');
  assert.equal(code, 0);
  const acks = server.requests.filter(({ path }) => path.startsWith('/api/v1/ack')).flatMap(({ json }) => (json.acknowledgments ?? [json]).map(({ transactionId, status }) => `${transactionId} ${status}`));
  assert.deepEqual(acks, ['t-1 completed', 't-2 retry', 't-3 retry']);
  assert.equal(server.last.path, '/api/v1/push');
});

test('a second signal ends the process at once with 1', async (t) => {
  const { child } = await program(t, 60000);
  child.kill('SIGTERM');
  await new Promise((resolve) => setTimeout(resolve, 200));
  child.kill('SIGINT');
  const [code] = await once(child, 'exit');
  assert.equal(code, 1);
  await until(() => child.exitCode === 1);
});
