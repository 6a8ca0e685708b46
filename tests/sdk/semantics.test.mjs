/* The original's semantics.js. */
import assert from 'node:assert/strict';
import { datas, numbers, sleep, suite } from './support/suite.mjs';

/** Pushes and pops messages 0..count-1 of one partition. */
async function taken(kit, count, options = {}, build) {
  const queue = await kit.queue(options);
  await kit.push(queue, numbers(count));
  return { queue, messages: await kit.take(queue, count, build) };
}

const withStatus = (messages, statuses) => messages.map((message, i) => ({ ...message, _status: statuses[i] }));

suite('semantics', {
  async implicitAckCompletesBatch(kit) {
    const { queue, messages } = await taken(kit, 5, { leaseTime: 1 });
    assert.equal((await kit.queen.ack(messages[4])).success, true);
    await sleep(1300);
    assert.deepEqual(await kit.now(queue, 10), []);
  },

  async outOfOrderAckSkipsEarlierOnly(kit) {
    const { queue, messages } = await taken(kit, 3, { leaseTime: 1 });
    assert.equal((await kit.queen.ack(messages[1])).success, true);
    await sleep(1300);
    assert.deepEqual(datas(await kit.now(queue, 10)), [2]);
  },

  async retryStatusIsBudgetFree(kit) {
    const { queue, messages } = await taken(kit, 1);
    let [message] = messages;
    for (let i = 0; i < 6; i++) {
      assert.equal((await kit.queen.ack(message, 'retry')).success, true);
      [message] = await kit.take(queue);
    }
    assert.equal((await kit.queen.queue(queue).dlq().get()).total, 0);
    let failures = 0;
    while (message !== undefined && failures < 5) {
      failures += 1;
      await kit.queen.ack(message, false, { error: 'x' });
      [message] = await kit.now(queue);
    }
    assert.equal(failures, 4);
    assert.equal((await kit.queen.queue(queue).dlq().get()).total, 1);
  },

  async dlqStatusBypassesRetries(kit) {
    const { queue, messages } = await taken(kit, 1, { retryLimit: 5 });
    const result = await kit.queen.ack(messages[0], 'dlq', { error: 'poison' });
    assert.deepEqual([result.success, result.dlq], [true, true]);
    assert.deepEqual(await kit.now(queue), []);
    assert.equal((await kit.queen.queue(queue).dlq().get()).messages[0].errorMessage, 'poison');
  },

  async leaseExpiryDoesNotChargeRetryBudget(kit) {
    const { queue } = await taken(kit, 1, { leaseTime: 1, retryLimit: 2 });
    for (let i = 0; i < 3; i++) {
      await sleep(1200);
      assert.equal((await kit.take(queue)).length, 1);
    }
    await sleep(1200);
    assert.equal((await kit.take(queue)).length, 1);
    assert.equal((await kit.queen.queue(queue).dlq().get()).total, 0);
  },

  async leaselessAckAfterExpirySucceeds(kit) {
    const { messages } = await taken(kit, 1, { leaseTime: 1 });
    await sleep(1300);
    const refused = await kit.queen.ack(messages[0]);
    assert.deepEqual([refused.success, refused.error], [false, 'invalid or expired lease']);
    const { leaseId, ...without } = messages[0];
    assert.ok(leaseId);
    assert.equal((await kit.queen.ack(without)).success, true);
  },

  async subscriptionNewDeliversLatePartitions(kit) {
    const queue = await kit.queue();
    await kit.push(queue, ['backlog'], 'old');
    const group = (builder) => builder.group('g').subscriptionMode('new').partitions(10);
    assert.deepEqual(await kit.now(queue, 10, group), []);
    await kit.push(queue, ['late'], 'young');
    assert.deepEqual(datas(await kit.take(queue, 10, group)), ['late']);
  },

  async queueModePopNeverSkipsBacklog(kit) {
    const queue = await kit.queue();
    await kit.push(queue, ['backlog']);
    assert.deepEqual(datas(await kit.take(queue, 1, (builder) => builder.subscriptionMode('new'))), ['backlog']);
  },

  async leasedBacklogNotStrandedByEmptyPolls(kit) {
    const { queue } = await taken(kit, 1, { leaseTime: 1 });
    for (let i = 0; i < 5; i++) assert.deepEqual(await kit.now(queue), []);
    await sleep(1300);
    assert.equal((await kit.now(queue)).length, 1);
  },

  async pushOnlyQueueIsDiscoverable(kit) {
    const namespace = kit.name('ns').replaceAll('-', '');
    const queue = `${namespace}.task.q`;
    await kit.push(queue, [1]);
    const { queues } = await kit.queen.admin.listQueues({ namespace });
    assert.ok(queues.some(({ name, namespace: of }) => name === queue && of === namespace), JSON.stringify(queues).slice(0, 500));
    const messages = await kit.queen.queue().namespace(namespace).batch(1).timeoutMillis(5000).pop();
    assert.deepEqual(datas(messages), [1]);
  },

  async messageDetailKeepsFullShape(kit) {
    const { queue, messages } = await taken(kit, 1, {}, (builder) => builder.group('g').subscriptionMode('all'));
    const [{ partitionId, transactionId, id }] = messages;
    const detail = await kit.queen.admin.getMessage(partitionId, transactionId);
    for (const member of ['id', 'transactionId', 'partitionId', 'partition', 'queue', 'queuePath', 'namespace', 'task', 'status', 'payload', 'createdAt', 'retryCount', 'queueConfig', 'consumerGroups']) {
      assert.ok(member in detail, member);
    }
    assert.deepEqual([detail.id, detail.transactionId, detail.queue, detail.payload], [id, transactionId, queue, 0]);
    assert.equal(detail.queueConfig.leaseTime, 300);
    assert.ok(detail.consumerGroups.some(({ name }) => name === 'g'));
  },

  async transactionAckHonorsRetryAndDlq(kit) {
    const { queue, messages } = await taken(kit, 1);
    await kit.queen.transaction().ack(messages[0], 'retry').commit();
    const [again] = await kit.take(queue);
    assert.equal(again.transactionId, messages[0].transactionId);
    await kit.queen.transaction().ack(again, 'dlq', { error: 'from a transaction' }).commit();
    assert.deepEqual(await kit.now(queue), []);
    const { messages: dead } = await kit.queen.queue(queue).dlq().get();
    assert.equal(dead[0].errorMessage, 'from a transaction');
  },

  async popLeaseSecondsOverride(kit) {
    const queue = await kit.queue({ leaseTime: 60 });
    await kit.push(queue, [1]);
    const response = await fetch(`${kit.broker.url}/api/v1/pop/queue/${queue}?batch=1&wait=true&timeout=5000&leaseSeconds=1`);
    assert.equal((await response.json()).messages.length, 1);
    await sleep(1300);
    assert.equal((await kit.now(queue)).length, 1);
  },

  async nackNotSkippedByLaterAckSameCall(kit) {
    const { queue, messages } = await taken(kit, 5);
    const { results } = await kit.queen.ack(withStatus(messages, [true, false, true, true, true]));
    assert.ok(results.every(({ success }) => success));
    assert.deepEqual(datas(await kit.now(queue, 10)), [1, 2, 3, 4]);
  },

  async retryNotSkippedByLaterAckSameCall(kit) {
    const { queue, messages } = await taken(kit, 5);
    await kit.queen.ack(withStatus(messages, [true, 'retry', true, true, true]));
    assert.deepEqual(datas(await kit.now(queue, 10)), [1, 2, 3, 4]);
    assert.equal((await kit.queen.queue(queue).dlq().get()).total, 0);
  },

  async nackBelowCursorIsRejected(kit) {
    const { messages } = await taken(kit, 3);
    assert.equal((await kit.queen.ack(messages[1])).success, true);
    const refused = await kit.queen.ack(messages[0], false);
    assert.equal(refused.success, false);
    assert.match(refused.error, /committed/i);
  },

  async ackBelowCursorIsNoopFlagged(kit) {
    const { messages } = await taken(kit, 3);
    assert.ok(!(await kit.queen.ack(messages[1])).noop);
    const again = await kit.queen.ack(messages[0]);
    assert.deepEqual([again.success, again.noop], [true, true]);
  },

  async eachStopsBatchAfterNack(kit) {
    const queue = await kit.queue({ retryLimit: 1 });
    await kit.push(queue, numbers(5));
    const handled = {};
    await kit.queen.queue(queue).batch(5).each().idleMillis(1500).consume(({ data }) => {
      handled[data] = (handled[data] ?? 0) + 1;
      if (data === 1) throw new Error('poison');
    });
    assert.deepEqual(handled, { 0: 1, 1: 2, 2: 1, 3: 1, 4: 1 });
    const { messages } = await kit.queen.queue(queue).dlq().get();
    assert.deepEqual(datas(messages), [1]);
  },

  async aStoppedConsumerChargesNothing(kit) {
    const { queue } = { queue: await kit.queue({ retryLimit: 0 }) };
    await kit.push(queue, numbers(5));
    const controller = new AbortController();
    await kit.queen.queue(queue).batch(5).each().consume(() => controller.abort(), { signal: controller.signal });
    assert.deepEqual(datas(await kit.now(queue, 10)), [1, 2, 3, 4]);
    assert.equal((await kit.queen.queue(queue).dlq().get()).total, 0);
  },
});
