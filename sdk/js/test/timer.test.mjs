/* timer(): routes and bodies. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { start, UUID7 } from './support/kit.mjs';

test('schedule on the wire', async (t) => {
  const scheduled = { ok: true, status: 'scheduled', timerKey: 'k', txn: 'own', messageId: 'm', deliverAt: 'x' };
  const { server, queen } = await start(t, [], { fallback: { body: { results: [scheduled] } } });
  assert.deepEqual(await queen.timer('q').key('k').delay('30m').payload({ a: 'ü' }).txn('own').schedule(), scheduled);
  assert.equal(`${server.last.method} ${server.last.url}`, 'POST /api/v1/timers');
  assert.deepEqual(server.last.json, {
    operations: [{ op: 'schedule', queue: 'q', timerKey: 'k', delayMs: 1800000, txn: 'own', payload: Buffer.from('{"a":"ü"}').toString('base64') }],
  });
  const builder = queen.timer('q').key('k').partition('p').delayMs(-5000).payload(new Uint8Array([49]));
  await builder.schedule();
  const [first] = server.last.json.operations;
  await builder.schedule();
  const [second] = server.last.json.operations;
  assert.deepEqual([first.partition, first.delayMs, first.payload], ['p', -5000, 'MQ==']);
  assert.match(first.txn, UUID7);
  assert.notEqual(first.txn, second.txn);
  await queen.timer('q').key('k').delayMs(1).payload(null).schedule();
  assert.equal(server.last.json.operations[0].payload, Buffer.from('null').toString('base64'));
});

test('a schedule is sent again with the same txn', async (t) => {
  const { server, clock, queen } = await start(t, [{ drop: true }, { body: { results: [{ ok: true }] } }]);
  const scheduled = queen.timer('q').key('k').delay('1s').payload(1).schedule();
  await clock.pass(1000);
  await scheduled;
  assert.equal(server.requests[0].text, server.requests[1].text);
});

test('cancel, peek and list on the wire', async (t) => {
  const { server, queen } = await start(t, [], { fallback: { body: { ok: true } } });
  const line = () => `${server.last.method} ${server.last.url}`;
  assert.deepEqual(await queen.timer('a/b').key('k/1').cancel(), { ok: true });
  assert.equal(line(), 'DELETE /api/v1/timers/a%2Fb/k%2F1');
  await queen.timer('q').key('k').txn('t 1').cancel();
  assert.equal(line(), 'DELETE /api/v1/timers/q/k?txn=t%201');
  await queen.timer('q').key('k').peek();
  assert.equal(line(), 'GET /api/v1/timers/q/k');
  await queen.timer('q').list();
  assert.equal(line(), 'GET /api/v1/timers/q');
  await queen.timer('q').list({ after: 'a b', limit: 2 });
  assert.equal(line(), 'GET /api/v1/timers/q?after=a+b&limit=2');
});

test('what is missing or wrong is refused before anything is sent', async (t) => {
  const { server, queen } = await start(t);
  assert.throws(() => queen.timer(''), TypeError);
  assert.throws(() => queen.timer('q').delay(30), TypeError);
  assert.throws(() => queen.timer('q').delayMs('30'), TypeError);
  assert.throws(() => queen.timer('q').delayMs(NaN), TypeError);
  await assert.rejects(queen.timer('q').delay('1s').payload(1).schedule(), /key/);
  await assert.rejects(queen.timer('q').key('k').payload(1).schedule(), /delay/);
  await assert.rejects(queen.timer('q').key('k').delay('1s').schedule(), /payload/);
  await assert.rejects(queen.timer('q').cancel(), /key/);
  assert.equal(server.requests.length, 0);
});

test('a results array of another length fails; errors have their code', async (t) => {
  const { queen } = await start(t, [{ body: { results: [] } }, { status: 400, body: { error: 'timers_bad_request' } }]);
  const schedule = () => queen.timer('q').key('k').delay('1s').payload(1).schedule();
  await assert.rejects(schedule(), /1 timer operation sent, 0 answered/);
  await assert.rejects(schedule(), { code: 'timers_bad_request' });
});
