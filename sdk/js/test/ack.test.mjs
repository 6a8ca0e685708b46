/* ack() and renew(): bodies, verdicts, and that they never reject for what the broker says. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { honoured, message, start } from './support/kit.mjs';

test('one ack on the wire', async (t) => {
  const { server, queen } = await start(t, [], { fallback: honoured });
  const result = await queen.ack(message(1));
  assert.equal(server.last.path, '/api/v1/ack');
  assert.equal(server.last.text, '{"transactionId":"t-1","partitionId":"7","status":"completed","error":null,"consumerGroup":null,"leaseId":"lease-1"}');
  assert.deepEqual(result, { index: 0, transactionId: 't-1', success: true, error: null, leaseReleased: true, dlq: false, noop: false });
});

test('status, group and error of an ack', async (t) => {
  const { server, queen } = await start(t, [], { fallback: honoured });
  const cases = [
    [[message(1), false, { error: 'boom' }], { status: 'failed', error: 'boom', consumerGroup: null }],
    [[message(1), 'retry'], { status: 'retry', error: null, consumerGroup: null }],
    [[message(1, { consumerGroup: 'billing' }), 'dlq'], { status: 'dlq', error: null, consumerGroup: 'billing' }],
    [[message(1, { consumerGroup: 'billing' }), true, { group: 'other' }], { status: 'completed', error: null, consumerGroup: 'other' }],
    [[message(1), true, { consumerGroup: 'other' }], { status: 'completed', error: null, consumerGroup: 'other' }],
  ];
  for (const [args, expected] of cases) {
    await queen.ack(...args);
    const { status, error, consumerGroup } = server.last.json;
    assert.deepEqual({ status, error, consumerGroup }, expected);
  }
  await queen.ack({ id: 'only-an-id', partitionId: '7' });
  assert.equal(server.last.text, '{"transactionId":"only-an-id","partitionId":"7","status":"completed","error":null,"consumerGroup":null}');
});

test('a batch on the wire, also with a status for each message', async (t) => {
  const { server, queen } = await start(t, [], { fallback: honoured });
  const result = await queen.ack([message(1), message(2)], false, { group: 'workers', error: 'boom' });
  assert.equal(server.last.path, '/api/v1/ack/batch');
  assert.deepEqual(server.last.json, {
    acknowledgments: [
      { transactionId: 't-1', partitionId: '7', status: 'failed', error: 'boom', leaseId: 'lease-1' },
      { transactionId: 't-2', partitionId: '7', status: 'failed', error: 'boom', leaseId: 'lease-1' },
    ],
    consumerGroup: 'workers',
  });
  assert.equal(result.success, true);
  assert.equal(result.processed, 2);
  await queen.ack([{ ...message(1), _status: false, _error: 'bad' }, { ...message(2), _status: 'dlq' }, message(3)]);
  assert.deepEqual(server.last.json.acknowledgments.map(({ status, error }) => [status, error]), [['failed', 'bad'], ['dlq', null], ['completed', null]]);
});

test('messages of several groups need context.group', async (t) => {
  const { server, queen } = await start(t, [], { fallback: honoured });
  const mixed = [message(1, { consumerGroup: 'a' }), message(2, { consumerGroup: 'b' })];
  await assert.rejects(queen.ack(mixed), /different consumer groups/);
  assert.equal(server.requests.length, 0);
  assert.equal((await queen.ack(mixed, true, { group: 'a' })).success, true);
});

test('an empty batch sends nothing', async (t) => {
  const { server, queen } = await start(t);
  assert.deepEqual(await queen.ack([]), { success: true, processed: 0, results: [] });
  assert.equal(server.requests.length, 0);
});

test('refusals: an error text forces success false, absent success is true', async (t) => {
  const { queen } = await start(t, [
    { body: [{ index: 0, success: true, error: 'invalid or expired lease' }] },
    { body: [{ index: 0 }] },
    { body: [{ success: false, error: 'first' }, { success: true }, { success: false, error: 'other' }] },
    { body: [{ success: true }, { success: false, error: 'alone' }] },
    { body: [] },
    { body: { error: 'all refused' } },
  ]);
  assert.deepEqual(await queen.ack(message(1)), { index: 0, success: false, error: 'invalid or expired lease' });
  assert.deepEqual(await queen.ack(message(1)), { index: 0, success: true, error: null });
  const three = await queen.ack([message(1), message(2), message(3)]);
  assert.equal(three.error, '2 of 3 acknowledgments rejected: first');
  assert.equal(three.results.length, 3);
  assert.equal((await queen.ack([message(1), message(2)])).error, 'alone');
  assert.equal((await queen.ack(message(1))).success, false);
  assert.deepEqual(await queen.ack([message(1)]), { success: false, error: 'all refused' });
});

test('errors of the request resolve; ids that are missing do too, in a batch they reject', async (t) => {
  const { queen } = await start(t, [], { fallback: { status: 400, body: { error: 'bad' } } });
  assert.deepEqual(await queen.ack(message(1)), { success: false, error: 'bad' });
  assert.deepEqual(await queen.ack([message(1)]), { success: false, error: 'bad' });
  assert.equal((await queen.ack({ transactionId: 'x' })).success, false);
  assert.equal((await queen.ack({ partitionId: '1' })).success, false);
  await assert.rejects(queen.ack([{ transactionId: 'x' }]), /partitionId/);
});

test('an ack is sent again, the same bytes', async (t) => {
  const { server, clock, queen } = await start(t, [{ drop: true }], { fallback: honoured });
  const ack = queen.ack(message(1));
  await clock.pass(1000);
  assert.equal((await ack).success, true);
  assert.equal(server.requests[0].text, server.requests[1].text);
});

const renewed = { leaseId: 'lease-1', success: true, renewed: 2, newExpiresAt: '2031-02-03T04:06:06.789Z', expiresAt: 'x', lease_expires_at: 'x' };

test('renew on the wire: of an id, a message, or several, one request for each distinct lease', async (t) => {
  const { server, queen } = await start(t, [], { fallback: { body: renewed } });
  assert.deepEqual(await queen.renew('lease-1'), { leaseId: 'lease-1', success: true, newExpiresAt: renewed.newExpiresAt, renewed: 2 });
  assert.equal(`${server.last.method} ${server.last.url} ${server.last.text}`, 'POST /api/v1/lease/lease-1/extend {}');
  const results = await queen.renew([message(1), message(2), 'lease-2']);
  assert.deepEqual(results.map(({ leaseId }) => leaseId), ['lease-1', 'lease-2']);
  assert.equal(server.requests.length, 3);
});

test('renew: a lease that is gone, the older shape, a failed request, no lease at all', async (t) => {
  const { queen } = await start(t, [
    { body: { leaseId: 'l', success: false, renewed: 0, newExpiresAt: null } },
    { body: [{ lease_expires_at: '2031-01-01T00:00:00Z' }] },
    { status: 400, body: { error: 'bad' } },
  ]);
  const gone = await queen.renew('l');
  assert.equal(gone.success, false);
  assert.equal(gone.renewed, 0);
  assert.deepEqual(await queen.renew('l'), { leaseId: 'l', success: true, newExpiresAt: '2031-01-01T00:00:00Z' });
  assert.deepEqual(await queen.renew('l'), { leaseId: 'l', success: false, newExpiresAt: null, error: 'bad' });
  assert.deepEqual(await queen.renew([{}]), { success: false, error: 'No valid lease IDs found for renewal' });
});
