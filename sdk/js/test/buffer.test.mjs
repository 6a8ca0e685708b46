/* Buffered pushes: thresholds, back-pressure, failures, close. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { until } from './support/clock.mjs';
import { start } from './support/kit.mjs';

const accept = ({ json }) => ({ status: 201, body: json.items.map((_, index) => ({ index, status: 'queued' })) });
const sizes = (server) => server.requests.map(({ json }) => json.items.length);

test('items wait for timeMillis, then travel together as an ordinary push', async (t) => {
  const { server, clock, queen } = await start(t, [], { fallback: accept });
  const buffered = queen.queue('q').partition('p').buffer({ messageCount: 10, timeMillis: 400 });
  assert.deepEqual(await buffered.push([{ data: 1 }, { data: 2 }]), { buffered: true, count: 2 });
  await buffered.push({ data: 3 });
  clock.advance(100);
  assert.equal(server.requests.length, 0);
  assert.deepEqual(queen.getBufferStats(), { activeBuffers: 1, totalBufferedMessages: 3, oldestBufferAge: 100, flushesPerformed: 0 });
  clock.advance(300);
  await until(() => server.requests.length === 1);
  assert.equal(server.last.path, '/api/v1/push');
  assert.deepEqual(server.last.json.items.map(({ partition, payload }) => [partition, payload]), [['p', 1], ['p', 2], ['p', 3]]);
  await until(() => queen.getBufferStats().activeBuffers === 0);
  assert.equal(queen.getBufferStats().flushesPerformed, 1);
});

test('messageCount items are sent at once, in batches, one at a time', async (t) => {
  let open = 0;
  const { server, queen } = await start(t, [], {
    fallback: async (request) => {
      open += 1;
      assert.equal(open, 1);
      await new Promise((resolve) => setTimeout(resolve, 5));
      open -= 1;
      return accept(request);
    },
  });
  await queen.queue('q').buffer({ messageCount: 2, maxSize: 100 }).push(Array.from({ length: 7 }, (_, data) => ({ data })));
  await until(() => server.requests.length === 3);
  await queen.queue('q').flushBuffer();
  assert.deepEqual(sizes(server), [2, 2, 2, 1]);
  assert.deepEqual(server.requests.flatMap(({ json }) => json.items.map(({ payload }) => payload)), [0, 1, 2, 3, 4, 5, 6]);
});

test('maxSize makes the push wait until a batch was sent', async (t) => {
  let release;
  const gate = new Promise((resolve) => {
    release = resolve;
  });
  const { server, queen } = await start(t, [async (request) => (await gate, accept(request))], { fallback: accept });
  let done = false;
  const push = queen.queue('q').buffer({ messageCount: 2, maxSize: 2 }).push(Array.from({ length: 6 }, (_, data) => ({ data }))).then(() => {
    done = true;
  });
  await until(() => server.requests.length === 1);
  await new Promise((resolve) => setTimeout(resolve, 20));
  assert.ok(!done);
  assert.ok(queen.getBufferStats().totalBufferedMessages <= 2);
  release();
  await push;
  await queen.flushAllBuffers();
  assert.deepEqual(sizes(server), [2, 2, 2]);
});

test('a batch that could not be sent goes first again after retryDelayMillis, the same bytes', async (t) => {
  const { server, clock, queen } = await start(t, [{ status: 500, body: { error: 'x' } }], { fallback: accept, retryAttempts: 1 });
  await queen.queue('q').buffer({ messageCount: 2, retryDelayMillis: 33 }).push([{ data: 1 }, { data: 2 }]);
  await until(() => server.requests.length === 1);
  await clock.pass(33);
  await until(() => server.requests.length === 2);
  assert.equal(server.requests[1].text, server.requests[0].text);
});

test('what the broker will never take is dropped and reported, the rest goes on', async (t) => {
  const reports = [];
  const onError = (items, error) => reports.push([items.map(({ payload }) => payload), error.message]);
  const { server, queen } = await start(t, [
    { status: 413, body: { error: 'too large' } },
    { status: 201, body: [{ status: 'error' }, { status: 'duplicate' }] },
  ]);
  await queen.queue('q').buffer({ messageCount: 2, onError }).push([1, 2, 3, 4].map((data) => ({ data })));
  await queen.flushAllBuffers();
  assert.equal(server.requests.length, 2);
  assert.deepEqual(reports, [[[1, 2], 'too large'], [[3], 'push rejected by the broker (item status: "error")']]);
});

test('partitions have buffers of their own', async (t) => {
  const { server, queen } = await start(t, [], { fallback: accept });
  for (const p of ['a', 'b']) await queen.queue('q').partition(p).buffer().push({ data: p });
  assert.equal(queen.getBufferStats().activeBuffers, 2);
  await queen.queue('q').partition('a').flushBuffer();
  assert.deepEqual(server.requests.map(({ json }) => json.items[0].partition), ['a']);
});

test('close sends what waits; afterwards a buffered push rejects', async (t) => {
  const { server, queen } = await start(t, [], { fallback: accept });
  await queen.queue('q').buffer().push({ data: 1 });
  await queen.close();
  assert.deepEqual(sizes(server), [1]);
  await assert.rejects(Promise.resolve(queen.queue('q').buffer().push({ data: 1 })), /closed/);
});

test('close gives up after thirty seconds and says what it dropped', async (t) => {
  const lines = [];
  const logger = { info() {}, warn() {}, error: (line) => lines.push(line) };
  const { clock, queen } = await start(t, [], { fallback: { status: 500, body: { error: 'x' } }, retryAttempts: 1, logger });
  await queen.queue('q').buffer().push([{ data: 1 }, { data: 2 }]);
  const closed = queen.close();
  await clock.pass(250);
  await until(() => clock.pending.includes(250));
  clock.advance(30000);
  await closed;
  assert.ok(lines.some((line) => line.includes('buffer.dropped') && line.includes('"count":2')), lines.join('\n'));
});
