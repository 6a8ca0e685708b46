/* Ids the client mints: UUID version 7 (RFC 9562), increasing within one process.
 *
 *   48 bits  Unix milliseconds
 *    4 bits  version 7
 *   12 bits  counter, restarted at random below half its range each millisecond
 *    2 bits  variant
 *   62 bits  random
 *
 * When the counter runs out, or the clock steps back, the time part runs ahead of the clock instead of repeating. */
import { randomFillSync } from 'node:crypto';

const POOL_BYTES = 16 * 256;
const pool = Buffer.alloc(POOL_BYTES);
let poolAt = POOL_BYTES;
let lastMs = 0;
let counter = 0;

const HEX = Array.from({ length: 256 }, (_, i) => i.toString(16).padStart(2, '0'));

/** Sixteen random bytes, as an offset into the pool: one system call for many ids. */
function takeRandom() {
  if (poolAt === POOL_BYTES) {
    randomFillSync(pool);
    poolAt = 0;
  }
  const at = poolAt;
  poolAt += 16;
  return at;
}

/**
 * A new UUID version 7 in lower-case text.
 *
 * @param {number} [nowMs] Unix milliseconds; the system's clock when left out
 * @returns {string}
 */
export function uuidv7(nowMs = Date.now()) {
  const r = takeRandom();
  if (nowMs > lastMs) {
    lastMs = nowMs;
    counter = ((pool[r] << 8) | pool[r + 1]) & 0x7ff;
  } else if (++counter > 0xfff) {
    lastMs += 1;
    counter = ((pool[r] << 8) | pool[r + 1]) & 0x7ff;
  }
  const high = Math.floor(lastMs / 0x10000);
  return (
    HEX[(high >>> 24) & 0xff] + HEX[(high >>> 16) & 0xff] + HEX[(high >>> 8) & 0xff] + HEX[high & 0xff] + '-' +
    HEX[(lastMs >>> 8) & 0xff] + HEX[lastMs & 0xff] + '-' +
    HEX[0x70 | (counter >>> 8)] + HEX[counter & 0xff] + '-' +
    HEX[0x80 | (pool[r + 8] & 0x3f)] + HEX[pool[r + 9]] + '-' +
    HEX[pool[r + 10]] + HEX[pool[r + 11]] + HEX[pool[r + 12]] + HEX[pool[r + 13]] + HEX[pool[r + 14]] + HEX[pool[r + 15]]
  );
}

const UUID = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/i;

/** Whether a value is a UUID in its usual text form, of any version. */
export function isUuid(value) {
  return typeof value === 'string' && UUID.test(value);
}
