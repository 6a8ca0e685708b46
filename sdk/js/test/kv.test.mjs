/* kv: the exact operations on the wire, expiry, conditions, verdicts. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { start } from './support/kit.mjs';

const applied = (more = {}) => ({ body: { results: [{ index: 0, op: 'put', key: 'k', applied: true, version: 1, ...more }] } });

/** The operation a call sends. */
async function sent(t, call, result = applied()) {
  const { server, queen } = await start(t, [result]);
  await call(queen.kv, queen);
  assert.equal(`${server.last.method} ${server.last.url}`, 'POST /api/v1/kv');
  assert.equal(server.last.json.operations.length, 1);
  return server.last.json.operations[0];
}

test('reads on the wire', async (t) => {
  assert.deepEqual(await sent(t, (kv) => kv.get('n', 'k')), { op: 'get', ns: 'n', key: 'k' });
  assert.deepEqual(await sent(t, (kv) => kv.getMany('n', ['a', 'b'])), { op: 'getMany', ns: 'n', keys: ['a', 'b'] });
  assert.deepEqual(await sent(t, (kv) => kv.getPrefix('n', 'p/')), { op: 'getPrefix', ns: 'n', prefix: 'p/' });
  assert.deepEqual(await sent(t, (kv) => kv.getPrefix('n', 'p/', { limit: 2, after: 'p/1', keysOnly: true })), {
    op: 'getPrefix', ns: 'n', prefix: 'p/', limit: 2, after: 'p/1', keysOnly: true,
  });
});

test('a found null is a value, a miss is a row', async (t) => {
  const { queen } = await start(t, [{ body: { results: [{ found: true, key: 'k', value: null, version: 3 }] } }, { body: { results: [{ found: false, key: 'k' }] } }]);
  assert.deepEqual(await queen.kv.get('n', 'k'), { found: true, key: 'k', value: null, version: 3 });
  assert.equal((await queen.kv.get('n', 'k')).found, false);
});

test('listAll follows the cursor to the last page', async (t) => {
  const page = (rows, more) => ({ body: { results: [{ rows: rows.map((key) => ({ key })), ...more }] } });
  const { server, queen } = await start(t, [page(['a', 'b'], { truncated: true, nextAfter: 'b' }), page(['c'], { truncated: false })]);
  const keys = [];
  for await (const { key } of queen.kv.listAll('n', 'p', { limit: 2 })) keys.push(key);
  assert.deepEqual(keys, ['a', 'b', 'c']);
  assert.deepEqual(server.requests.map(({ json }) => json.operations[0].after), [undefined, 'b']);
});

test('expiry: one spelling becomes ttlSeconds, rounded up; forever and nothing travel as they are', async (t) => {
  const put = (options) => sent(t, (kv) => kv.put('n', 'k', 1, options));
  const base = { op: 'put', ns: 'n', key: 'k', value: 1 };
  assert.deepEqual(await put({ ttlSeconds: 5 }), { ...base, ttlSeconds: 5 });
  assert.deepEqual(await put({ ttl: '1.2s' }), { ...base, ttlSeconds: 2 });
  assert.deepEqual(await put({ ttl: '30d' }), { ...base, ttlSeconds: 2592000 });
  assert.deepEqual(await put({ until: '2031-02-03T04:05:07.500Z' }), { ...base, ttlSeconds: 2 });
  assert.deepEqual(await put({ until: new Date('2031-02-03T05:05:06Z') }), { ...base, ttlSeconds: 3600 });
  assert.deepEqual(await put({ until: Date.parse('2031-02-03T04:05:07Z') }), { ...base, ttlSeconds: 1 });
  assert.deepEqual(await put({ forever: true }), { ...base, forever: true });
  assert.deepEqual(await put({ ttlSeconds: 5, forever: true }), { ...base, ttlSeconds: 5, forever: true });
  assert.deepEqual(await put({}), base);
});

test('expect and required', async (t) => {
  const base = { op: 'put', ns: 'n', key: 'k', value: null };
  assert.deepEqual(await sent(t, (kv) => kv.put('n', 'k', null, { expect: 0, required: true })), { ...base, expect: 0, required: true });
  assert.deepEqual(await sent(t, (kv) => kv.put('n', 'k', null, { required: false })), base);
  assert.deepEqual(await sent(t, (kv) => kv.delete('n', 'k', { expect: 7 })), { op: 'delete', ns: 'n', key: 'k', expect: 7 });
  assert.deepEqual(await sent(t, (kv) => kv.delete('n', 'k')), { op: 'delete', ns: 'n', key: 'k' });
});

test('putIfAbsent, incr, check and once on the wire', async (t) => {
  assert.deepEqual(await sent(t, (kv) => kv.putIfAbsent('n', 'k', 2, { ttl: '1m' })), { op: 'putIfAbsent', ns: 'n', key: 'k', value: 2, ttlSeconds: 60 });
  assert.deepEqual(await sent(t, (kv) => kv.incr('n', 'k')), { op: 'incr', ns: 'n', key: 'k', delta: 1 });
  assert.deepEqual(await sent(t, (kv) => kv.incr('n', 'k', -2, { min: 0, max: 9, ttl: '1h', required: true })), {
    op: 'incr', ns: 'n', key: 'k', delta: -2, min: 0, max: 9, required: true, ttlSeconds: 3600,
  });
  assert.deepEqual(await sent(t, (kv) => kv.check('n', 'k', { expect: 0 })), { op: 'check', ns: 'n', key: 'k', expect: 0 });
  assert.deepEqual(await sent(t, (kv) => kv.once('n', 'k', { ttl: '1m' })), { op: 'putIfAbsent', ns: 'n', key: 'k', value: true, ttlSeconds: 60 });
  assert.deepEqual(await sent(t, (kv) => kv.once('n', 'k', { value: { by: 'me' }, forever: true })), { op: 'putIfAbsent', ns: 'n', key: 'k', value: { by: 'me' }, forever: true });
});

test('once tells who won', async (t) => {
  const { queen } = await start(t, [applied({ value: true }), applied({ applied: false, reason: 'exists', value: { by: 'other' }, version: 9 })]);
  assert.equal((await queen.kv.once('n', 'k', { ttl: '1m' })).won, true);
  const lost = await queen.kv.once('n', 'k', { ttl: '1m' });
  assert.deepEqual([lost.won, lost.value, lost.version, lost.result.reason], [false, { by: 'other' }, 9, 'exists']);
});

test('a lost required operation is a verdict', async (t) => {
  const { queen } = await start(t, [{ body: { ok: false, reason: 'kv_precondition', failedIndex: 0, kvReason: 'exists', version: 4, value: 'theirs' } }]);
  assert.deepEqual(await queen.kv.putIfAbsent('n', 'k', 1, { ttl: '1m', required: true }), {
    op: 'putIfAbsent', key: 'k', applied: false, precondition: true, reason: 'exists', value: 'theirs', version: 4, failedIndex: 0,
  });
});

test('what the client refuses never travels', async (t) => {
  const { server, queen } = await start(t);
  const { kv } = queen;
  const refused = [
    () => kv.get('', 'k'), () => kv.get('n', ''), () => kv.get('n', 7), () => kv.getMany('n', 'k'), () => kv.getPrefix('n', ''),
    () => kv.put('n', 'k', undefined), () => kv.put('n', 'k', 1, { expect: undefined }), () => kv.put('n', 'k', 1, { expect: null }),
    () => kv.put('n', 'k', 1, { ttl: '1m', ttlSeconds: 3 }), () => kv.put('n', 'k', 1, { ttl: '1m', until: '2099-01-01T00:00:00Z' }),
    () => kv.put('n', 'k', 1, { until: '2031-02-03T04:05:06Z' }), () => kv.put('n', 'k', 1, { until: 'soon' }), () => kv.put('n', 'k', 1, { forever: 1 }),
    () => kv.put('n', 'k', 1, { ttl: 60 }), () => kv.put('n', 'k', 1, { ttlSeconds: '60' }), () => kv.putIfAbsent('n', 'k', 1, { expect: 1 }),
    () => kv.incr('n', 'k', 1, { expect: 1 }), () => kv.incr('n', 'k', '1'), () => kv.incr('n', 'k', 2 ** 54), () => kv.check('n', 'k'), () => kv.check('n', 'k', { expect: null }),
  ];
  for (const call of refused) await assert.rejects(call(), Error, String(call));
  assert.equal(server.requests.length, 0);
});

test('answers that do not fit fail', async (t) => {
  const { queen } = await start(t, [{ body: { results: [] } }, { body: {} }, { body: { results: [{ index: 0, version: 1 }] } }, applied({ value: 2 ** 60 })]);
  await assert.rejects(queen.kv.get('n', 'k'), /1 KV operation sent, 0 answered/);
  await assert.rejects(queen.kv.get('n', 'k'), /none answered/);
  await assert.rejects(queen.kv.put('n', 'k', 1), /whether it was applied/);
  await assert.rejects(queen.kv.incr('n', 'k'), /beyond 2\^53/);
});

test('an error has the machine code', async (t) => {
  const { queen } = await start(t, [{ status: 400, body: { error: 'kv_bad_request', reason: 'kv_ttl_required' } }, { status: 413, body: { error: 'too much', code: 'kv_too_large' } }]);
  await assert.rejects(queen.kv.get('n', 'k'), { status: 400, code: 'kv_bad_request' });
  await assert.rejects(queen.kv.get('n', 'k'), { status: 413, code: 'kv_too_large', message: 'too much' });
});
