/* Lock operations as they travel, with the checks that need no broker. A semaphore is a lock with a limit above 1. */
import { durationSeconds } from '../duration.js';

const NAME_BYTES_MAX = 256;
const LIMIT_MAX = 1024;
// eslint-disable-next-line no-control-regex
const CONTROL = /[\u0000-\u001f\u007f]/;

/** A lock's name: 1 to 256 bytes, no control characters, no '#'. */
export function checkedName(name) {
  if (typeof name !== 'string' || name === '' || Buffer.byteLength(name) > NAME_BYTES_MAX || CONTROL.test(name) || name.includes('#')) {
    throw new TypeError(`A lock's name is 1 to ${NAME_BYTES_MAX} bytes without control characters and without '#': ${JSON.stringify(name)}`);
  }
  return name;
}

/** Who holds a permit: 1 to 256 bytes, no control characters. */
export function checkedOwner(owner) {
  if (typeof owner !== 'string' || owner === '' || Buffer.byteLength(owner) > NAME_BYTES_MAX || CONTROL.test(owner)) {
    throw new TypeError(`A lock's owner is 1 to ${NAME_BYTES_MAX} bytes without control characters: ${JSON.stringify(owner)}`);
  }
  return owner;
}

/** The lifetime in seconds, from `ttl` or `ttlSeconds`. A lock never lives forever. */
export function lifetimeSeconds({ ttl, ttlSeconds, forever }) {
  if (forever !== undefined) throw new Error('A lock can not live forever; give ttl or ttlSeconds');
  if (ttl !== undefined && ttlSeconds !== undefined) throw new Error('Only one of ttl and ttlSeconds may be given');
  if (ttl !== undefined) return durationSeconds(ttl);
  if (!Number.isSafeInteger(ttlSeconds) || ttlSeconds <= 0) {
    throw new TypeError(`A lock needs ttl ('30s') or ttlSeconds (a whole number above 0), got ${String(ttlSeconds)}`);
  }
  return ttlSeconds;
}

export function checkedLimit(limit) {
  if (!Number.isInteger(limit) || limit < 1 || limit > LIMIT_MAX) throw new RangeError(`limit must be 1 to ${LIMIT_MAX}, got ${String(limit)}`);
  return limit;
}

function checkedToken(token) {
  if (!Number.isSafeInteger(token) || token <= 0) throw new TypeError(`token must be a whole number above 0, got ${String(token)}`);
  return token;
}

export function acquireOp(name, options = {}) {
  const op = { op: 'acquire', name: checkedName(name), ttlSeconds: lifetimeSeconds(options) };
  if (options.owner !== undefined) op.owner = checkedOwner(options.owner);
  if (options.limit !== undefined) op.limit = checkedLimit(options.limit);
  return op;
}

export function renewOp(name, options = {}) {
  const op = { op: 'renew', name: checkedName(name), token: checkedToken(options.token), ttlSeconds: lifetimeSeconds(options) };
  if (options.slot !== undefined) op.slot = options.slot;
  if (options.owner !== undefined) op.owner = checkedOwner(options.owner);
  return op;
}

export function releaseOp(name, options = {}) {
  const op = { op: 'release', name: checkedName(name), token: checkedToken(options.token) };
  if (options.slot !== undefined) op.slot = options.slot;
  return op;
}

export function getOp(name) {
  return { op: 'get', name: checkedName(name) };
}
