/* Every call of queen.admin and the group calls of the client against a real broker: what comes back means something, and the
 * calls whose routes the broker does not serve say so. */
import assert from 'node:assert/strict';
import { datas, suite } from './support/suite.mjs';

/** A queue with one message in the dead letters of group g. */
async function deadLetter(kit) {
  const queue = await kit.queue({ retryLimit: 0 });
  await kit.push(queue, ['poison']);
  const [message] = await kit.take(queue, 1, (builder) => builder.group('g').subscriptionMode('all'));
  assert.equal((await kit.queen.ack(message, 'dlq', { error: 'why' })).dlq, true);
  const { messages } = await kit.queen.queue(queue).dlq('g').get();
  assert.equal(messages.length, 1);
  return { queue, message, letter: messages[0] };
}

suite('admin', {
  async resources(kit) {
    const { admin } = kit.queen;
    const queue = kit.name();
    await kit.queen.queue(queue).namespace('ns-admin').task('task-admin').create();
    await kit.push(queue, [1, 2]);
    assert.ok((await admin.getOverview()).queues >= 1);
    assert.ok((await admin.getNamespaces()).namespaces.some(({ namespace }) => namespace === 'ns-admin'));
    assert.ok((await admin.getTasks()).tasks.some(({ task }) => task === 'task-admin'));
    assert.deepEqual((await admin.listQueues({ namespace: 'ns-admin' })).queues.map(({ name }) => name), [queue]);
    assert.equal((await admin.getQueue(queue)).name, queue);
    assert.equal((await admin.getQueueDepth(queue, 'some-group')).pending, 2);
  },

  async messages(kit) {
    const { admin } = kit.queen;
    const queue = await kit.queue();
    await kit.push(queue, [1, 2, 3]);
    const { messages } = await admin.listMessages({ queue });
    assert.equal(messages.length, 3);
    const [{ partitionId, transactionId }] = messages;
    assert.equal((await admin.getMessage(partitionId, transactionId)).transactionId, transactionId);
    await assert.rejects(admin.getMessage(partitionId, 'never-pushed'), { status: 404 });
  },

  async retryMessageReplaysADeadLetter(kit) {
    const { queue, message, letter } = await deadLetter(kit);
    await kit.queen.admin.retryMessage(message.partitionId, message.transactionId);
    const [again] = await kit.take(queue, 1, (builder) => builder.group('g'));
    assert.equal(again.data, letter.data);
    assert.equal((await kit.queen.queue(queue).dlq('g').get()).total, 0);
  },

  async deleteMessageRemovesADeadLetter(kit) {
    const { queue, message } = await deadLetter(kit);
    await kit.queen.admin.deleteMessage(message.partitionId, message.transactionId);
    assert.equal((await kit.queen.queue(queue).dlq('g').get()).total, 0);
    assert.deepEqual(await kit.now(queue, 1, (builder) => builder.group('g')), []);
  },

  async status(kit) {
    const { admin } = kit.queen;
    const queue = await kit.queue();
    await kit.push(queue, [1]);
    assert.ok('timeRange' in (await admin.getStatus()));
    assert.ok((await admin.getQueueStats()).queues.length >= 1);
    assert.equal((await admin.getQueueDetail(queue)).queue.name, queue);
    assert.ok(Array.isArray((await admin.getAnalytics()).dataPoints));
    assert.equal((await admin.health()).status, 'healthy');
    assert.equal(typeof (await admin.metrics()).uptime, 'number');
    assert.equal((await admin.refreshConsumerStats()).success, true);
  },

  async groups(kit) {
    const { admin } = kit.queen;
    const queue = await kit.queue();
    const group = kit.name('group');
    const of = (builder) => builder.group(group).subscriptionMode('all');
    await kit.push(queue, [1, 2, 3]);
    await kit.drain(queue, 2, of);
    assert.ok((await admin.listConsumerGroups()).some(({ name, queueName }) => name === group && queueName === queue));
    assert.ok(queue in (await admin.getConsumerGroup(group)));
    assert.ok(Array.isArray(await admin.getLaggingConsumers(0)));
    await admin.seekConsumerGroup(group, queue, { toEnd: true });
    assert.deepEqual(await kit.now(queue, 10, of), []);
    await admin.deleteConsumerGroupForQueue(group, queue);
    assert.deepEqual(datas(await kit.drain(queue, 3, of)), [1, 2, 3]);
    assert.equal((await kit.queen.updateConsumerGroupTimestamp(group, new Date().toISOString())).success, true);
    assert.equal((await kit.queen.deleteConsumerGroup(group)).success, true);
    assert.ok(!(await admin.listConsumerGroups()).some(({ name }) => name === group));
  },

  async whatIsNotServed(kit) {
    const { admin } = kit.queen;
    const queue = await kit.queue();
    await kit.push(queue, [1]);
    for (const call of [
      () => admin.getPartitions({ queue }), () => admin.getTraceNames(), () => admin.getTracesByName('n'), () => admin.getTracesForMessage('1', 't'),
      () => admin.getSystemMetrics(), () => admin.getWorkerMetrics(),
    ]) await assert.rejects(call(), { status: 404, code: 'no_such_route' }, String(call));
    let traced;
    await kit.queen.queue(queue).limit(1).each().consume(async (message) => {
      traced = await message.trace({ data: { step: 1 } });
    });
    assert.equal(traced.success, false);
  },
});
