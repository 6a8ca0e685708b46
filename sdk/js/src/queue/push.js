/* Pushes: items as they go on the wire, and what the broker's answer means.
 *
 * The transaction id of every item is set here, before anything is sent, so that sending again can not store twice. */
import { isUuid, uuidv7 } from '../ids.js';

const ACCEPTED = new Set(['queued', 'buffered', 'duplicate']);
// Items whose id the client minted: a duplicate of one can only be this push itself, sent again.
const minted = new WeakSet();

/**
 * Items as they travel.
 *
 * @param {string} queue
 * @param {string|null} partition left out of the items when null
 * @param {*} given one item or an array
 * @returns {object[]}
 */
export function formatItems(queue, partition, given) {
  return (Array.isArray(given) ? given : [given]).map((item) => formatItem(queue, partition, item));
}

function formatItem(queue, partition, item) {
  if (item === null || typeof item !== 'object') {
    throw new TypeError(`A message must be an object, for example { data: ... }; got ${item === null ? 'null' : typeof item}`);
  }
  let payload = item;
  if ('data' in item) payload = item.data;
  else if ('payload' in item) payload = item.payload;
  const formatted = { queue };
  if (partition !== null) formatted.partition = partition;
  formatted.payload = payload === undefined ? null : payload;
  formatted.transactionId = item.transactionId || uuidv7();
  if (!item.transactionId) minted.add(formatted);
  if (isUuid(item.traceId)) formatted.traceId = item.traceId;
  return formatted;
}

/**
 * Sends items and tells the callbacks.
 *
 * @param {object} client
 * @param {object[]} items
 * @param {{onSuccess?: Function, onError?: Function, onDuplicate?: Function}} callbacks
 * @returns {Promise<object[]|null>} the broker's answer; null when it failed and onError took it
 */
export async function pushItems(client, items, callbacks) {
  try {
    const meta = {};
    const answer = await client.http.post('/api/v1/push', { items }, { meta });
    if (!Array.isArray(answer)) return await judgeWhole(items, answer, callbacks);
    return await judgeEach(items, answer, callbacks, meta.resent === true);
  } catch (error) {
    if (!callbacks.onError || error.judged) throw error;
    await callbacks.onError(items, error);
    return null;
  }
}

/** An answer that is no array: of the whole request. */
async function judgeWhole(items, answer, { onSuccess }) {
  if (answer?.error) throw new Error(String(answer.error));
  if (onSuccess) await onSuccess(items.map((item) => ({ ...item, result: answer })));
  return answer;
}

async function judgeEach(items, answer, callbacks, resent) {
  const stored = [];
  const duplicates = [];
  const refused = [];
  const count = Math.max(items.length, answer.length);
  for (let i = 0; i < count; i++) {
    const item = items[i] ?? {};
    const result = answer[i] ?? {};
    if (!ACCEPTED.has(result.status)) refused.push({ ...item, result, error: refusalText(result) });
    else if (result.status === 'duplicate' && !(resent && minted.has(item))) duplicates.push({ ...item, result });
    else stored.push({ ...item, result });
  }
  if (duplicates.length > 0 && callbacks.onDuplicate) {
    await callbacks.onDuplicate(duplicates, new Error('Duplicate transaction IDs detected'));
  }
  if (refused.length > 0) {
    const error = refusedError(refused, count, answer);
    if (!callbacks.onError) throw error;
    await tellOnce(callbacks.onError, refused, error);
  }
  if (stored.length > 0 && callbacks.onSuccess) await callbacks.onSuccess(stored);
  return answer;
}

/** onError is told of one failure once, also when it throws itself. */
async function tellOnce(onError, items, error) {
  try {
    await onError(items, error);
  } catch (thrown) {
    if (thrown !== null && typeof thrown === 'object') thrown.judged = true;
    throw thrown;
  }
}

/** The text of a refused item. */
export function refusalText(result) {
  return result.error || `push rejected by the broker (item status: ${JSON.stringify(result.status)})`;
}

/** Whether the broker took an item. */
export function isAccepted(result) {
  return ACCEPTED.has(result?.status);
}

function refusedError(refused, count, results) {
  const first = refused[0].error;
  const error = new Error(refused.length === 1 ? first : `${refused.length} of ${count} pushed items rejected: ${first}`);
  error.results = results;
  return error;
}

