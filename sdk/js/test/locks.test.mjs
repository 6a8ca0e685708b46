/* Locks: operations on the wire, the handle's life, and guards in transactions. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { LOCK_NOT_HELD } from '../index.js';
import { until } from './support/clock.mjs';
import { start, to } from './support/kit.mjs';

const results = (...list) => ({ body: { results: list } });
const guardOf = (token, slot = 0) => ({ op: 'check', ns: 'queen-locks', key: `job#${slot}`, expect: token, required: true });
const granted = (token, more = {}) => results({ index: 0, op: 'acquire', name: 'job', acquired: true, slot: 0, token, owner: 'me', guard: guardOf(token), ...more });
const held = results({ index: 0, op: 'acquire', name: 'job', acquired: false, reason: 'held', holders: [] });
const renewed = (token) => results({ index: 0, op: 'renew', name: 'job', renewed: true, slot: 0, token, guard: guardOf(token) });
const lost = results({ index: 0, op: 'renew', name: 'job', renewed: false, reason: 'lost', holders: [] });
const released = results({ index: 0, op: 'release', name: 'job', released: true, slot: 0 });

const ops = (server) => to(server, '/api/v1/locks').map(({ json }) => json.operations[0]);
const MANUAL = { ttl: '30s', owner: 'me', autoRenew: false };

test('the four operations on the wire', async (t) => {
  const { server, queen } = await start(t, [granted(5), renewed(6), released, results({ held: false, holders: [] })]);
  await queen.locks.acquire('job', { ttl: '1.5s', owner: 'o#1', limit: 3 });
  await queen.locks.renew('job', { token: 5, slot: 2, ttlSeconds: 9, owner: 'me' });
  await queen.locks.release('job', { token: 6, slot: 2 });
  await queen.locks.get('job');
  assert.deepEqual(ops(server), [
    { op: 'acquire', name: 'job', ttlSeconds: 2, owner: 'o#1', limit: 3 },
    { op: 'renew', name: 'job', token: 5, ttlSeconds: 9, slot: 2, owner: 'me' },
    { op: 'release', name: 'job', token: 6, slot: 2 },
    { op: 'get', name: 'job' },
  ]);
});

test('batch: results align, flags are booleans, errors have their code', async (t) => {
  const { queen } = await start(t, [results({ held: true }, { held: false }), results({ held: true }), results({ held: 1 }), { status: 400, body: { error: 'locks_bad_request' } }]);
  const two = [{ op: 'get', name: 'a' }, { op: 'get', name: 'b' }];
  assert.equal((await queen.locks.batch(two)).length, 2);
  await assert.rejects(queen.locks.batch(two), /2 lock operations sent, 1 answered/);
  await assert.rejects(queen.locks.get('a'), /does not say 'held'/);
  await assert.rejects(queen.locks.get('a'), { code: 'locks_bad_request' });
});

test('what the client refuses never travels', async (t) => {
  const { server, queen } = await start(t);
  const name = 'job';
  for (const call of [
    () => queen.locks.acquire('', { ttl: '1s' }), () => queen.locks.acquire('a#b', { ttl: '1s' }), () => queen.locks.acquire('a\nb', { ttl: '1s' }),
    () => queen.locks.acquire('é'.repeat(129), { ttl: '1s' }), () => queen.locks.acquire(name, {}), () => queen.locks.acquire(name, { ttl: 5 }),
    () => queen.locks.acquire(name, { ttlSeconds: 1.5 }), () => queen.locks.acquire(name, { ttl: '1s', forever: true }), () => queen.locks.acquire(name, { ttl: '1s', ttlSeconds: 1 }),
    () => queen.locks.acquire(name, { ttl: '1s', owner: '' }), () => queen.locks.acquire(name, { ttl: '1s', limit: 0 }), () => queen.locks.acquire(name, { ttl: '1s', limit: 1025 }),
    () => queen.locks.renew(name, { ttl: '1s' }), () => queen.locks.renew(name, { ttl: '1s', token: 0 }), () => queen.locks.release(name, { token: '5' }),
  ]) await assert.rejects(call(), Error, String(call));
  assert.throws(() => queen.lock(name, { ttl: '1s', limit: 2 }), RangeError);
  assert.throws(() => queen.lock(name), TypeError);
  assert.throws(() => queen.lock(name, { ttl: '3s', renewEvery: '3s' }), /renewEvery/);
  assert.throws(() => queen.semaphore(name, 0, { ttl: '1s' }), RangeError);
  assert.equal(server.requests.length, 0);
});

test('a handle: acquire is boolean, sends its owner, and is not sent again while held', async (t) => {
  const { server, clock, queen } = await start(t, [granted(5), released, held]);
  const lock = queen.lock('job', { ttl: '30s', autoRenew: false });
  assert.match(lock.owner, /^.+:\d+:[0-9a-f]{12}$/);
  assert.deepEqual([lock.name, lock.limit, lock.ttlSeconds, lock.held, lock.token, lock.slot, lock.validUntil], ['job', 1, 30, false, null, null, null]);
  assert.equal(await lock.acquire(), true);
  assert.equal(await lock.acquire(), true);
  assert.deepEqual([lock.held, lock.token, lock.slot, lock.validUntil], [true, 5, 0, clock.now() + 30000]);
  assert.equal(await lock.release(), true);
  assert.equal(await lock.release(), false);
  assert.deepEqual([lock.held, lock.token, lock.signal.aborted], [false, null, false]);
  assert.equal(await lock.acquire(), false);
  assert.deepEqual(ops(server), [
    { op: 'acquire', name: 'job', ttlSeconds: 30, owner: lock.owner },
    { op: 'release', name: 'job', token: 5, slot: 0 },
    { op: 'acquire', name: 'job', ttlSeconds: 30, owner: lock.owner },
  ]);
});

test('waiting: pauses grow by half, each shortened at random, until the wait is over', async (t) => {
  const { server, clock, queen } = await start(t, [], { fallback: held, random: () => 0 });
  const lock = queen.lock('job', { ...MANUAL, retryMinMs: 100, retryMaxMs: 200 });
  const waited = lock.acquire({ wait: '700ms' });
  for (const ms of [100, 150, 200, 200, 50]) await clock.pass(ms);
  assert.equal(await waited, false);
  assert.equal(ops(server).length, 6);
});

test('waiting ends when the permit is given, and with the signal', async (t) => {
  const { clock, queen } = await start(t, [held, granted(7), held], { random: () => 1 });
  const first = queen.lock('job', MANUAL).acquire({ wait: '10s' });
  await clock.pass(75);
  assert.equal(await first, true);
  const controller = new AbortController();
  const second = assert.rejects(queen.lock('job', MANUAL).acquire({ wait: '10s', signal: controller.signal }), { aborted: true });
  await until(() => clock.pending.includes(75));
  controller.abort();
  await second;
});

test('a permit the owner had before is renewed at once', async (t) => {
  const { server, queen } = await start(t, [granted(5, { already: true }), renewed(6)]);
  const lock = queen.lock('job', MANUAL);
  assert.equal(await lock.acquire(), true);
  assert.equal(lock.token, 6);
  assert.deepEqual(ops(server).map(({ op }) => op), ['acquire', 'renew']);
});

test('renew moves the token and the deadline', async (t) => {
  const { server, clock, queen } = await start(t, [granted(5), renewed(8)]);
  const lock = queen.lock('job', MANUAL);
  assert.equal(await lock.renew(), false);
  await lock.acquire();
  clock.advance(1000);
  assert.equal(await lock.renew(), true);
  assert.deepEqual([lock.token, lock.validUntil], [8, clock.now() + 30000]);
  assert.deepEqual(ops(server)[1], { op: 'renew', name: 'job', token: 5, ttlSeconds: 30, slot: 0, owner: 'me' });
});

test('background renewal at a third of the lifetime; a failure is tried again sooner', async (t) => {
  const { server, clock, queen } = await start(t, [granted(5), renewed(6), { status: 400, body: { error: 'x' } }, renewed(7)]);
  const lock = queen.lock('job', { ttl: '30s', owner: 'me' });
  await lock.acquire();
  await clock.pass(10000);
  await until(() => lock.token === 6);
  await clock.pass(10000);
  await clock.pass(2500);
  await until(() => lock.token === 7);
  assert.equal(lock.held, true);
  assert.equal(ops(server).length, 4);
});

test('lost by a refused renewal: told, aborted, nothing to release', async (t) => {
  const { server, clock, queen } = await start(t, [granted(5), lost]);
  const lock = queen.lock('job', { ttl: '30s', renewEvery: '2s', owner: 'me' });
  const reasons = [];
  lock.onLost((reason) => reasons.push(reason));
  await lock.acquire();
  const { signal } = lock;
  await clock.pass(2000);
  await until(() => reasons.length > 0);
  assert.deepEqual([reasons, lock.held, signal.aborted], [['renew'], false, true]);
  assert.equal(await lock.release(), false);
  assert.equal(ops(server).length, 2);
});

test('lost by time when nobody can be asked', async (t) => {
  const { clock, queen } = await start(t, [granted(5)], { fallback: { hang: true }, timeoutMillis: 77000 });
  const lock = queen.lock('job', { ttl: '6s', owner: 'me' });
  const reasons = [];
  lock.onLost((reason) => reasons.push(reason));
  await lock.acquire();
  await clock.pass(2000);
  clock.advance(4000);
  assert.deepEqual([reasons, lock.held, lock.signal.aborted], [['expired'], false, true]);
});

test('run: holds for the work, releases whatever happens', async (t) => {
  const { server, queen } = await start(t, [granted(5), released, granted(6), released, held]);
  const lock = queen.lock('job', MANUAL);
  assert.deepEqual(await lock.run(async (mine) => mine.token), { acquired: true, value: 5 });
  await assert.rejects(lock.run(() => {
    throw new Error('boom');
  }), { message: 'boom' });
  assert.deepEqual(await lock.run(() => assert.fail('not held')), { acquired: false });
  assert.deepEqual(ops(server).map(({ op }) => op), ['acquire', 'release', 'acquire', 'release', 'acquire']);
});

test('a semaphore sends its limit and keeps its slot', async (t) => {
  const { server, queen } = await start(t, [granted(5, { slot: 2, guard: guardOf(5, 2) }), released]);
  const permit = queen.semaphore('job', 3, MANUAL);
  await permit.acquire();
  assert.deepEqual([permit.slot, permit.limit, permit.guard()], [2, 3, guardOf(5, 2)]);
  await permit.release();
  assert.deepEqual(ops(server), [{ op: 'acquire', name: 'job', ttlSeconds: 30, owner: 'me', limit: 3 }, { op: 'release', name: 'job', token: 5, slot: 2 }]);
});

test('close releases what is held', async (t) => {
  const { server, queen } = await start(t, [granted(5), released]);
  await queen.lock('job', MANUAL).acquire();
  await queen.close();
  assert.deepEqual(ops(server).map(({ op }) => op), ['acquire', 'release']);
});

// ---- guards ----

const committed = { body: { success: true, results: [] } };
const verdict = (failedIndex, kvReason, value) => ({ body: { success: false, ok: false, reason: 'kv_precondition', failedIndex, kvReason, version: 9, value, results: [] } });

test('guard: the first kv op, with the token of that moment', async (t) => {
  const { server, queen } = await start(t, [granted(5), renewed(6), committed]);
  const lock = queen.lock('job', MANUAL);
  await lock.acquire();
  const transaction = queen.transaction().kv.put('n', 'k', 1, { ttl: '1m' }).guard(lock);
  await lock.renew();
  await transaction.commit();
  assert.deepEqual(server.last.json.kv.map(({ op, expect }) => [op, expect]), [['check', 6], ['put', undefined]]);
});

test('guard: waits for a renewal on its way', async (t) => {
  let answer;
  const slow = new Promise((resolve) => {
    answer = resolve;
  });
  const { server, queen } = await start(t, [granted(5), async () => (await slow, renewed(6)), committed]);
  const lock = queen.lock('job', MANUAL);
  await lock.acquire();
  const renewal = lock.renew();
  const commit = queen.transaction().guard(lock).commit();
  await until(() => ops(server).length === 2);
  answer();
  await Promise.all([renewal, commit]);
  assert.equal(server.last.json.kv[0].expect, 6);
});

test('guard: moved by its own renewal, the same step is sent again with the new token', async (t) => {
  const { server, queen } = await start(t, [granted(5), verdict(1, 'version', { owner: 'me' }), verdict(1, 'version', { owner: 'me' }), committed]);
  const lock = queen.lock('job', MANUAL);
  await lock.acquire();
  const answer = await queen.transaction().guard(lock).queue('q').push({ data: 1 }).commit();
  assert.equal(answer.success, true);
  const bodies = to(server, '/api/v1/transaction').map(({ json }) => JSON.stringify(json.operations));
  assert.equal(bodies.length, 3);
  assert.equal(new Set(bodies).size, 1);
});

test('guard: at most four times', async (t) => {
  const { server, queen } = await start(t, [granted(5)], { fallback: verdict(0, 'version', { owner: 'me' }) });
  const lock = queen.lock('job', MANUAL);
  await lock.acquire();
  assert.equal((await queen.transaction().guard(lock).commit()).success, false);
  assert.equal(to(server, '/api/v1/transaction').length, 4);
});

for (const [name, answer] of [['somebody else has it', verdict(0, 'version', { owner: 'other' })], ['it expired', verdict(0, 'absent', undefined)]]) {
  test(`guard: ${name}: the verdict, and the lock is lost`, async (t) => {
    const { queen } = await start(t, [granted(5), answer]);
    const lock = queen.lock('job', MANUAL);
    const reasons = [];
    lock.onLost((reason) => reasons.push(reason));
    await lock.acquire();
    assert.equal((await queen.transaction().guard(lock).commit()).reason, 'kv_precondition');
    assert.deepEqual([reasons, lock.held], [['guard'], false]);
  });
}

test('guard: another precondition leaves the lock', async (t) => {
  const { queen } = await start(t, [granted(5), verdict(3, 'exists', true), released]);
  const lock = queen.lock('job', MANUAL);
  await lock.acquire();
  await queen.transaction().guard(lock).queue('q').push([{ data: 1 }, { data: 2 }]).once('n', 'k', { ttl: '1m' }).commit();
  assert.equal(lock.held, true);
});

test('guard: nothing is sent without a held lock', async (t) => {
  const { server, queen } = await start(t);
  const lock = queen.lock('job', MANUAL);
  assert.throws(() => lock.guard(), { code: LOCK_NOT_HELD });
  await assert.rejects(queen.transaction().guard(lock).queue('q').push({ data: 1 }).commit(), { code: LOCK_NOT_HELD });
  assert.equal(server.requests.length, 0);
});
