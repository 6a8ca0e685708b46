/* Runs the examples against a real broker and asserts what each comes to. They are run from a copy in which the package
 * name resolves to our SDK, as it does in a program that has installed it. */
import assert from 'node:assert/strict';
import { execFile, spawn } from 'node:child_process';
import { once } from 'node:events';
import { cpSync, mkdirSync, mkdtempSync, rmSync, symlinkSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { after, before, test } from 'node:test';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { promisify } from 'node:util';
import { Broker } from '../tests/sdk/support/broker.mjs';

const run = promisify(execFile);
const here = path.dirname(fileURLToPath(import.meta.url));
let folder;
let broker;
let queen;

before(async () => {
  const base = process.env.QUEEN_TEST_DIR ?? tmpdir();
  mkdirSync(base, { recursive: true });
  folder = mkdtempSync(path.join(base, 'examples-'));
  for (const file of ['package.json', 'push-twice.mjs', 'mailer.mjs', 'payments.mjs']) cpSync(path.join(here, file), path.join(folder, file));
  mkdirSync(path.join(folder, 'node_modules'));
  symlinkSync(path.resolve(here, '..', 'sdk', 'js'), path.join(folder, 'node_modules', 'queen-mq'));
  broker = await Broker.start();
  const { Queen } = await import('../sdk/js/index.js');
  queen = new Queen({ url: broker.url, handleSignals: false });
});

after(async () => {
  await queen?.close();
  await broker?.stop();
  rmSync(folder, { recursive: true, force: true });
});

const load = (file) => import(pathToFileURL(path.join(folder, file)).href);

async function eventually(fn, what) {
  const end = performance.now() + 20000;
  while (!(await fn())) {
    assert.ok(performance.now() < end, `not within 20 s: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

test('push twice: the second push is a duplicate of the same message', async () => {
  const { stdout } = await run(process.execPath, [path.join(folder, 'push-twice.mjs'), broker.url]);
  assert.deepEqual(JSON.parse(stdout), { first: 'queued', second: 'duplicate', sameMessage: true });
  assert.equal((await queen.queue('orders').batch(10).pop()).length, 1);
});

test('the mailer sends each mail once, though it is delivered twice', async () => {
  const { runMailer } = await load('mailer.mjs');
  const sent = [];
  const controller = new AbortController();
  const mailer = runMailer(queen, async (mail) => sent.push(mail.id), controller.signal);
  await queen.queue('mails').push(['a', 'b', 'a', 'c', 'b'].map((id) => ({ data: { id, to: `${id}@example.com`, text: 'hello' } })));
  await eventually(async () => (await queen.admin.getQueueDepth('mails', 'mailer')).pending === 0 && sent.length >= 3, 'the mails to be handled');
  controller.abort();
  await mailer;
  assert.deepEqual(sent, ['a', 'b', 'c']);
  assert.equal((await queen.queue('mails').dlq('mailer').get()).total, 0);
});

test('payments: taken once, repeated, lease lost, handler throws', async () => {
  const { runPayments } = await load('payments.mjs');
  const outcomes = [];
  const controller = new AbortController();
  let slow = true;
  const worker = runPayments(queen, {
    charge: async ({ id }) => {
      if (id === 'broken') throw new Error('the bank says no');
      if (id === 'slow' && slow) {
        // Longer than the lease: what is committed afterwards must not count.
        slow = false;
        await new Promise((resolve) => setTimeout(resolve, 2600));
      }
      return { reference: `bank-${id}` };
    },
    told: (outcome, { id }) => outcomes.push(`${id} ${outcome}`),
  }, controller.signal);

  const push = (id) => queen.queue('payments').partition(id).push([{ data: { id, customer: 'c-1' } }]);
  await push('p1');
  await eventually(() => outcomes.length === 1, 'the first payment');
  await push('p1');
  await eventually(() => outcomes.length === 2, 'its second delivery');
  await push('slow');
  await eventually(() => outcomes.length === 4, 'the lost lease and the payment after it');
  await push('broken');
  await eventually(async () => (await queen.queue('payments').dlq('billing').get()).total === 1, 'the dead letter');
  controller.abort();
  await worker;

  assert.deepEqual(outcomes, ['p1 taken', 'p1 repeated', 'slow lost', 'slow taken']);
  assert.equal((await queen.admin.getQueueDepth('payments', 'billing')).pending, 0);
  for (const id of ['p1', 'slow']) {
    assert.deepEqual((await queen.kv.get('payments', id)).value, { state: 'taken', reference: `bank-${id}` });
    assert.equal((await queen.timer('reminders').key(`payment-${id}`).peek()).found, true);
  }
  const receipts = await queen.queue('receipts').batch(10).pop();
  assert.deepEqual(receipts.map(({ data, partition }) => [data.payment, partition]), [['p1', 'c-1'], ['slow', 'c-1']]);
  const { messages } = await queen.queue('payments').dlq('billing').get();
  assert.deepEqual([messages[0].data.id, messages[0].errorMessage], ['broken', 'the bank says no']);
  assert.equal((await queen.kv.get('payments', 'broken')).found, false);
});

test('SIGTERM during consume: what was not begun is there for the next worker, and no attempt was charged', async () => {
  await queen.queue('work').config({ leaseTime: 300, retryLimit: 0 }).create();
  await queen.queue('work').push([1, 2, 3, 4].map((data) => ({ data })));
  const program = `
    import { Queen } from 'queen-mq';
    const queen = new Queen(${JSON.stringify(broker.url)});
    await queen.queue('work').batch(4).each().consume(async ({ data }) => {
      console.log('began ' + data);
      await new Promise((resolve) => setTimeout(resolve, 500));
    });`;
  const child = spawn(process.execPath, ['--input-type=module', '-e', program], { cwd: folder, stdio: ['ignore', 'pipe', 'inherit'] });
  const [text] = await once(child.stdout, 'data');
  assert.equal(String(text).trim(), 'began 1');
  child.kill('SIGTERM');
  const [code] = await once(child, 'exit');
  assert.equal(code, 0);
  const rest = await queen.queue('work').batch(10).wait(false).pop();
  assert.deepEqual(rest.map(({ data }) => data), [2, 3, 4]);
  // retryLimit 0: had an attempt been charged, they would lie among the dead letters.
  assert.equal((await queen.queue('work').dlq().get()).total, 0);
});
