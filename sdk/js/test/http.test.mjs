/* The HTTP layer against a scripted server: form of a request, meaning of an answer, retries, failover, 429, aborts. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { Queen } from '../index.js';
import { FakeClock, until } from './support/clock.mjs';
import { client, start } from './support/kit.mjs';
import { ScriptedServer } from './support/server.mjs';

const OK = { status: 200, body: { ok: 1 } };
const DOWN = { status: 503, body: { error: 'no leader', code: 'no_leader' } };

test('a request has its content type, the token and the own headers, which win', async (t) => {
  const { server, queen } = await start(t, [OK, OK], { bearerToken: 'secret', headers: { 'X-Team': 'a', 'content-type': 'application/json; v=1' } });
  await queen.admin.getOverview();
  assert.equal(server.last.method, 'GET');
  assert.equal(server.last.text, '');
  assert.equal(server.last.headers.authorization, 'Bearer secret');
  assert.equal(server.last.headers['x-team'], 'a');
  assert.equal(server.last.headers['content-type'], 'application/json; v=1');
  await queen.admin.refreshConsumerStats();
  assert.equal(server.last.text, '{}');
  assert.equal(server.last.headers['content-length'], '2');
});

test('a trailing slash of the base URL does not double', async (t) => {
  const server = await ScriptedServer.start([OK]);
  t.after(() => server.stop());
  const queen = client(t, { url: `${server.url}/` });
  await queen.admin.health();
  assert.equal(server.last.url, '/health');
});

test('a path of the base URL goes before the call', async (t) => {
  const server = await ScriptedServer.start([OK]);
  t.after(() => server.stop());
  await client(t, { url: `${server.url}/tenant/a/` }).admin.health();
  assert.equal(server.last.url, '/tenant/a/health');
});

test('204 is null, text is text, an empty body is null', async (t) => {
  const { queen } = await start(t, [{ status: 204 }, { text: 'up 1\n' }, { status: 200 }]);
  assert.equal(await queen.admin.health(), null);
  assert.equal(await queen.admin.metrics(), 'up 1\n');
  assert.equal(await queen.admin.health(), null);
});

test('an error carries status, code and the text of the body', async (t) => {
  const { queen } = await start(t, [
    { status: 403, body: { error: 'not yours', code: 'forbidden' } },
    { status: 404, text: 'nothing here' },
  ]);
  await assert.rejects(queen.admin.getOverview(), { message: 'not yours', status: 403, code: 'forbidden' });
  await assert.rejects(queen.admin.getOverview(), { message: 'HTTP 404: Not Found', status: 404 });
});

test('5xx: three tries of the same bytes, pauses of one and two seconds', async (t) => {
  const { server, clock, queen } = await start(t, [DOWN, DOWN, { status: 201, body: [{ index: 0, status: 'queued' }] }]);
  const push = queen.queue('q').push({ data: 1 }).then((answer) => answer);
  await clock.pass(1000);
  await clock.pass(2000);
  assert.deepEqual(await push, [{ index: 0, status: 'queued' }]);
  assert.equal(server.requests.length, 3);
  assert.equal(server.requests[1].text, server.requests[0].text);
  assert.equal(server.requests[2].text, server.requests[0].text);
});

test('5xx: the last error is thrown when the tries are spent', async (t) => {
  const { server, clock, queen } = await start(t, [DOWN, DOWN, { status: 500, body: { error: 'broken' } }]);
  const failed = assert.rejects(queen.admin.getOverview(), { message: 'broken', status: 500, maybeCommitted: true });
  await clock.pass(1000);
  await clock.pass(2000);
  await failed;
  assert.equal(server.requests.length, 3);
});

test('retryAttempts counts all tries, retryDelayMillis is the first pause', async (t) => {
  const { server, clock, queen } = await start(t, [DOWN, DOWN], { retryAttempts: 2, retryDelayMillis: 70 });
  const failed = assert.rejects(queen.admin.getOverview(), { status: 503 });
  await clock.pass(70);
  await failed;
  assert.equal(server.requests.length, 2);
});

test('Retry-After of a 503 is obeyed', async (t) => {
  const { clock, queen } = await start(t, [{ ...DOWN, headers: { 'Retry-After': '4' } }, OK]);
  const answer = queen.admin.getOverview();
  await clock.pass(4000);
  assert.deepEqual(await answer, { ok: 1 });
});

test('a dropped connection is tried again, 400 is not', async (t) => {
  const { server, clock, queen } = await start(t, [{ drop: true }, OK, { status: 400, body: { error: 'bad' } }]);
  const answer = queen.admin.getOverview();
  await clock.pass(1000);
  assert.deepEqual(await answer, { ok: 1 });
  await assert.rejects(queen.admin.getOverview(), { status: 400 });
  assert.equal(server.requests.length, 3);
});

test('a kept connection that was closed meanwhile costs no pause', async (t) => {
  const { server, queen } = await start(t, [OK, OK]);
  await queen.admin.getOverview();
  server.cutConnections();
  assert.deepEqual(await queen.admin.getOverview(), { ok: 1 });
  assert.equal(server.requests.length, 2);
});

test('the time-out covers the body, cuts the connection and is tried again', async (t) => {
  const { server, clock, queen } = await start(t, [{ ...OK, slow: new Promise(() => {}) }, { hang: true }, OK], { timeoutMillis: 700 });
  const answer = queen.admin.getOverview();
  await until(() => server.requests.length === 1);
  await clock.pass(700);
  await clock.pass(1000);
  await until(() => server.requests.length === 2);
  await clock.pass(700);
  await clock.pass(2000);
  assert.deepEqual(await answer, { ok: 1 });
  await until(() => server.cut === 2);
});

test('a time-out that is final names itself', async (t) => {
  const { clock, queen } = await start(t, [{ hang: true }], { timeoutMillis: 700, retryAttempts: 1 });
  const failed = assert.rejects(queen.admin.getOverview(), { name: 'AbortError', message: 'Request timeout after 700ms', timeout: 700 });
  await clock.pass(700);
  await failed;
});

test('nobody listens: the system error after the tries', async (t) => {
  const server = await ScriptedServer.start();
  const url = server.url;
  await server.stop();
  const clock = new FakeClock();
  const failed = assert.rejects(client(t, { url, clock }).admin.getOverview(), { code: 'ECONNREFUSED' });
  await clock.pass(1000);
  await clock.pass(2000);
  await failed;
});

// ---- 429 ----

const BUSY = { status: 429, body: { error: 'slow down' } };

test('429: Retry-After is obeyed, else the pause doubles from half a second to thirty', async (t) => {
  const { clock, queen } = await start(t, [{ ...BUSY, headers: { 'Retry-After': '3' } }, ...Array(8).fill(BUSY), OK], { timeoutMillis: 77000 });
  const answer = queen.admin.getOverview();
  for (const ms of [3000, 1000, 2000, 4000, 8000, 16000, 30000, 30000, 30000]) await clock.pass(ms);
  assert.deepEqual(await answer, { ok: 1 });
});

test('429: the pause jitters by a fifth', async (t) => {
  const { clock, queen } = await start(t, [BUSY, BUSY, OK], { random: () => 1 });
  const answer = queen.admin.getOverview();
  await clock.pass(600);
  await clock.pass(1200);
  await answer;
});

test('429: ten attempts by default, retry429 says otherwise; no further tries', async (t) => {
  const { server, clock, queen } = await start(t, Array(10).fill(BUSY), { timeoutMillis: 77000 });
  const failed = assert.rejects(queen.admin.getOverview(), { status: 429, retryAfterSeconds: null });
  for (const ms of [500, 1000, 2000, 4000, 8000, 16000, 30000, 30000, 30000]) await clock.pass(ms);
  await failed;
  assert.equal(server.requests.length, 10);

  const other = await start(t, [BUSY, BUSY], { retry429: { maxAttempts: 2, baseMs: 10, capMs: 20 } });
  const second = assert.rejects(other.queen.admin.getOverview(), { status: 429 });
  await other.clock.pass(10);
  await second;
  assert.equal(other.server.requests.length, 2);
});

test('429: a waiting pop goes on past ten, one that does not wait gives []', async (t) => {
  const { clock, queen } = await start(t, [...Array(12).fill(BUSY), { status: 204 }, ...Array(10).fill(BUSY)]);
  const pop = queen.queue('q').pop();
  for (let i = 0; i < 12; i++) await clock.pass(Math.min(30000, 500 * 2 ** i));
  assert.deepEqual(await pop, []);
  const hasty = queen.queue('q').wait(false).pop();
  for (let i = 0; i < 9; i++) await clock.pass(Math.min(30000, 500 * 2 ** i));
  assert.deepEqual(await hasty, []);
});

test('429: maxAttempts also bounds a waiting pop', async (t) => {
  const { server, clock, queen } = await start(t, [BUSY, BUSY], { retry429: { maxAttempts: 2 } });
  const pop = queen.queue('q').pop();
  await clock.pass(500);
  assert.deepEqual(await pop, []);
  assert.equal(server.requests.length, 2);
});

test('429: a push is sent again; 403 of a push is final and has its code', async (t) => {
  const { server, clock, queen } = await start(t, [BUSY, { status: 201, body: [{ status: 'queued' }] }, { status: 403, body: { error: 'no', code: 'forbidden' } }]);
  const push = queen.queue('q').push({ data: 1 }).then((answer) => answer);
  await clock.pass(500);
  assert.equal((await push)[0].status, 'queued');
  assert.equal(server.requests[0].text, server.requests[1].text);
  await assert.rejects(Promise.resolve(queen.queue('q').push({ data: 1 })), { status: 403, code: 'forbidden' });
});

// ---- several nodes ----

async function nodes(t, scripts, options = {}) {
  const servers = [];
  for (const script of scripts) {
    const server = await ScriptedServer.start(script, OK);
    t.after(() => server.stop());
    servers.push(server);
  }
  const clock = new FakeClock();
  const queen = client(t, { urls: servers.map(({ url }) => url), clock, loadBalancingStrategy: 'round-robin', ...options });
  return { servers, clock, queen, asked: () => servers.map(({ requests }) => requests.length) };
}

test('failover: the next node at once, and the failed one is left out for a while', async (t) => {
  const { clock, queen, asked } = await nodes(t, [[DOWN], [], []]);
  await queen.admin.getOverview();
  assert.deepEqual(asked(), [1, 1, 0]);
  for (let i = 0; i < 4; i++) await queen.admin.getOverview();
  assert.equal(asked()[0], 1);
  clock.advance(5000);
  for (let i = 0; i < 3; i++) await queen.admin.getOverview();
  assert.equal(asked()[0], 2);
});

test('failover: when all fail there is a pause and another pass over all of them', async (t) => {
  const { clock, queen, asked } = await nodes(t, [[DOWN, OK], [{ drop: true }, DOWN], [DOWN, DOWN]]);
  const answer = queen.admin.getOverview();
  await clock.pass(1000);
  assert.deepEqual(await answer, { ok: 1 });
  const counts = asked();
  assert.ok(counts[0] === 2 && counts[1] >= 1 && counts[2] >= 1, String(counts));
});

test('failover: the passes are bounded', async (t) => {
  const { clock, queen, asked } = await nodes(t, [Array(9).fill(DOWN), Array(9).fill(DOWN)]);
  const failed = assert.rejects(queen.admin.getOverview(), { status: 503 });
  await clock.pass(1000);
  await clock.pass(2000);
  await failed;
  assert.deepEqual(asked(), [3, 3]);
});

test('failover: 4xx is the answer, of a healthy node', async (t) => {
  const { queen, asked } = await nodes(t, [[{ status: 400, body: { error: 'bad' } }], []]);
  await assert.rejects(queen.admin.getOverview(), { status: 400 });
  assert.deepEqual(asked(), [1, 0]);
});

test('without failover a try takes the next node, after the pause', async (t) => {
  const { clock, queen, asked } = await nodes(t, [[DOWN], []], { enableFailover: false });
  const answer = queen.admin.getOverview();
  await clock.pass(1000);
  assert.deepEqual(await answer, { ok: 1 });
  assert.deepEqual(asked(), [1, 1]);
});

test('affinity: one group of a queue polls one node, others spread; a failed node\'s polls move', async (t) => {
  const { servers, queen, asked } = await nodes(t, [[], [], []], { loadBalancingStrategy: 'affinity' });
  for (let i = 0; i < 5; i++) await queen.queue('orders').group('g').wait(false).pop();
  assert.deepEqual(asked().sort(), [0, 0, 5]);
  for (let i = 0; i < 60; i++) await queen.queue(`q${i}`).wait(false).pop();
  assert.ok(asked().every((count) => count > 5), String(asked()));
  const busiest = servers[asked().indexOf(Math.max(...asked()))];
  busiest.then_(DOWN);
  for (let i = 0; i < 60; i++) assert.deepEqual(await queen.queue(`q${i}`).wait(false).pop(), []);
});

test('session: a key keeps its node until that fails', async (t) => {
  const { servers, queen, asked } = await nodes(t, [[], []], { loadBalancingStrategy: 'session' });
  for (let i = 0; i < 4; i++) await queen.admin.getOverview();
  assert.deepEqual(asked().sort(), [0, 4]);
  servers[asked().indexOf(4)].then_(DOWN);
  for (let i = 0; i < 4; i++) await queen.admin.getOverview();
  assert.deepEqual(asked().sort(), [4, 5]);
});

// ---- Host ----

test('hostHeader: the Host says the given name, the connection goes to the base URL', async (t) => {
  const { server, queen } = await start(t, [OK], { hostHeader: 'acme.example:6711' });
  await queen.admin.health();
  assert.equal(server.last.headers.host, 'acme.example:6711');
});

test('hostHeader: a Host among the headers is taken as it, with a warning', async (t) => {
  const warn = t.mock.method(console, 'warn', () => {});
  const { server, queen } = await start(t, [OK], { headers: { host: 'acme' } });
  await queen.admin.health();
  assert.equal(server.last.headers.host, 'acme');
  assert.equal(warn.mock.callCount(), 1);
});

test('hostHeader: anything like a URL is refused', () => {
  for (const hostHeader of ['http://acme', 'acme/x', 'a b', 'user@acme', '']) {
    assert.throws(() => new Queen({ url: 'http://127.0.0.1:1', hostHeader, handleSignals: false }), /Invalid hostHeader/);
  }
  for (const hostHeader of ['acme.example', 'acme:6711', '[::1]:6711']) {
    new Queen({ url: 'http://127.0.0.1:1', hostHeader, handleSignals: false });
  }
});
