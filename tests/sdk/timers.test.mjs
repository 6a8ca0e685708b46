/* The original's timers.js. */
import assert from 'node:assert/strict';
import { datas, suite } from './support/suite.mjs';

suite('timers', {
  async timerSchedulesAndFires(kit) {
    const queue = await kit.queue();
    const scheduled = await kit.queen.timer(queue).key('k').delayMs(500).payload({ hello: 'timer' }).schedule();
    assert.deepEqual([scheduled.ok, scheduled.status, typeof scheduled.messageId, typeof scheduled.deliverAt], [true, 'scheduled', 'string', 'string']);
    const [message] = await kit.take(queue);
    assert.deepEqual([message.data, message.transactionId, message.id], [{ hello: 'timer' }, scheduled.txn, scheduled.messageId]);
  },

  async timerCancelBeforeFire(kit) {
    const queue = await kit.queue();
    const timer = () => kit.queen.timer(queue).key('k');
    await timer().delay('1h').payload(1).schedule();
    assert.equal((await timer().peek()).found, true);
    const cancelled = await timer().cancel();
    assert.deepEqual([cancelled.ok, cancelled.status], [true, 'cancelled']);
    assert.equal((await timer().peek()).found, false);
  },

  async timerCancelAbsentCarriesOkFalseAndTheTxn(kit) {
    const answer = await kit.queen.timer(kit.name('never-made')).key('k').txn('my-txn').cancel();
    assert.deepEqual([answer.ok, answer.status, answer.txn], [false, 'absent', 'my-txn']);
  },

  async timerRescheduleOverwritesTheTxn(kit) {
    const queue = await kit.queue();
    const timer = () => kit.queen.timer(queue).key('k').delay('1h').payload(1);
    const first = await timer().schedule();
    const second = await timer().schedule();
    assert.equal(second.status, 'rescheduled');
    assert.notEqual(second.txn, first.txn);
    assert.equal((await kit.queen.timer(queue).key('k').peek()).txn, second.txn);
  },

  async timerListIsKeysetOverOneQueue(kit) {
    const queue = await kit.queue();
    for (const key of ['b', 'c', 'a']) await kit.queen.timer(queue).key(key).delay('1h').payload(key).schedule();
    const page = await kit.queen.timer(queue).list({ limit: 2 });
    assert.deepEqual([page.rows.map(({ timerKey }) => timerKey), page.truncated], [['a', 'b'], true]);
    const rest = await kit.queen.timer(queue).list({ after: page.nextAfter });
    assert.deepEqual([rest.rows.map(({ timerKey }) => timerKey), rest.truncated], [['c'], false]);
  },

  async timerRidesTheTransaction(kit) {
    const queue = await kit.queue();
    const work = await kit.queue();
    await kit.queen.transaction().queue(work).push([{ data: 1 }]).timer(queue).key('k').delay('1h').payload(1).schedule().commit();
    assert.equal((await kit.queen.timer(queue).key('k').peek()).found, true);
    await kit.queen.transaction().timer(queue).key('k').cancel().commit();
    assert.equal((await kit.queen.timer(queue).key('k').peek()).found, false);
  },

  async timerWithAPastDelayFiresImmediately(kit) {
    const queue = await kit.queue();
    await kit.queen.timer(queue).key('k').delayMs(-5000).payload('now').schedule();
    assert.deepEqual(datas(await kit.take(queue)), ['now']);
  },
});
