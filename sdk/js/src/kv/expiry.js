/* How long a KV row lives, as programs say it, and as it travels: `ttlSeconds` or `forever`, nothing else.
 *
 * Checked when the call is made; `until` becomes remaining seconds when the request is built, which for a transaction is
 * at commit. Lifetimes are rounded up. Saying nothing, or a lifetime and `forever`, is sent as it is: the broker decides. */
import { durationSeconds } from '../duration.js';

const SPELLINGS = ['ttlSeconds', 'ttl', 'until'];

/**
 * @param {object} options what the program gave
 * @param {() => number} now milliseconds
 * @returns {() => object} the members for the wire, as of when it is called
 */
export function expiryOf(options, now) {
  const given = SPELLINGS.filter((name) => options[name] !== undefined);
  if (given.length > 1) throw new Error(`Only one of ttlSeconds, ttl and until may be given, not ${given.join(' and ')}`);
  const forever = options.forever;
  if (forever !== undefined && forever !== true) throw new Error('forever must be true when it is given');
  const rest = forever === true ? { forever: true } : {};
  if (options.ttlSeconds !== undefined) {
    if (typeof options.ttlSeconds !== 'number') throw new TypeError('ttlSeconds must be a number');
    return () => ({ ttlSeconds: options.ttlSeconds, ...rest });
  }
  if (options.ttl !== undefined) {
    const ttlSeconds = durationSeconds(options.ttl);
    return () => ({ ttlSeconds, ...rest });
  }
  if (options.until !== undefined) {
    const at = untilMs(options.until);
    remaining(at, now());
    return () => ({ ttlSeconds: remaining(at, now()), ...rest });
  }
  return () => rest;
}

function untilMs(until) {
  const at = until instanceof Date ? until.getTime() : typeof until === 'string' ? Date.parse(until) : until;
  if (typeof at !== 'number' || !Number.isFinite(at)) throw new TypeError(`until must be a Date, an ISO text or epoch milliseconds: ${String(until)}`);
  return at;
}

function remaining(at, nowMs) {
  if (at <= nowMs) throw new Error('until lies in the past');
  return Math.ceil((at - nowMs) / 1000);
}
