/* KV operations as they travel. Both queen.kv and a transaction's kv build theirs here: each function checks its arguments
 * at once and returns a function that gives the operation when the request is built (a lifetime may depend on that). */
import { expiryOf } from './expiry.js';

const SAFE = Number.MAX_SAFE_INTEGER;

function text(value, what) {
  if (typeof value !== 'string' || value === '') throw new TypeError(`${what} must be a non-empty string`);
  return value;
}

function row(op, ns, key) {
  return { op, ns: text(ns, 'Namespace'), key: text(key, 'Key') };
}

/** `expect` and `required`, each only when given. An `expect` that is there but undefined or null is a mistake. */
function conditions({ expect, required }, options) {
  const members = {};
  if ('expect' in options) {
    if (expect === undefined || expect === null) throw new TypeError('expect is given but has no value');
    members.expect = expect;
  }
  if (required === true) members.required = true;
  return members;
}

function noExpect(options, op) {
  if ('expect' in options) throw new Error(`${op} does not take expect`);
}

/** The operations; `now` is the clock's, in milliseconds. */
export function kvOps(now) {
  return {
    get: (ns, key) => {
      const op = row('get', ns, key);
      return () => op;
    },

    getMany: (ns, keys) => {
      if (!Array.isArray(keys)) throw new TypeError('keys must be an array');
      const op = { op: 'getMany', ns: text(ns, 'Namespace'), keys: keys.map((key) => text(key, 'Key')) };
      return () => op;
    },

    getPrefix: (ns, prefix, { limit, after, keysOnly } = {}) => {
      const op = { op: 'getPrefix', ns: text(ns, 'Namespace'), prefix: text(prefix, 'Prefix') };
      if (limit !== undefined) op.limit = limit;
      if (after !== undefined && after !== null) op.after = after;
      if (keysOnly === true) op.keysOnly = true;
      return () => op;
    },

    put: (ns, key, value, options = {}) => {
      const op = { ...row('put', ns, key), value: valueOf(value), ...conditions(options, options) };
      const expiry = expiryOf(options, now);
      return () => ({ ...op, ...expiry() });
    },

    putIfAbsent: (ns, key, value, options = {}) => {
      noExpect(options, 'putIfAbsent');
      const op = { ...row('putIfAbsent', ns, key), value: valueOf(value), ...conditions(options, options) };
      const expiry = expiryOf(options, now);
      return () => ({ ...op, ...expiry() });
    },

    delete: (ns, key, options = {}) => {
      const op = { ...row('delete', ns, key), ...conditions(options, options) };
      return () => op;
    },

    incr: (ns, key, delta = 1, options = {}) => {
      noExpect(options, 'incr');
      if (typeof delta !== 'number' || !Number.isFinite(delta)) throw new TypeError('delta must be a number');
      if (Math.abs(delta) > SAFE) throw new RangeError('delta is beyond 2^53');
      const op = { ...row('incr', ns, key), delta };
      if (options.min !== undefined) op.min = options.min;
      if (options.max !== undefined) op.max = options.max;
      if (options.required === true) op.required = true;
      const expiry = expiryOf(options, now);
      return () => ({ ...op, ...expiry() });
    },

    check: (ns, key, options = {}) => {
      if (options.expect === undefined || options.expect === null) throw new TypeError('check needs expect (0 for a key that must be absent)');
      const op = { ...row('check', ns, key), ...conditions(options, options) };
      return () => op;
    },
  };
}

function valueOf(value) {
  if (value === undefined) throw new TypeError('value is undefined (null is a value)');
  return value;
}
