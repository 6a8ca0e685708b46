/* What the KV, timer and lock routes have in common. */

/**
 * On these routes an error body has its machine code under `error`. Gives it to the error as `code` when it has none.
 *
 * @template T
 * @param {Promise<T>} request
 * @returns {Promise<T>}
 */
export async function codeFromText(request) {
  try {
    return await request;
  } catch (error) {
    if (error.status >= 400 && error.code === undefined) error.code = error.message;
    throw error;
  }
}

/** The results of a call, checked to be one for each operation. */
export function resultsOf(body, count, what) {
  if (!Array.isArray(body?.results) || body.results.length !== count) {
    throw new Error(`${count} ${what} sent, ${body?.results?.length ?? 'none'} answered`);
  }
  return body.results;
}
