/* pop() and dlq(): path and query on the wire, what is hidden, conflation. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { CONFLATION_UNSUPPORTED } from '../index.js';
import { until } from './support/clock.mjs';
import { client, EMPTY, message, popped, start } from './support/kit.mjs';
import { ScriptedServer } from './support/server.mjs';

async function urlOf(t, build) {
  const { server, queen } = await start(t, [], { fallback: EMPTY });
  await build(queen).pop();
  assert.equal(server.requests.length, 1);
  assert.equal(server.last.method, 'GET');
  return server.last.url;
}

const CASES = [
  ['plain', (q) => q.queue('q'), '/api/v1/pop/queue/q?autopilot=true&wait=true&timeout=30000'],
  ['batch pinned', (q) => q.queue('q').batch(5), '/api/v1/pop/queue/q?autopilot=true&batch=5&wait=true&timeout=30000'],
  ['partitions pinned to one', (q) => q.queue('q').partitions(1), '/api/v1/pop/queue/q?autopilot=true&wait=true&timeout=30000&partitions=1'],
  ['both pinned', (q) => q.queue('q').batch(5).partitions(3), '/api/v1/pop/queue/q?batch=5&wait=true&timeout=30000&partitions=3'],
  ['both pinned, one partition', (q) => q.queue('q').batch(5).partitions(1), '/api/v1/pop/queue/q?batch=5&wait=true&timeout=30000'],
  ['autopilot off', (q) => q.queue('q').autopilot(false), '/api/v1/pop/queue/q?batch=1&wait=true&timeout=30000'],
  ['pins taken back', (q) => q.queue('q').batch(5).batch(0).partitions(2).partitions(-1), '/api/v1/pop/queue/q?autopilot=true&wait=true&timeout=30000'],
  ['no wait', (q) => q.queue('q').wait(false).timeoutMillis(0), '/api/v1/pop/queue/q?autopilot=true&wait=false&timeout=1'],
  ['a partition', (q) => q.queue('q').partition('p1'), '/api/v1/pop/queue/q/partition/p1?autopilot=true&wait=true&timeout=30000'],
  ['Default is any partition', (q) => q.queue('q').partition('Default'), '/api/v1/pop/queue/q?autopilot=true&wait=true&timeout=30000'],
  ['names are encoded', (q) => q.queue('a/b?c#d%').partition('ü x'), '/api/v1/pop/queue/a%2Fb%3Fc%23d%25/partition/%C3%BC%20x?autopilot=true&wait=true&timeout=30000'],
  ['a name of dots', (q) => q.queue('..'), '/api/v1/pop/queue/%2E%2E?autopilot=true&wait=true&timeout=30000'],
  [
    'a group and where it begins',
    (q) => q.queue('q').group('g').subscriptionMode('new').subscriptionFrom('now'),
    '/api/v1/pop/queue/q?autopilot=true&wait=true&timeout=30000&consumerGroup=g&subscriptionMode=new&subscriptionFrom=now',
  ],
  [
    'by namespace and task',
    (q) => q.queue().namespace('n').task('t').group('g').subscriptionMode('all'),
    '/api/v1/pop?autopilot=true&wait=true&timeout=30000&consumerGroup=g&namespace=n&task=t&subscriptionMode=all',
  ],
];

for (const [name, build, expected] of CASES) {
  test(`pop on the wire: ${name}`, async (t) => {
    assert.equal(await urlOf(t, build), expected);
  });
}

test('autoAck never reaches the wire of a pop', async (t) => {
  for (const on of [true, false]) assert.ok(!(await urlOf(t, (q) => q.queue('q').autoAck(on))).includes('utoAck'));
});

test('QUEEN_SDK_POP_AUTOPILOT switches autopilot off for clients made then', async (t) => {
  t.after(() => delete process.env.QUEEN_SDK_POP_AUTOPILOT);
  for (const [value, off] of [[' OFF ', true], ['0', true], ['No', true], ['disabled', true], ['false', true], ['1', false], ['', false]]) {
    process.env.QUEEN_SDK_POP_AUTOPILOT = value;
    const { server, queen } = await start(t, [], { fallback: EMPTY });
    assert.equal(queen.autopilotOff, off, JSON.stringify(value));
    await queen.queue('q').pop();
    assert.equal(server.last.query.autopilot, off ? undefined : 'true');
    assert.equal(server.last.query.batch, off ? '1' : undefined);
  }
});

test('pop gives the broker\'s messages as they are, popResult also what was chosen', async (t) => {
  const body = { success: true, messages: [message(1), message(2)], autopilot: { partitions: 2, batch: 50 } };
  const { queen } = await start(t, [{ body }, { body }]);
  assert.deepEqual(await queen.queue('q').pop(), body.messages);
  assert.deepEqual(await queen.queue('q').popResult(), { messages: body.messages, autopilot: { partitions: 2, batch: 50 } });
});

test('pop hides errors, popResult tells', async (t) => {
  const { queen } = await start(t, [], { fallback: { status: 401, body: { error: 'who are you' } } });
  assert.deepEqual(await queen.queue('q').pop(), []);
  const { messages, error } = await queen.queue('q').popResult();
  assert.deepEqual(messages, []);
  assert.equal(error.status, 401);
  assert.match((await queen.queue().popResult()).error.message, /Must specify queue, namespace, or task/);
  assert.deepEqual(await queen.queue().pop(), []);
});

test('without a logger a hidden error is said once on the console', async (t) => {
  const warn = t.mock.method(console, 'warn', () => {});
  const server = await ScriptedServer.start([], { status: 401, body: { error: 'who are you' } });
  t.after(() => server.stop());
  const queen = client(t, { url: server.url, logger: null });
  await queen.queue('q').pop();
  await queen.queue('q').pop();
  assert.equal(warn.mock.callCount(), 1);
  assert.match(warn.mock.calls[0].arguments[0], /who are you/);
});

test('a pop waits five seconds longer than it asks the broker to', async (t) => {
  for (const wait of [true, false]) {
    const { clock, queen, server } = await start(t, [{ hang: true }], { retryAttempts: 1 });
    const pop = queen.queue('q').wait(wait).timeoutMillis(200).popResult();
    await until(() => server.requests.length === 1);
    await clock.pass(5200);
    assert.equal((await pop).error.timeout, 5200);
    assert.equal(server.last.query.timeout, '200');
  }
});

test('conflation is declared only when asked for, and its echo is required', async (t) => {
  const { server, queen } = await start(t, [
    { body: { messages: [message(1)], conflation: true } },
    { body: { messages: [], conflation: true } },
    popped(message(1)),
    EMPTY,
    { status: 400, body: { error: 'conflation needs a group' } },
  ]);
  const pop = () => queen.queue('q').group('g').conflation().pop();
  assert.equal((await pop()).length, 1);
  assert.equal(server.last.query.conflation, 'true');
  assert.deepEqual(await pop(), []);
  await assert.rejects(pop(), { code: CONFLATION_UNSUPPORTED });
  await assert.rejects(pop(), { code: CONFLATION_UNSUPPORTED });
  await assert.rejects(pop(), { status: 400 });
  assert.ok(!(await urlOf(t, (q) => q.queue('q').conflation(false))).includes('conflation'));
});

test('a conflation conflict is warned of once', async (t) => {
  const lines = [];
  const logger = { info() {}, warn: (line) => lines.push(line), error() {} };
  const { queen } = await start(t, [], { fallback: { body: { messages: [], conflationConflict: true } }, logger });
  for (let i = 0; i < 3; i++) assert.deepEqual(await queen.queue('q').group('g').conflation().pop(), []);
  assert.equal(lines.length, 1);
});

test('dlq on the wire; errors give an empty page', async (t) => {
  const page = { messages: [{ transactionId: 'x', errorMessage: 'boom' }], total: 1 };
  const { server, queen } = await start(t, [{ body: page }, { body: page }, { status: 404, body: { error: 'x' } }]);
  assert.deepEqual(await queen.queue('a b').dlq().get(), page);
  assert.equal(server.last.url, '/api/v1/dlq?queue=a+b&limit=100&offset=0');
  await queen.queue('q').partition('p').dlq('g').limit(0).offset(5).from('2031-01-01T00:00:00Z').to('2031-01-02T00:00:00Z').get();
  assert.equal(
    server.last.url,
    '/api/v1/dlq?queue=q&limit=1&offset=5&consumerGroup=g&partition=p&from=2031-01-01T00%3A00%3A00Z&to=2031-01-02T00%3A00%3A00Z',
  );
  assert.deepEqual(await queen.queue('q').dlq().get(), { messages: [], total: 0 });
});
