/* The original's locks.js. */
import assert from 'node:assert/strict';
import { datas, numbers, sleep, suite } from './support/suite.mjs';

suite('locks', {
  async lockHasOneHolderAndAGuardedStepCommits(kit) {
    const name = kit.name();
    const queue = await kit.queue();
    const lock = kit.queen.lock(name, { ttl: '30s' });
    assert.equal(await lock.acquire(), true);
    assert.equal(await kit.queen.lock(name, { ttl: '30s' }).acquire(), false);
    const { held, holders } = await kit.queen.locks.get(name);
    assert.deepEqual([held, holders[0].owner, holders[0].token], [true, lock.owner, lock.token]);
    assert.ok(Date.parse(holders[0].expiresAt) > Date.now());
    const row = await kit.queen.kv.get('queen-locks', `${name}#0`);
    assert.deepEqual([row.version, row.value.owner], [lock.token, lock.owner]);
    assert.equal((await kit.queen.transaction().guard(lock).queue(queue).push([{ data: 'guarded' }]).commit()).success, true);
    assert.deepEqual(datas(await kit.take(queue)), ['guarded']);
    assert.equal(await lock.release(), true);
    assert.equal((await kit.queen.locks.get(name)).held, false);
  },

  async lockRetryWithTheSameOwnerIsTheSamePermit(kit) {
    const { locks } = kit.queen;
    const name = kit.name();
    const mine = { ttl: '30s', owner: 'me' };
    const first = await locks.acquire(name, mine);
    const again = await locks.acquire(name, mine);
    assert.deepEqual([again.acquired, again.already, again.token], [true, true, first.token]);
    const renewed = await locks.renew(name, { ...mine, token: first.token });
    const repeated = await locks.renew(name, { ...mine, token: first.token });
    assert.ok(renewed.token > first.token && repeated.renewed && repeated.token > renewed.token);
    const stranger = await locks.renew(name, { ttl: '30s', owner: 'stranger', token: first.token });
    assert.deepEqual([stranger.renewed, stranger.reason, stranger.holders[0].owner], [false, 'lost', 'me']);
  },

  async lockExpiredIsTakenOverAndTheOldHolderCommitsNothing(kit) {
    const name = kit.name();
    const queue = await kit.queue();
    const old = await kit.queen.locks.acquire(name, { ttl: '1s', owner: 'old' });
    const taker = kit.queen.lock(name, { ttl: '30s', owner: 'young' });
    assert.equal(await taker.acquire({ wait: '10s' }), true);
    assert.ok(taker.token > old.token);
    const body = { operations: [{ type: 'push', items: [{ queue, payload: 'old' }] }], kv: [old.guard] };
    const answer = await (await fetch(`${kit.broker.url}/api/v1/transaction`, { method: 'POST', body: JSON.stringify(body) })).json();
    assert.deepEqual([answer.success, answer.reason], [false, 'kv_precondition']);
    await kit.queen.transaction().guard(taker).queue(queue).push([{ data: 'young' }]).commit();
    assert.deepEqual(datas(await kit.take(queue, 10)), ['young']);
    await taker.release();
  },

  async lockGuardedStepSurvivesItsOwnRenewal(kit) {
    const queue = await kit.queue();
    const lock = kit.queen.lock(kit.name(), { ttl: '5s', renewEvery: '100ms' });
    await lock.acquire();
    for (const i of numbers(60)) {
      assert.equal((await kit.queen.transaction().guard(lock).queue(queue).push([{ data: i }]).commit()).success, true);
      await sleep(10);
    }
    await lock.release();
    assert.deepEqual(datas(await kit.drain(queue, 60)), numbers(60));
  },

  async lockRunHoldsForTheWorkAndWaitsItsTurn(kit) {
    const name = kit.name();
    let inside = 0;
    const work = async () => {
      inside += 1;
      assert.equal(inside, 1);
      await sleep(150);
      inside -= 1;
      return 'done';
    };
    const runs = await Promise.all([1, 2].map(() => kit.queen.lock(name, { ttl: '30s' }).run(work, { wait: '20s' })));
    assert.deepEqual(runs, Array(2).fill({ acquired: true, value: 'done' }));
    assert.equal((await kit.queen.locks.get(name)).held, false);
  },

  async semaphoreNeverGrantsMoreThanItsLimit(kit) {
    const name = kit.name();
    const permits = numbers(12).map(() => kit.queen.semaphore(name, 3, { ttl: '30s' }));
    const granted = await Promise.all(permits.map((permit) => permit.acquire()));
    const holders = permits.filter((_, i) => granted[i]);
    assert.equal(holders.length, 3);
    assert.deepEqual(holders.map(({ slot }) => slot).sort(), [0, 1, 2]);
    assert.equal((await kit.queen.locks.get(name)).holders.length, 3);
    const waiting = permits.find((_, i) => !granted[i]).acquire({ wait: '20s' });
    await holders[1].release();
    assert.equal(await waiting, true);
    for (const permit of permits) await permit.release();
  },

  async kvCheckLooksAndGatesWithoutWriting(kit) {
    const { kv } = kit.queen;
    const { ns } = kit;
    const { version } = await kv.put(ns, 'k', 'v', { ttl: '1h' });
    const holds = await kv.check(ns, 'k', { expect: version });
    assert.deepEqual([holds.applied, holds.version, 'value' in holds], [true, version, false]);
    const loses = await kv.check(ns, 'k', { expect: version + 1 });
    assert.deepEqual([loses.applied, loses.value, loses.version], [false, 'v', version]);
    assert.equal((await kv.check(ns, 'absent', { expect: 0 })).applied, true);
    assert.equal((await kv.get(ns, 'k')).version, version);
    const required = await kv.check(ns, 'k', { expect: 0, required: true });
    assert.deepEqual([required.applied, required.precondition], [false, true]);
  },
});
