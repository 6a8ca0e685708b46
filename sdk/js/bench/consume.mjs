/* Jobs a second of a consume loop: one job a handler call, many side by side, each acknowledged.
 *
 *   node consume.mjs queen  URL  [JOBS] [CONCURRENCY] [PARTITIONS]    this SDK against a broker
 *   node consume.mjs bullmq PORT [JOBS] [CONCURRENCY]                 bullmq against a Redis on 127.0.0.1
 *
 * Both sides have the same job (a JSON object of about 200 bytes) and the same handler, an asynchronous function that
 * looks at the job and ends. All jobs are there before the clock starts; it stops when the last acknowledgment was
 * answered. A tenth of the jobs runs first, unmeasured, so that both are compiled and connected. Prints one JSON line. */
import { createRequire } from 'node:module';
import path from 'node:path';

const [kind, where, jobsText = '100000', concurrencyText = '50', partitionsText = '200'] = process.argv.slice(2);
const jobs = Number(jobsText);
const concurrency = Number(concurrencyText);
const partitions = Number(partitionsText);
const PUSH_BATCH = 1000;

function job(i) {
  return {
    order: i,
    customer: `customer-${i % partitions}`,
    kind: 'send-receipt',
    to: `someone-${i}@example.com`,
    note: 'Thank you for your order; the receipt is attached to this message as a document.',
    amount: 1000 + (i % 97),
  };
}

/** The work of one job; `seen` counts what was handled, so that nothing can be skipped. */
function handlerOf(seen) {
  return async (data) => {
    if (data.kind !== 'send-receipt') throw new Error('not our job');
    await null;
    seen.count += 1;
    seen.sum += data.order;
  };
}

function report(seconds, count, seen) {
  const expected = (count * (count - 1)) / 2;
  if (seen.count !== count || seen.sum !== expected) throw new Error(`handled ${seen.count} jobs of ${count}, not each once`);
  console.log(JSON.stringify({ kind, jobs: count, concurrency, seconds: Number(seconds.toFixed(3)), jobs_per_s: Math.round(count / seconds) }));
}

async function benchQueen() {
  const { Queen } = await import('../index.js');
  const queen = new Queen({ url: where, handleSignals: false });

  async function round(queue, count) {
    await queen.queue(queue).config({ leaseTime: 60 }).create();
    const batches = Array.from({ length: partitions }, () => []);
    for (let i = 0; i < count; i++) batches[i % partitions].push({ data: job(i) });
    for (let p = 0; p < partitions; p++) {
      for (let at = 0; at < batches[p].length; at += PUSH_BATCH) {
        await queen.queue(queue).partition(`customer-${p}`).push(batches[p].slice(at, at + PUSH_BATCH));
      }
    }
    const seen = { count: 0, sum: 0 };
    const handle = handlerOf(seen);
    const controller = new AbortController();
    const started = performance.now();
    await queen
      .queue(queue)
      .each()
      .concurrency(concurrency)
      .consume(async (message) => {
        await handle(message.data);
        // The workers end between two messages, after the acknowledgment of the last.
        if (seen.count === count) controller.abort();
      }, { signal: controller.signal });
    const seconds = (performance.now() - started) / 1000;
    const { pending } = await queen.admin.getQueueDepth(queue);
    if (pending !== 0) throw new Error(`${pending} jobs were not acknowledged`);
    return [seconds, seen];
  }

  await round('warm-up', Math.round(jobs / 10));
  const [seconds, seen] = await round('jobs', jobs);
  report(seconds, jobs, seen);
  await queen.close();
}

async function benchBullmq() {
  const modules = process.env.QUEEN_BENCH_MODULES ?? path.resolve('node_modules');
  const { Queue, Worker } = createRequire(path.join(modules, 'x.js'))('bullmq');
  const connection = { host: '127.0.0.1', port: Number(where), maxRetriesPerRequest: null };

  async function round(name, count) {
    const queue = new Queue(name, { connection });
    for (let at = 0; at < count; at += PUSH_BATCH) {
      const size = Math.min(PUSH_BATCH, count - at);
      // Finished jobs are removed, which is the cheapest that Redis can be asked for.
      await queue.addBulk(Array.from({ length: size }, (_, i) => ({ name: 'job', data: job(at + i), opts: { removeOnComplete: true, removeOnFail: true } })));
    }
    const seen = { count: 0, sum: 0 };
    const handle = handlerOf(seen);
    let completed = 0;
    const worker = new Worker(name, ({ data }) => handle(data), { connection, concurrency, autorun: false });
    await worker.waitUntilReady();
    const started = performance.now();
    await new Promise((resolve, reject) => {
      worker.on('completed', () => {
        completed += 1;
        if (completed === count) resolve();
      });
      worker.on('failed', (_, error) => reject(error));
      worker.run().catch(reject);
    });
    const seconds = (performance.now() - started) / 1000;
    await worker.close();
    await queue.close();
    return [seconds, seen];
  }

  await round('warm-up', Math.round(jobs / 10));
  const [seconds, seen] = await round('jobs', jobs);
  report(seconds, jobs, seen);
}

const benches = { queen: benchQueen, bullmq: benchBullmq };
if (!(kind in benches) || !where) {
  console.error('usage: node consume.mjs queen URL | bullmq PORT  [JOBS] [CONCURRENCY] [PARTITIONS]');
  process.exit(2);
}
await benches[kind]();
