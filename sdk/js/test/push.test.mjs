/* push(): what travels, when it starts, and what the broker's answer means to the program. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { Queen } from '../index.js';
import { start, UUID7 } from './support/kit.mjs';

const pushed = (...statuses) => ({ status: 201, body: statuses.map((status, index) => (typeof status === 'string' ? { index, status } : { index, ...status })) });

test('items travel with queue, partition, payload, id and trace', async (t) => {
  const { server, queen } = await start(t, [pushed('queued', 'queued', 'queued', 'queued')]);
  const v4 = '7f0c2f4e-36a5-4c37-8f6e-0d8a52b1c111';
  await queen.queue('orders').partition('customer-42').push([
    { data: { orderId: 1 }, transactionId: 'own', traceId: v4, note: 'stays here' },
    { payload: null },
    { data: undefined, payload: 'not this one' },
    { bare: true, traceId: 'no-uuid' },
  ]);
  const { items } = server.last.json;
  assert.deepEqual(items[0], { queue: 'orders', partition: 'customer-42', payload: { orderId: 1 }, transactionId: 'own', traceId: v4 });
  assert.equal(items[1].payload, null);
  assert.equal(items[2].payload, null);
  assert.deepEqual(items[3].payload, { bare: true, traceId: 'no-uuid' });
  for (const item of items.slice(1)) {
    assert.match(item.transactionId, UUID7);
    assert.ok(!('traceId' in item));
  }
});

test('an item without a partition goes to Default; any UUID is a trace id', async (t) => {
  const { server, queen } = await start(t, [pushed('queued')]);
  const traceId = '01985f0e-7c53-7a4f-9f80-3f2e7d1f0a11';
  await queen.queue('q').push({ data: 1, traceId });
  assert.equal(server.last.json.items[0].partition, 'Default');
  assert.equal(server.last.json.items[0].traceId, traceId);
});

test('nothing is sent before the await, and awaiting twice sends once', async (t) => {
  const { server, queen } = await start(t, [pushed('queued')]);
  const operation = queen.queue('q').push({ data: 1 });
  await new Promise((resolve) => setTimeout(resolve, 30));
  assert.equal(server.requests.length, 0);
  const first = await operation;
  assert.deepEqual(first, [{ index: 0, status: 'queued' }]);
  assert.equal(await operation, first);
  assert.equal(server.requests.length, 1);
});

test('catch and finally start it too', async (t) => {
  const { queen } = await start(t, [{ status: 400, body: { error: 'bad' } }, pushed('queued')]);
  let ended = false;
  assert.equal(await queen.queue('q').push({ data: 1 }).catch((error) => error.status), 400);
  await queen.queue('q').push({ data: 1 }).finally(() => {
    ended = true;
  });
  assert.ok(ended);
});

test('ids are minted by push() itself and increase', async (t) => {
  const { server, queen } = await start(t, [], { fallback: pushed('queued', 'queued', 'queued') });
  const first = queen.queue('q').push([{ data: 1 }, { data: 2 }, { data: 3 }]);
  const second = queen.queue('q').push([{ data: 4 }]);
  await second.catch(() => {});
  await first;
  const ids = [...server.requests[1].json.items, ...server.requests[0].json.items].map(({ transactionId }) => transactionId);
  assert.deepEqual([...ids].sort(), ids);
  assert.equal(new Set(ids).size, 4);
});

test('no queue name and primitive items are refused at once; [] is sent', async (t) => {
  const { server, queen } = await start(t, [{ status: 201, body: [] }]);
  assert.throws(() => queen.queue().push({ data: 1 }), /Queue name is required/);
  for (const item of [1, 'x', null]) assert.throws(() => queen.queue('q').push(item), TypeError);
  assert.deepEqual(await queen.queue('q').push([]), []);
  assert.equal(server.last.text, '{"items":[]}');
});

test('queued, buffered and duplicate are accepted, each callback gets its items', async (t) => {
  const { queen } = await start(t, [pushed('queued', 'duplicate', 'buffered')]);
  const told = [];
  const answer = await queen
    .queue('q')
    .push([{ data: 'a' }, { data: 'b', transactionId: 'x' }, { data: 'c' }])
    .onSuccess((items) => told.push(['success', items.map(({ payload }) => payload)]))
    .onDuplicate((items, error) => told.push(['duplicate', items.map(({ payload, result }) => [payload, result.status]), error.message]))
    .onError(() => told.push(['error']));
  assert.equal(answer.length, 3);
  assert.deepEqual(told, [
    ['duplicate', [['b', 'duplicate']], 'Duplicate transaction IDs detected'],
    ['success', ['a', 'c']],
  ]);
});

test('a refused item rejects with the results', async (t) => {
  const { queen } = await start(t, [pushed('error'), pushed({ status: 'failed', error: 'disk full' }), pushed({}), pushed('error', { status: 'failed', error: 'x' }, 'queued')]);
  const push = (...items) => Promise.resolve(queen.queue('q').push(items.map((data) => ({ data }))));
  await assert.rejects(push(1), (error) => /item status: "error"/.test(error.message) && error.results[0].status === 'error');
  await assert.rejects(push(1), { message: 'disk full' });
  await assert.rejects(push(1), /push rejected by the broker/);
  await assert.rejects(push(1, 2, 3), /^Error: 2 of 3 pushed items rejected: push rejected by the broker \(item status: "error"\)$/);
});

test('onError takes refused items, the others reach onSuccess, the call resolves', async (t) => {
  const { queen } = await start(t, [pushed('error', 'queued')]);
  const told = [];
  const answer = await queen
    .queue('q')
    .push([{ data: 'a' }, { data: 'b' }])
    .onError((items, error) => told.push(['error', items.map(({ payload, error: text }) => [payload, text]), error.results.length]))
    .onSuccess((items) => told.push(['success', items[0].payload]));
  assert.equal(answer.length, 2);
  assert.deepEqual(told, [['error', [['a', 'push rejected by the broker (item status: "error")']], 2], ['success', 'b']]);
});

test('a failed request: onError gets all items and the call resolves null', async (t) => {
  const { queen } = await start(t, [{ status: 400, body: { error: 'bad' } }]);
  let told;
  const answer = await queen.queue('q').push([{ data: 1 }, { data: 2 }]).onError((items, error) => {
    told = [items.length, error.status];
  });
  assert.equal(answer, null);
  assert.deepEqual(told, [2, 400]);
});

test('a body that is no array speaks for all', async (t) => {
  const { queen } = await start(t, [{ status: 200, body: { error: 'no' } }, { status: 200, body: { fine: true } }]);
  await assert.rejects(Promise.resolve(queen.queue('q').push({ data: 1 })), { message: 'no' });
  let stored = 0;
  await queen.queue('q').push({ data: 1 }).onSuccess((items) => {
    stored = items.length;
  });
  assert.equal(stored, 1);
});

test('a duplicate made by the push\'s own retry is a success; of a caller\'s id it stays a duplicate', async (t) => {
  const { clock, queen } = await start(t, [{ drop: true }, pushed('duplicate', 'duplicate')]);
  const told = [];
  const push = queen
    .queue('q')
    .push([{ data: 'minted' }, { data: 'own', transactionId: 'x' }])
    .onSuccess((items) => told.push(['success', items.map(({ payload }) => payload)]))
    .onDuplicate((items) => told.push(['duplicate', items.map(({ payload }) => payload)]))
    .then((answer) => answer);
  await clock.pass(1000);
  assert.deepEqual((await push).map(({ status }) => status), ['duplicate', 'duplicate']);
  assert.deepEqual(told, [['duplicate', ['own']], ['success', ['minted']]]);
});

test('a callback that throws reaches onError with all items', async (t) => {
  const { queen } = await start(t, [pushed('queued'), pushed('queued')]);
  let told;
  const boom = () => {
    throw new Error('boom');
  };
  assert.equal(await queen.queue('q').push({ data: 1 }).onSuccess(boom).onError((items, error) => {
    told = [items.length, error.message];
  }), null);
  assert.deepEqual(told, [1, 'boom']);
  await assert.rejects(Promise.resolve(queen.queue('q').push({ data: 1 }).onSuccess(boom)), { message: 'boom' });
});

test('create sends every option, config() replaces some, delete is encoded', async (t) => {
  const { server, queen } = await start(t, [{ body: { configured: true } }, { body: { configured: true } }, { body: { deleted: true } }]);
  await queen.queue('orders').create();
  assert.equal(server.last.path, '/api/v1/configure');
  assert.equal(
    server.last.text,
    '{"queue":"orders","namespace":null,"task":null,"options":{"leaseTime":300,"retryLimit":3,"priority":0,"delayedProcessing":0,' +
      '"windowBuffer":0,"maxSize":0,"retentionSeconds":0,"completedRetentionSeconds":0,"encryptionEnabled":false}}',
  );
  await queen.queue('orders').namespace('n').task('t').config({ leaseTime: 10, dedupWindowSeconds: 60 }).create();
  assert.deepEqual(server.last.json, {
    queue: 'orders', namespace: 'n', task: 't',
    options: { leaseTime: 10, retryLimit: 3, priority: 0, delayedProcessing: 0, windowBuffer: 0, maxSize: 0, retentionSeconds: 0, completedRetentionSeconds: 0, encryptionEnabled: false, dedupWindowSeconds: 60 },
  });
  assert.deepEqual(await queen.queue('a/b').delete(), { deleted: true });
  assert.equal(`${server.last.method} ${server.last.url}`, 'DELETE /api/v1/resources/queues/a%2Fb');
});

test('create: an error in a 2xx body fails; onError takes it', async (t) => {
  const { queen } = await start(t, [{ body: { error: 'no' } }, { body: { error: 'no' } }]);
  await assert.rejects(Promise.resolve(queen.queue('q').create()), { message: 'no' });
  let told;
  assert.deepEqual(await queen.queue('q').create().onError((error) => {
    told = error.message;
  }), { success: false, error: 'no' });
  assert.equal(told, 'no');
});

test('the constructor checks what it is given', () => {
  const make = (config) => () => new Queen(config);
  assert.throws(make({}), /Must provide urls or url in configuration/);
  assert.throws(make(undefined), /Must provide urls or url/);
  assert.throws(make({ urls: [] }), /non-empty array/);
  assert.throws(make('ftp://x'), /Invalid URL: ftp:\/\/x/);
  assert.throws(make([7]), /Invalid URL: 7/);
  assert.throws(make({ url: 'http://x', logger: { warn() {}, error() {} } }), /Invalid logger/);
  assert.throws(make({ url: 'http://x', loadBalancingStrategy: 'best' }), /Invalid loadBalancingStrategy/);
  for (const config of ['http://x', ['http://x', 'https://y'], { url: 'http://x' }, { urls: ['http://x'], url: 'not read' }]) {
    const queen = new Queen(config);
    queen.disableGracefulShutdown();
  }
});
