/* consume(): what a handler gets, how it is acknowledged, what errors and the signal do. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { until } from './support/clock.mjs';
import { EMPTY, honoured, message, popped, start, to } from './support/kit.mjs';

/** A broker that pops what it was given, parks further polls, and honours acks; ended by the signal. */
async function consumer(t, pops, options = {}) {
  const script = [...pops];
  const controller = new AbortController();
  const kit = await start(t, [], {
    fallback: (request) => {
      if (request.path.startsWith('/api/v1/pop')) return script.length > 0 ? script.shift() : { hang: true };
      if (request.path.endsWith('/extend')) return { body: { success: true, renewed: 1 } };
      return (options.ack ?? honoured)(request);
    },
    ...options.client,
  });
  const acks = () =>
    kit.server.requests
      .filter(({ path }) => path.startsWith('/api/v1/ack'))
      .flatMap(({ json }) => (json.acknowledgments ?? [json]).map(({ transactionId, status }) => `${transactionId} ${status}`));
  const polls = () => kit.server.requests.filter(({ path }) => path.startsWith('/api/v1/pop'));
  return { ...kit, controller, signal: controller.signal, stop: () => controller.abort(), acks, polls };
}

const three = popped(message(1), message(2), message(3));

test('nothing is sent before the await; a batch goes to the handler as an array and is acked in one call', async (t) => {
  const { server, queen, signal, stop, acks } = await consumer(t, [three, popped(message(4))]);
  const seen = [];
  const operation = queen.queue('q').group('g').consume(async (messages) => {
    seen.push(messages.map(({ data }) => data.id));
    if (seen.length === 2) stop();
  }, { signal });
  await new Promise((resolve) => setTimeout(resolve, 20));
  assert.equal(server.requests.length, 0);
  await operation;
  assert.deepEqual(seen, [[1, 2, 3], [4]]);
  assert.deepEqual(acks(), ['t-1 completed', 't-2 completed', 't-3 completed', 't-4 completed']);
  assert.deepEqual(to(server, '/api/v1/ack/batch').map(({ json }) => json.consumerGroup), ['g', 'g']);
});

test('each: one message a call, in order, acked one by one after its handler', async (t) => {
  const { server, queen, signal, stop, acks } = await consumer(t, [three]);
  const events = [];
  await queen.queue('q').each().consume(async ({ data }) => {
    events.push(`handled ${data.id}, acked ${to(server, '/api/v1/ack').length}`);
    if (data.id === 3) stop();
  }, { signal });
  assert.deepEqual(events, ['handled 1, acked 0', 'handled 2, acked 1', 'handled 3, acked 2']);
  assert.deepEqual(acks(), ['t-1 completed', 't-2 completed', 't-3 completed']);
});

test('the poll of a consumer on the wire', async (t) => {
  const url = async (build) => {
    const { queen, signal, stop, polls } = await consumer(t, [popped(message(1))]);
    await build(queen).consume(stop, { signal });
    return polls()[0].url;
  };
  assert.equal(await url((q) => q.queue('q')), '/api/v1/pop/queue/q?autopilot=true&wait=true&timeout=30000');
  assert.equal(await url((q) => q.queue('q').wait(false)), '/api/v1/pop/queue/q?autopilot=true&wait=false&timeout=30000');
  assert.equal(
    await url((q) => q.queue().namespace('n').group('g').autoAck(true).subscriptionMode('new')),
    '/api/v1/pop?autopilot=true&wait=true&timeout=30000&consumerGroup=g&subscriptionMode=new&namespace=n',
  );
});

test('autoAck(false) sends no ack', async (t) => {
  const { server, queen, signal, stop } = await consumer(t, [three]);
  await queen.queue('q').autoAck(false).consume(stop, { signal });
  assert.equal(server.requests.filter(({ path }) => path.includes('ack')).length, 0);
});

for (const autoAck of [true, false]) {
  test(`a handler that throws nacks and the consumer goes on (autoAck ${autoAck})`, async (t) => {
    const { server, queen, signal, stop, acks } = await consumer(t, [three, popped(message(4))]);
    let calls = 0;
    await queen.queue('q').autoAck(autoAck).consume(() => {
      if (++calls === 1) throw new Error('boom');
      stop();
    }, { signal });
    const completed = autoAck ? ['t-4 completed'] : [];
    assert.deepEqual(acks(), ['t-1 failed', 't-2 failed', 't-3 failed', ...completed]);
    assert.equal(to(server, '/api/v1/ack/batch')[0].json.acknowledgments[0].error, 'boom');
  });

  test(`each: after a nack the rest of its partition is left, other partitions go on (autoAck ${autoAck})`, async (t) => {
    const { queen, signal, stop, acks } = await consumer(t, [
      popped(message('A1'), message('A2'), message('B1', { partitionId: '8' }), message('B2', { partitionId: '8' })),
      popped(message('A1')),
    ]);
    const handled = [];
    await queen.queue('q').each().autoAck(autoAck).consume(({ data }) => {
      handled.push(data.id);
      if (handled.length === 1) throw new Error('boom');
      if (handled.length === 4) stop();
    }, { signal });
    assert.deepEqual(handled, ['A1', 'B1', 'B2', 'A1']);
    assert.deepEqual(acks(), autoAck ? ['t-A1 failed', 't-B1 completed', 't-B2 completed', 't-A1 completed'] : ['t-A1 failed']);
  });
}

test('something that is no Error is nacked with its text', async (t) => {
  const { server, queen, signal, stop } = await consumer(t, [popped(message(1))]);
  await queen.queue('q').each().consume(() => {
    stop();
    throw 'only text'; // eslint-disable-line no-throw-literal
  }, { signal });
  assert.equal(to(server, '/api/v1/ack')[0].json.error, 'only text');
});

test('onSuccess and onError take over the acks', async (t) => {
  const { server, queen, signal, stop } = await consumer(t, [popped(message(1)), popped(message(2))]);
  const told = [];
  await queen
    .queue('q')
    .each()
    .consume(({ data }) => {
      if (data.id === 2) throw new Error('boom');
      return 'result';
    }, { signal })
    .onSuccess((msg, result) => told.push([msg.data.id, result]))
    .onError((msg, error) => {
      told.push([msg.data.id, error.message]);
      stop();
    });
  assert.deepEqual(told, [[1, 'result'], [2, 'boom']]);
  assert.equal(server.requests.filter(({ path }) => path.includes('ack')).length, 0);
});

test('a refused ack does not end the consumer', async (t) => {
  const { queen, signal, stop } = await consumer(t, [popped(message(1)), popped(message(2))], {
    ack: () => ({ body: [{ index: 0, success: false, error: 'invalid or expired lease' }] }),
  });
  let calls = 0;
  await queen.queue('q').each().consume(() => {
    if (++calls === 2) stop();
  }, { signal });
  assert.equal(calls, 2);
});

test('many workers: acks that come up together travel together, each worker gets its own verdict', async (t) => {
  const pops = Array.from({ length: 30 }, (_, i) => popped(message(i, { partitionId: String(i), leaseId: `lease-${i}` })));
  let open = 0;
  let handled = 0;
  // No ack is answered before every worker has handled its message: those that can not be sent meanwhile gather.
  const { server, queen, signal, stop, acks } = await consumer(t, pops, {
    ack: async (request) => {
      open += 1;
      assert.ok(open <= 2);
      await until(() => handled === 30);
      open -= 1;
      return honoured(request);
    },
  });
  const done = queen.queue('q').group('g').each().concurrency(30).consume(() => {
    handled += 1;
  }, { signal }).then(() => {});
  await until(() => acks().length === 30);
  stop();
  await done;
  assert.equal(new Set(acks()).size, 30);
  assert.ok(acks().every((ack) => ack.endsWith(' completed')));
  const batches = server.requests.filter(({ path }) => path.startsWith('/api/v1/ack'));
  assert.ok(batches.length <= 5, `${batches.length} requests`);
  for (const { json } of batches) assert.equal(json.consumerGroup, 'g');
  const each = batches.flatMap(({ json }) => json.acknowledgments ?? [json]);
  assert.ok(each.every(({ transactionId, leaseId }) => transactionId.slice(2) === leaseId.slice(6)));
});

// ---- ends ----

test('the signal closes the poll at once, consume resolves, the node stays healthy', async (t) => {
  const { server, queen, signal, stop } = await consumer(t, []);
  const done = queen.queue('q').consume(() => assert.fail('no message'), { signal }).then(() => 'resolved');
  await until(() => server.requests.length === 1);
  stop();
  assert.equal(await done, 'resolved');
  await until(() => server.cut === 1);
  assert.equal(server.requests.length, 1);
});

test('a signal that fired before ends the consumer without a request', async (t) => {
  const { server, queen, signal, stop } = await consumer(t, []);
  stop();
  await queen.queue('q').consume(() => {}, { signal });
  assert.equal(server.requests.length, 0);
});

test('each, stopped by the signal: what was not begun goes back with retry in one batch', async (t) => {
  const { server, queen, signal, stop, acks } = await consumer(t, [three]);
  await queen.queue('q').group('g').each().consume(stop, { signal });
  assert.deepEqual(acks(), ['t-1 completed', 't-2 retry', 't-3 retry']);
  assert.equal(to(server, '/api/v1/ack/batch')[0].json.consumerGroup, 'g');
});

test('each, limit reached: what was not begun goes back, except of nacked partitions', async (t) => {
  const { queen, acks } = await consumer(t, [
    popped(message('A1'), message('A2'), message('B1', { partitionId: '8' }), message('B2', { partitionId: '8' })),
  ]);
  await queen.queue('q').each().limit(2).consume(({ data }) => {
    if (data.id === 'A1') throw new Error('boom');
  });
  assert.deepEqual(acks(), ['t-A1 failed', 't-B1 completed', 't-B2 retry']);
});

test('limit is for each worker; a batch is handled whole', async (t) => {
  const { queen, polls } = await consumer(t, [three, three, three]);
  let handled = 0;
  await queen.queue('q').concurrency(2).limit(2).consume((messages) => {
    handled += messages.length;
  });
  assert.equal(handled, 6);
  assert.equal(polls().length, 2);
});

test('a give-back that fails does not fail the consumer', async (t) => {
  const { queen } = await consumer(t, [three], {
    ack: ({ json }) => (json.acknowledgments ? { status: 400, body: { error: 'x' } } : honoured({ json })),
  });
  await queen.queue('q').each().limit(1).consume(() => {});
});

test('an answer that had begun is read to its end and given back', async (t) => {
  let release;
  const slow = new Promise((resolve) => {
    release = resolve;
  });
  const { server, queen, signal, stop, acks } = await consumer(t, [{ ...three, slow }]);
  let handled = 0;
  const done = queen.queue('q').consume(() => {
    handled += 1;
  }, { signal }).then(() => {});
  await until(() => server.requests.length === 1);
  await new Promise((resolve) => setTimeout(resolve, 50));
  stop();
  release();
  await done;
  assert.equal(handled, 0);
  assert.deepEqual(acks(), ['t-1 retry', 't-2 retry', 't-3 retry']);
});

test('the signal ends the pauses after 429, 5xx and a lost connection', async (t) => {
  for (const answer of [{ status: 429, body: {} }, { status: 503, body: {} }, { drop: true }]) {
    const { server, clock, queen, signal, stop } = await consumer(t, [answer]);
    const done = queen.queue('q').consume(() => {}, { signal }).then(() => 'resolved');
    await until(() => server.requests.length === 1 && clock.pending.some((ms) => ms <= 1000));
    stop();
    assert.equal(await done, 'resolved');
    assert.equal(server.requests.length, 1);
  }
});

test('idleMillis ends a worker, and no poll waits past it', async (t) => {
  const idle = () => {
    kit.clock.advance(250);
    return EMPTY;
  };
  const kit = await consumer(t, [popped(message(1)), idle, idle]);
  await kit.queen.queue('q').each().idleMillis(400).consume(() => kit.clock.advance(100));
  assert.deepEqual(kit.polls().map(({ query }) => query.timeout), ['400', '400', '150']);
});

// ---- errors of a poll ----

test('no answer and 5xx: pauses, then goes on', async (t) => {
  const down = { status: 503, body: { error: 'no leader', code: 'no_leader' } };
  const { clock, queen, signal, stop } = await consumer(t, [{ drop: true }, down, { ...down, headers: { 'Retry-After': '7' } }, { status: 500, body: {} }, popped(message(1))], {
    client: { retryAttempts: 1 },
  });
  const done = queen.queue('q').consume(stop, { signal }).then(() => 'resolved');
  for (const ms of [1000, 2000, 7000, 8000]) await clock.pass(ms);
  assert.equal(await done, 'resolved');
});

test('429 that outlives its patience: Retry-After or a second, then goes on', async (t) => {
  const busy = { status: 429, body: { error: 'slow down' } };
  const { clock, queen, signal, stop } = await consumer(t, [busy, { ...busy, headers: { 'Retry-After': '3' } }, popped(message(1))], {
    client: { retry429: { maxAttempts: 1 } },
  });
  const done = queen.queue('q').consume(stop, { signal }).then(() => 'resolved');
  await clock.pass(1000);
  await clock.pass(3000);
  assert.equal(await done, 'resolved');
});

test('a poll that times out is polled again at once', async (t) => {
  const { clock, queen, signal, stop, polls } = await consumer(t, [{ hang: true }, popped(message(1))], { client: { retryAttempts: 1 } });
  const done = queen.queue('q').timeoutMillis(300).consume(stop, { signal }).then(() => 'resolved');
  await until(() => polls().length === 1);
  await clock.pass(5300);
  assert.equal(await done, 'resolved');
});

for (const status of [400, 401, 403, 404]) {
  test(`${status} ends the consumer with that error, and the other workers`, async (t) => {
    const { server, queen } = await consumer(t, [{ hang: true }, { status, body: { error: 'no', code: 'c' } }]);
    await assert.rejects(Promise.resolve(queen.queue('q').concurrency(2).consume(() => {})), { status, code: 'c' });
    await until(() => server.cut === 1);
  });
}

test('a conflation fault and a 400 on a conflating poll reject', async (t) => {
  for (const [answer, expected] of [[popped(message(1)), { code: 'conflation_unsupported' }], [{ status: 400, body: { error: 'x' } }, { status: 400 }]]) {
    const { queen } = await consumer(t, [answer]);
    await assert.rejects(Promise.resolve(queen.queue('q').group('g').conflation().consume(() => {})), expected);
  }
});

test('an empty poll that does not wait pauses for what the broker says, or 100 ms', async (t) => {
  const { clock, queen, signal, stop } = await consumer(t, [EMPTY, { body: { messages: [], autopilot: { waitMs: 350 } } }, popped(message(1))]);
  const done = queen.queue('q').wait(false).consume(stop, { signal }).then(() => 'resolved');
  await clock.pass(100);
  await clock.pass(350);
  assert.equal(await done, 'resolved');
});

test('neither a queue nor labels: consume rejects, no request', async (t) => {
  const { server, queen } = await consumer(t, []);
  await assert.rejects(Promise.resolve(queen.queue().consume(() => {})), /Must specify queue/);
  assert.throws(() => queen.queue('q').consume(), TypeError);
  assert.equal(server.requests.length, 0);
});

// ---- renewal, trace, supervision ----

test('renewLease renews every interval while the handler runs', async (t) => {
  const { server, clock, queen, signal, stop } = await consumer(t, [three]);
  const renewals = () => to(server, '/api/v1/lease/lease-1/extend').length;
  const done = queen.queue('q').renewLease(true, 150).consume(async () => {
    await clock.pass(150);
    await until(() => renewals() === 1);
    await clock.pass(150);
    await until(() => renewals() === 2);
    stop();
  }, { signal }).then(() => 'resolved');
  assert.equal(await done, 'resolved');
  clock.advance(1000);
  await new Promise((resolve) => setTimeout(resolve, 20));
  assert.equal(renewals(), 2);
});

test('renewLease without an interval renews soon, then every third of the minute it gets', async (t) => {
  const { server, clock, queen, signal, stop } = await consumer(t, [three]);
  await queen.queue('q').renewLease(true).consume(async () => {
    await clock.pass(500);
    await until(() => to(server, '/api/v1/lease/lease-1/extend').length === 1);
    await clock.pass(20000);
    await until(() => to(server, '/api/v1/lease/lease-1/extend').length === 2);
    stop();
  }, { signal });
});

test('trace on the wire; it never throws', async (t) => {
  const { server, queen, signal, stop } = await consumer(t, [popped(message(1))], {
    ack: (request) => {
      if (request.path !== '/api/v1/traces') return honoured(request);
      return request.json.traceNames === null ? { status: 404, body: { error: 'not found' } } : { body: { traceId: 'x' } };
    },
  });
  const results = [];
  await queen.queue('q').each().consume(async (msg) => {
    results.push(await msg.trace({ traceName: ['a', ''], data: { step: 1 } }));
    results.push(await msg.trace({ eventType: 'error', data: { step: 2 } }));
    results.push(await msg.trace({}));
    stop();
  }, { signal });
  assert.deepEqual(to(server, '/api/v1/traces').map(({ json }) => json), [
    { transactionId: 't-1', partitionId: '7', consumerGroup: '__QUEUE_MODE__', traceNames: ['a'], eventType: 'info', data: { step: 1 } },
    { transactionId: 't-1', partitionId: '7', consumerGroup: '__QUEUE_MODE__', traceNames: null, eventType: 'error', data: { step: 2 } },
  ]);
  assert.deepEqual(results[0], { success: true, traceId: 'x' });
  assert.deepEqual(results[1], { success: false, error: 'not found' });
  assert.equal(results[2].success, false);
});

test('supervision publishes at start, every ten seconds and at the end, one at a time', async (t) => {
  const { server, clock, queen, signal, stop } = await consumer(t, [popped(message(1))], {
    client: { bearerToken: 'secret' },
    ack: (request) => (request.path === '/api/v1/kv' ? { body: { results: [] } } : honoured(request)),
  });
  const done = queen.queue('q').group('g').each().concurrency(2).supervision({ group: 'billing-production' }).consume(async () => {
    await until(() => to(server, '/api/v1/kv').length === 1);
    await clock.pass(10000);
    await until(() => to(server, '/api/v1/kv').length === 2);
    stop();
  }, { signal }).then(() => 'resolved');
  assert.equal(await done, 'resolved');
  const published = to(server, '/api/v1/kv').map((request) => {
    assert.equal(request.headers.authorization, 'Bearer secret');
    const [chunk, head] = request.json.operations;
    assert.equal(chunk.ns, 'queen-supervisor');
    assert.match(chunk.key, /^billing-production\/[0-9a-f-]{36}\/chunk\/0000$/);
    assert.match(head.key, /^billing-production\/[0-9a-f-]{36}\/head$/);
    assert.equal(head.ttlSeconds, 60);
    assert.equal(chunk.value.write, head.value.write);
    const text = Buffer.from(chunk.value.data, 'base64');
    assert.equal(head.value.bytes, text.length);
    return JSON.parse(text.toString('utf8'));
  });
  assert.deepEqual(published.map(({ state }) => state), ['running', 'running', 'stopped']);
  const [pool] = published[1].pool_status;
  assert.deepEqual([pool.desired, pool.busy, pool.completed, pool.oldest_inflight_seconds], [2, 1, 0, 10]);
  assert.equal(published[2].pool_status[0].completed, 1);
});

test('supervision: bad groups are refused before polling, failures are harmless', async (t) => {
  const { server, queen } = await consumer(t, []);
  for (const group of [undefined, '', '-a', 'a b', 'coordination', 'x'.repeat(256)]) {
    await assert.rejects(Promise.resolve(queen.queue('q').supervision({ group }).consume(() => {})), /Invalid supervision group/);
  }
  assert.equal(server.requests.length, 0);
  const broken = await consumer(t, [popped(message(1))], { ack: (request) => (request.path === '/api/v1/kv' ? { status: 400, body: {} } : honoured(request)) });
  await broken.queen.queue('q').supervision({ group: 'g' }).consume(broken.stop, { signal: broken.signal });
  assert.deepEqual(broken.acks(), ['t-1 completed']);
});
