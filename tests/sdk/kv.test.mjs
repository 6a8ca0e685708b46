/* The original's kv.js. */
import assert from 'node:assert/strict';
import { datas, eventually, sleep, suite } from './support/suite.mjs';

const HOUR = { ttl: '1h' };

suite('kv', {
  async kvPutGetDelete(kit) {
    const { kv } = kit.queen;
    const { ns } = kit;
    const put = await kv.put(ns, 'k', { a: 1 }, HOUR);
    assert.equal(put.applied, true);
    const row = await kv.get(ns, 'k');
    assert.deepEqual([row.found, row.value, row.version], [true, { a: 1 }, put.version]);
    assert.ok(Date.parse(row.expiresAt) > Date.now());
    assert.equal((await kv.delete(ns, 'k')).applied, true);
    assert.equal((await kv.get(ns, 'k')).found, false);
  },

  async kvNullIsAValueNotAnAbsence(kit) {
    const { ns } = kit;
    await kit.queen.kv.put(ns, 'k', null, HOUR);
    const row = await kit.queen.kv.get(ns, 'k');
    assert.deepEqual([row.found, row.value], [true, null]);
  },

  async kvPutIfAbsentIsExactlyOneWinner(kit) {
    const { ns } = kit;
    const results = await Promise.all(['a', 'b', 'c', 'd'].map((value) => kit.queen.kv.putIfAbsent(ns, 'k', value, HOUR)));
    const winners = results.filter(({ applied }) => applied);
    assert.equal(winners.length, 1);
    const [winner] = winners;
    for (const loser of results.filter(({ applied }) => !applied)) {
      assert.deepEqual([loser.reason, loser.version], ['exists', winner.version]);
      assert.equal(loser.value, (await kit.queen.kv.get(ns, 'k')).value);
    }
  },

  async kvExpectOnAbsentKeyCreatesNothing(kit) {
    const { ns } = kit;
    const result = await kit.queen.kv.put(ns, 'k', 1, { ...HOUR, expect: 7 });
    assert.deepEqual([result.applied, result.reason], [false, 'absent']);
    assert.equal((await kit.queen.kv.get(ns, 'k')).found, false);
  },

  async kvExpectFencesAStaleWriter(kit) {
    const { ns } = kit;
    const first = await kit.queen.kv.put(ns, 'k', 1, HOUR);
    const second = await kit.queen.kv.put(ns, 'k', 2, { ...HOUR, expect: first.version });
    assert.equal(second.applied, true);
    const stale = await kit.queen.kv.put(ns, 'k', 3, { ...HOUR, expect: first.version });
    assert.deepEqual([stale.applied, stale.reason, stale.value, stale.version], [false, 'version', 2, second.version]);
  },

  async kvIncrIsTheAdmissionDecision(kit) {
    const { kv } = kit.queen;
    const { ns } = kit;
    const results = [];
    for (let i = 0; i < 3; i++) results.push(await kv.incr(ns, 'k', 1, { max: 2, ...HOUR }));
    assert.deepEqual(results.map(({ applied, value }) => [applied, value]), [[true, 1], [true, 2], [false, 2]]);
    assert.equal(results[2].reason, 'limit');
    assert.deepEqual([(await kv.incr(ns, 'other', 10, { max: 5, ...HOUR })).applied, (await kv.get(ns, 'other')).found], [false, false]);
  },

  async kvIncrTreatsAnExpiredRowAsZero(kit) {
    const { ns } = kit;
    await kit.queen.kv.put(ns, 'k', 'text', { ttlSeconds: 1 });
    assert.equal((await kit.queen.kv.incr(ns, 'k', 1, HOUR)).reason, 'type');
    await sleep(1200);
    assert.equal((await kit.queen.kv.incr(ns, 'k', 5, HOUR)).value, 5);
  },

  async kvGetManyReportsMissingExplicitly(kit) {
    const { ns } = kit;
    await kit.queen.kv.put(ns, 'a', 1, HOUR);
    await kit.queen.kv.put(ns, 'c', 3, HOUR);
    const { rows, missing } = await kit.queen.kv.getMany(ns, ['a', 'b', 'c']);
    assert.deepEqual(rows.map(({ key, value }) => [key, value]), [['a', 1], ['c', 3]]);
    assert.deepEqual(missing, ['b']);
  },

  async kvGetPrefixPagesAndListAllWalksThem(kit) {
    const { kv } = kit.queen;
    const { ns } = kit;
    for (const key of ['o', 'p/1', 'p/2', 'p/3', 'p/4', 'p/5', 'p0', 'q']) await kv.put(ns, key, key, HOUR);
    const page = await kv.getPrefix(ns, 'p/', { limit: 2 });
    assert.deepEqual([page.rows.length, page.truncated, page.nextAfter], [2, true, 'p/2']);
    const keys = [];
    for await (const { key } of kv.listAll(ns, 'p/', { limit: 2 })) keys.push(key);
    assert.deepEqual(keys, ['p/1', 'p/2', 'p/3', 'p/4', 'p/5']);
  },

  async kvExpiredKeyIsNeverReturned(kit) {
    const { ns } = kit;
    await kit.queen.kv.put(ns, 'k', 1, { ttlSeconds: 1 });
    await sleep(1200);
    assert.equal((await kit.queen.kv.get(ns, 'k')).found, false);
    assert.equal((await kit.queen.kv.putIfAbsent(ns, 'k', 2, HOUR)).applied, true);
  },

  async kvOnceReportsTheWinner(kit) {
    const { ns } = kit;
    assert.equal((await kit.queen.kv.once(ns, 'k', { ...HOUR, value: 'first' })).won, true);
    const second = await kit.queen.kv.once(ns, 'k', { ...HOUR, value: 'second' });
    assert.deepEqual([second.won, second.value], [false, 'first']);
  },

  async kvTransactionGateBlocksTheSecondDelivery(kit) {
    const { ns } = kit;
    const queue = await kit.queue();
    const step = () => kit.queen.transaction().queue(queue).push([{ data: 'receipt' }]).once(ns, 'payment-1', { ttl: '30d' }).commit();
    assert.equal((await step()).success, true);
    const second = await step();
    assert.deepEqual([second.success, second.reason, second.kvReason, typeof second.failedIndex], [false, 'kv_precondition', 'exists', 'number']);
    assert.deepEqual(datas(await kit.drain(queue, 1)), ['receipt']);
    assert.deepEqual(await kit.now(queue), []);
  },

  async untilIsKept(kit) {
    const { ns } = kit;
    await kit.queen.kv.put(ns, 'k', 1, { until: new Date(Date.now() + 1000) });
    await eventually(async () => !(await kit.queen.kv.get(ns, 'k')).found);
  },
});
