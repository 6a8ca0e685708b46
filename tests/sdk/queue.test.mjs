/* The original's queue.js. */
import assert from 'node:assert/strict';
import { suite } from './support/suite.mjs';

suite('queue', {
  async createQueue({ queen }) {
    assert.equal((await queen.queue('createQueue').create()).configured, true);
  },

  async deleteQueue(kit) {
    const queue = await kit.queue();
    assert.equal((await kit.queen.queue(queue).delete()).deleted, true);
  },

  async configureQueue({ queen }) {
    const options = {
      completedRetentionSeconds: 10, deadLetterQueue: true, delayedProcessing: 1, dlqAfterMaxRetries: true, encryptionEnabled: false,
      leaseTime: 20, maxSize: 10000, maxWaitTimeSeconds: 100, priority: 8, retentionEnabled: true, retentionSeconds: 7200, retryDelay: 2000,
      retryLimit: 5, ttl: 1800, windowBuffer: 3,
    };
    const created = await queen.queue('configureQueue').config(options).create();
    for (const [name, value] of Object.entries(options)) assert.deepEqual(created.options[name], value, name);
  },
});
