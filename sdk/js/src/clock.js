/* Time as the client sees it. One object, so that a test can hand in another one and own every pause.
 *
 * A clock has now() in milliseconds, setTimeout(fn, ms) and clearTimeout(handle). */

/** The real clock. */
export const systemClock = Object.freeze({
  now: () => Date.now(),
  setTimeout: (fn, ms) => setTimeout(fn, ms),
  clearTimeout: (handle) => clearTimeout(handle),
});

/**
 * Waits `ms` on the given clock. Ends early, with the signal's reason as an abort error, when the signal fires.
 *
 * @param {object} clock
 * @param {number} ms
 * @param {AbortSignal} [signal]
 * @returns {Promise<void>}
 */
export function sleep(clock, ms, signal) {
  return new Promise((resolve, reject) => {
    if (signal?.aborted) {
      reject(abortedError());
      return;
    }
    const onAbort = () => {
      clock.clearTimeout(handle);
      reject(abortedError());
    };
    const handle = clock.setTimeout(() => {
      signal?.removeEventListener('abort', onAbort);
      resolve();
    }, ms);
    signal?.addEventListener('abort', onAbort, { once: true });
  });
}

/** What a call rejects with when its caller's AbortSignal fired. Never retried, never held against a node. */
export function abortedError() {
  const error = new Error('The operation was aborted');
  error.name = 'AbortError';
  error.aborted = true;
  return error;
}
