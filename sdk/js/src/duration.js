/* Duration strings: '30d', '1h30m', '1.5s', '250ms'. One or more parts of a number and a unit, no blanks, any case. */

const UNIT_MS = { ms: 1, s: 1000, m: 60000, h: 3600000, d: 86400000 };
const WHOLE = /^(?:\d+(?:\.\d+)?(?:ms|s|m|h|d))+$/i;
const PART = /(\d+(?:\.\d+)?)(ms|s|m|h|d)/gi;

/**
 * Milliseconds of a duration string.
 *
 * @param {string} text
 * @returns {number} more than 0
 * @throws {TypeError} anything but such a string
 */
export function parseDuration(text) {
  if (typeof text !== 'string' || !WHOLE.test(text)) {
    throw new TypeError(`Invalid duration: ${JSON.stringify(text) ?? String(text)} (expected e.g. '30d', '1h30m', '250ms')`);
  }
  let total = 0;
  for (const [, number, unit] of text.matchAll(PART)) {
    total += Number(number) * UNIT_MS[unit.toLowerCase()];
  }
  if (!(total > 0) || !Number.isFinite(total)) {
    throw new TypeError(`Invalid duration: '${text}' must be more than zero`);
  }
  return total;
}

/** Whole seconds of a duration string, rounded up: a lifetime is never shorter than what was asked for. */
export function durationSeconds(text) {
  return Math.ceil(parseDuration(text) / 1000);
}
