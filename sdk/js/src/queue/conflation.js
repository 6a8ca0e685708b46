/* Conflation (a group that gets only the last value of each partition) as a pop sees it: a program that declared it must
 * not get a backlog from a broker that does not know it, so the answer has to say that it was understood. */

/** `code` of the error thrown when the broker did not echo a declared conflation. */
export const CONFLATION_UNSUPPORTED = 'conflation_unsupported';

/**
 * Checks the answer of a pop that declared conflation.
 *
 * @param {object|null} body
 * @param {() => void} onConflict the group is stored without conflation
 * @throws {Error} code `conflation_unsupported`
 */
export function checkConflation(body, onConflict) {
  if (body?.conflationConflict === true) {
    onConflict();
    return;
  }
  if (body?.conflation === true) return;
  const error = new Error('The broker does not support conflation: its answer has neither conflation nor conflationConflict');
  error.code = CONFLATION_UNSUPPORTED;
  throw error;
}

/** Whether a failed pop must be told to the program although pops hide errors. */
export function isConflationFault(error, declared) {
  return error.code === CONFLATION_UNSUPPORTED || (declared && error.status === 400);
}
