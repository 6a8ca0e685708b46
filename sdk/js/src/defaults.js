/* The defaults of every option, exported so that programs can read them. Frozen: a program changes options, not defaults. */

/** Options of `new Queen({...})`. */
export const CLIENT_DEFAULTS = Object.freeze({
  timeoutMillis: 30000,
  retryAttempts: 3,
  retryDelayMillis: 1000,
  loadBalancingStrategy: 'affinity',
  affinityHashRing: 128,
  enableFailover: true,
  healthRetryAfterMillis: 5000,
  bearerToken: null,
  headers: Object.freeze({}),
  hostHeader: null,
  handleSignals: true,
  logger: null,
});

/** Options of `queue().config({...}).create()`. */
export const QUEUE_DEFAULTS = Object.freeze({
  leaseTime: 300,
  retryLimit: 3,
  priority: 0,
  delayedProcessing: 0,
  windowBuffer: 0,
  maxSize: 0,
  retentionSeconds: 0,
  completedRetentionSeconds: 0,
  encryptionEnabled: false,
});

/** What `consume()` does unless the builder says otherwise. */
export const CONSUME_DEFAULTS = Object.freeze({
  concurrency: 1,
  batch: 1,
  autoAck: true,
  wait: true,
  timeoutMillis: 30000,
  limit: null,
  idleMillis: null,
  renewLease: false,
  renewLeaseIntervalMillis: null,
  subscriptionMode: null,
  subscriptionFrom: null,
  maxPartitions: 1,
  conflation: false,
});

/** What `pop()` does unless the builder says otherwise. */
export const POP_DEFAULTS = Object.freeze({
  batch: 1,
  wait: true,
  timeoutMillis: 30000,
  autoAck: false,
});

/** Options of `queue().buffer({...})`; `maxSize` is four times `messageCount` when only that is given. */
export const BUFFER_DEFAULTS = Object.freeze({
  messageCount: 100,
  timeMillis: 1000,
  maxSize: 400,
  retryDelayMillis: 250,
});

/** The group a message without one reports. */
export const QUEUE_MODE = '__QUEUE_MODE__';

/** The partition of a builder that names none. */
export const DEFAULT_PARTITION = 'Default';

/** What a long poll may take beyond its own time-out before the client gives up on the answer. */
export const POLL_SLACK_MILLIS = 5000;

/** How long `close()` and a signal wait for buffers and for running handlers. */
export const CLOSE_DEADLINE_MILLIS = 30000;
