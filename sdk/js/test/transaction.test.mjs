/* transaction(): the body on the wire, and what commit() makes of the answer. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { message, start, UUID7 } from './support/kit.mjs';

const committed = { body: { transactionId: 'x', success: true, results: [] } };
const rolledBack = (reason, more = {}) => ({ body: { success: false, reason, results: [], ...more } });

test('acks and pushes only: operations and requiredLeases, nothing else', async (t) => {
  const { server, queen } = await start(t, [committed]);
  const answer = await queen
    .transaction()
    .ack(message(1, { consumerGroup: 'billing' }))
    .ack([message(2), message(3, { leaseId: 'lease-2' })], 'failed', { group: 'other' })
    .queue('receipts').partition('c-1').push({ data: { n: 1 }, transactionId: 'own' })
    .queue('audit').push([{ data: 1 }, { payload: 2 }])
    .commit();
  assert.deepEqual(answer, committed.body);
  const { operations, ...rest } = server.last.json;
  assert.equal(server.last.path, '/api/v1/transaction');
  assert.deepEqual(rest, { requiredLeases: ['lease-1', 'lease-2'] });
  assert.deepEqual(operations.slice(0, 4), [
    { type: 'ack', transactionId: 't-1', partitionId: '7', status: 'completed', consumerGroup: 'billing', leaseId: 'lease-1' },
    { type: 'ack', transactionId: 't-2', partitionId: '7', status: 'failed', consumerGroup: 'other', leaseId: 'lease-1' },
    { type: 'ack', transactionId: 't-3', partitionId: '7', status: 'failed', consumerGroup: 'other', leaseId: 'lease-2' },
    { type: 'push', items: [{ queue: 'receipts', partition: 'c-1', payload: { n: 1 }, transactionId: 'own' }] },
  ]);
  assert.ok(operations[4].items.every((item) => !('partition' in item) && UUID7.test(item.transactionId)));
});

test('the group of an ack: the message\'s, none in queue mode, the context\'s under either name', async (t) => {
  const { server, queen } = await start(t, [committed]);
  await queen
    .transaction()
    .ack(message(1))
    .ack(message(2, { consumerGroup: 'a' }))
    .ack(message(3, { consumerGroup: 'a' }), 'completed', { consumerGroup: 'b' })
    .ack(message(4, { consumerGroup: 'a' }), true, { group: 'c' })
    .ack({ id: 'bare', partitionId: '9' }, 'dlq', { error: 'why' })
    .commit();
  const { operations } = server.last.json;
  assert.deepEqual(operations.map(({ consumerGroup }) => consumerGroup), [undefined, 'a', 'b', 'c', undefined]);
  assert.deepEqual(operations[4], { type: 'ack', transactionId: 'bare', partitionId: '9', status: 'dlq', error: 'why' });
});

test('kv and timers ride along at the top level', async (t) => {
  const { server, queen } = await start(t, [committed]);
  const transaction = queen.transaction();
  assert.equal(transaction.kv.get('n', 'a'), transaction);
  await transaction
    .kv.put('n', 'b', 1, { ttl: '1h', required: true })
    .kv.getMany('n', ['c'])
    .kv.incr('n', 'd', 2, { max: 5 })
    .kv.delete('n', 'e')
    .kv.check('n', 'f', { expect: 3 })
    .kv.putIfAbsent('n', 'g', null, { forever: true })
    .once('payments', 'p1', { ttl: '30d' })
    .once('payments', 'p2', { ttlSeconds: 5, value: 'v', required: false })
    .timer('reminders').key('order-1').partition('c').delay('1d').payload({ id: 1 }).txn('own').schedule()
    .timer('reminders').key('order-2').delayMs(-5.4).payload(Buffer.from('[1]')).schedule()
    .timer('reminders').key('order-3').cancel()
    .commit();
  const body = server.last.json;
  assert.deepEqual(body.operations, []);
  assert.deepEqual(body.requiredLeases, []);
  assert.deepEqual(body.kv, [
    { op: 'get', ns: 'n', key: 'a' },
    { op: 'put', ns: 'n', key: 'b', value: 1, required: true, ttlSeconds: 3600 },
    { op: 'getMany', ns: 'n', keys: ['c'] },
    { op: 'incr', ns: 'n', key: 'd', delta: 2, max: 5 },
    { op: 'delete', ns: 'n', key: 'e' },
    { op: 'check', ns: 'n', key: 'f', expect: 3 },
    { op: 'putIfAbsent', ns: 'n', key: 'g', value: null, forever: true },
    { op: 'putIfAbsent', ns: 'payments', key: 'p1', value: true, required: true, ttlSeconds: 2592000 },
    { op: 'putIfAbsent', ns: 'payments', key: 'p2', value: 'v', ttlSeconds: 5 },
  ]);
  const [first, second, third] = body.timers;
  assert.deepEqual(first, { op: 'schedule', queue: 'reminders', timerKey: 'order-1', partition: 'c', delayMs: 86400000, txn: 'own', payload: Buffer.from('{"id":1}').toString('base64') });
  assert.deepEqual([second.delayMs, second.payload], [-5, Buffer.from('[1]').toString('base64')]);
  assert.match(second.txn, UUID7);
  assert.deepEqual(third, { op: 'cancel', queue: 'reminders', timerKey: 'order-3' });
});

test('until counts from the commit', async (t) => {
  const { server, clock, queen } = await start(t, [committed]);
  const transaction = queen.transaction().kv.put('n', 'k', 1, { until: clock.now() + 60000 });
  clock.advance(20000);
  await transaction.commit();
  assert.equal(server.last.json.kv[0].ttlSeconds, 40);
});

test('what the builder refuses', async (t) => {
  const { server, queen } = await start(t);
  const transaction = queen.transaction();
  assert.throws(() => transaction.ack({ transactionId: 'x' }), /partitionId/);
  assert.throws(() => transaction.ack([{ partitionId: '1' }]), /transactionId/);
  assert.throws(() => transaction.queue(''), TypeError);
  assert.throws(() => transaction.kv.getPrefix('n', 'p'), /not possible inside a transaction/);
  assert.throws(() => transaction.timer('q').key('k').delay('1d').schedule(), /payload/);
  assert.throws(() => transaction.timer('q').key('k').payload(1).schedule(), /delay/);
  assert.throws(() => transaction.timer('q').delay('1d').payload(1).schedule(), /key/);
  assert.throws(() => transaction.timer('q').key('k').peek(), /not possible inside/);
  assert.throws(() => transaction.timer('q').list(), /not possible inside/);
  assert.throws(() => transaction.guard({}), TypeError);
  assert.throws(() => transaction.next({}), TypeError);
  assert.throws(() => transaction.next({ queue: 'q', autoAck: true }), /autoAck/);
  await assert.rejects(transaction.commit(), { message: 'Transaction has no operations to commit' });
  assert.equal(server.requests.length, 0);
});

test('a lost once resolves with the verdict', async (t) => {
  const { queen } = await start(t, [rolledBack('kv_precondition', { failedIndex: 1, kvReason: 'exists', version: 5, value: true, ok: false })]);
  const verdict = await queen.transaction().ack(message(1)).once('n', 'k', { ttl: '1d' }).commit();
  assert.deepEqual([verdict.success, verdict.reason, verdict.kvReason, verdict.failedIndex, verdict.results], [false, 'kv_precondition', 'exists', 1, []]);
});

test('any other rollback rejects with its reason and the body', async (t) => {
  for (const reason of ['rejected_ack', 'duplicate', 'too_large', 'misaligned']) {
    const { queen } = await start(t, [rolledBack(reason, { error: `because of ${reason}` })]);
    await assert.rejects(queen.transaction().ack(message(1)).commit(), (error) => {
      assert.deepEqual([error.message, error.reason, error.result.success, error.maybeCommitted], [`because of ${reason}`, reason, false, undefined]);
      return true;
    });
  }
  const { queen } = await start(t, [rolledBack('odd')]);
  await assert.rejects(queen.transaction().ack(message(1)).commit(), { message: 'Transaction failed' });
});

test('a failed request rejects with status and code, without a reason', async (t) => {
  const { queen } = await start(t, [{ status: 400, body: { error: 'bad', code: 'bad_body' } }]);
  await assert.rejects(queen.transaction().ack(message(1)).commit(), (error) => error.status === 400 && error.code === 'bad_body' && !('reason' in error));
});

test('a commit is sent again with the same bytes; a duplicate then says that it may have committed', async (t) => {
  const { server, clock, queen } = await start(t, [{ drop: true }, rolledBack('duplicate')]);
  const failed = assert.rejects(
    queen.transaction().queue('q').push({ data: 1 }).timer('t').key('k').delay('1m').payload(1).schedule().commit(),
    { reason: 'duplicate', maybeCommitted: true },
  );
  await clock.pass(1000);
  await failed;
  assert.equal(server.requests[0].text, server.requests[1].text);
});

test('next takes the next messages in the same round trip', async (t) => {
  const { server, queen } = await start(t, [{ body: { success: true, results: [], next: { messages: [message(2)] } } }]);
  const answer = await queen.transaction().ack(message(1)).next({ queue: 'q', group: 'g', batch: 10, wait: false }).commit();
  assert.deepEqual(server.last.json.next, { queue: 'q', consumerGroup: 'g', batch: 10, wait: false });
  assert.equal(answer.next.messages[0].transactionId, 't-2');
});
