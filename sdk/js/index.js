/* The public names of the package. Everything a program may rely on is exported here; nothing under src/ is. */
export { Queen } from './src/queen.js';
export { Admin } from './src/admin.js';
export { Lock } from './src/locks/lock.js';
export { Locks, LOCK_NOT_HELD } from './src/locks/locks.js';
export { CONFLATION_UNSUPPORTED } from './src/queue/conflation.js';
export {
  CLIENT_DEFAULTS,
  QUEUE_DEFAULTS,
  CONSUME_DEFAULTS,
  POP_DEFAULTS,
  BUFFER_DEFAULTS,
} from './src/defaults.js';
export {
  Ephemeral,
  EPHEMERAL_UNSUPPORTED,
  EPHEMERAL_QUEUE_NOT_FOUND,
  Stream,
  tokenBucketGate,
  slidingWindowGate,
} from './src/unsupported.js';
