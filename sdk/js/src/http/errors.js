/* The errors of the HTTP layer, all plain Error objects that tell by their members what happened:
 *
 *   status               the HTTP status; absent when there was no answer (refused, reset, time-out)
 *   code                 the machine code of the broker's error body, when it has one
 *   details              the broker's error body, when it is an object
 *   retryAfterSeconds    what a 429 or 503 asked for, or null
 *   timeout              milliseconds, when the client gave up waiting (name AbortError)
 *   aborted              true when the caller's signal fired (name AbortError)
 *   maybeCommitted       true when the request may have been carried out although it failed */

/** The client's own time-out. */
export function timeoutError(ms) {
  const error = new Error(`Request timeout after ${ms}ms`);
  error.name = 'AbortError';
  error.timeout = ms;
  return error;
}

/** The error of an answer that is not 2xx. */
export function statusError(status, statusText, text, headers) {
  let body = null;
  try {
    body = JSON.parse(text);
  } catch {
    // Not JSON: the status says it all.
  }
  const said = body !== null && typeof body === 'object' ? body : {};
  const error = new Error(said.error ? textOf(said.error) : `HTTP ${status}: ${statusText}`);
  error.status = status;
  // The KV, timer and lock routes put the machine code under `error`.
  if (said.code) error.code = said.code;
  if (body !== null && typeof body === 'object') error.details = body;
  if (status === 429 || status === 503) error.retryAfterSeconds = retryAfterSeconds(headers['retry-after']);
  return error;
}

function textOf(value) {
  return typeof value === 'string' ? value : JSON.stringify(value);
}

function retryAfterSeconds(value) {
  if (value === undefined || value.trim() === '') return null;
  const seconds = Number(value);
  return Number.isFinite(seconds) && seconds >= 0 ? seconds : null;
}
