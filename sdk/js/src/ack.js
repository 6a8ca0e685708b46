/* Acknowledgments and lease renewals: one request each, or one batch.
 *
 * The broker answers both with an array of one element for each acknowledgment. Errors of the request resolve as
 * `{success: false, error}`; only a call that could not be put together rejects. */
import { QUEUE_MODE } from './defaults.js';

/** The status text of true, false or a status. */
export function statusText(status) {
  if (status === true) return 'completed';
  if (status === false) return 'failed';
  return status;
}

/** The group a message belongs to, null for queue mode. */
export function groupOf(message) {
  const group = message.consumerGroup;
  return group && group !== QUEUE_MODE ? group : null;
}

/** The group named by a context, under either of its names. */
export function contextGroup(context) {
  return context?.group ?? context?.consumerGroup ?? null;
}

function fields(message) {
  const transactionId = message?.transactionId || message?.id;
  if (!transactionId) throw new Error('Message must have transactionId or id property');
  if (!message.partitionId) throw new Error('Message must have partitionId property to ensure message uniqueness');
  return { transactionId, partitionId: message.partitionId };
}

function judged(element) {
  const error = typeof element?.error === 'string' && element.error !== '' ? element.error : null;
  return { ...element, success: error === null && element?.success !== false, error };
}

/** One acknowledgment. */
export async function ackOne(client, message, status, context) {
  try {
    const body = {
      ...fields(message),
      status: statusText(status),
      error: context.error ?? null,
      consumerGroup: contextGroup(context) ?? groupOf(message),
    };
    if (message.leaseId) body.leaseId = message.leaseId;
    const answer = await client.http.post('/api/v1/ack', body);
    if (!Array.isArray(answer)) return { success: false, error: answer?.error ? String(answer.error) : 'the answer to an ack is not an array' };
    if (answer.length !== 1) return { success: false, error: `1 acknowledgment sent, ${answer.length} answered` };
    const result = judged(answer[0]);
    if (!result.success) result.error ??= 'acknowledgment rejected';
    return result;
  } catch (error) {
    client.logger.warn('ack', { error: error.message });
    return { success: false, error: error.message };
  }
}

/** Many acknowledgments of one group in one request. Rejects when a message has no ids, or the groups differ. */
export async function ackMany(client, messages, status, context) {
  if (messages.length === 0) return { success: true, processed: 0, results: [] };
  const perMessage = messages.some((message) => message?._status !== undefined || message?._error !== undefined);
  const acknowledgments = messages.map((message) => {
    const own = perMessage ? message._status : undefined;
    const error = perMessage && message._error !== undefined ? message._error : (context.error ?? null);
    const ack = { ...fields(message), status: statusText(own ?? status), error };
    if (message.leaseId) ack.leaseId = message.leaseId;
    return ack;
  });
  const consumerGroup = contextGroup(context) ?? commonGroup(messages);
  try {
    const answer = await client.http.post('/api/v1/ack/batch', { acknowledgments, consumerGroup });
    return batchResult(answer, messages.length);
  } catch (error) {
    client.logger.warn('ack.batch', { error: error.message });
    return { success: false, error: error.message };
  }
}

function commonGroup(messages) {
  const groups = new Set(messages.map(groupOf));
  if (groups.size > 1) throw new Error('Messages of different consumer groups can not be acknowledged in one call without context.group');
  return groups.values().next().value;
}

function batchResult(answer, count) {
  if (!Array.isArray(answer)) return { success: false, error: answer?.error ? String(answer.error) : 'the answer to an ack is not an array' };
  if (answer.length !== count) return { success: false, error: `${count} acknowledgments sent, ${answer.length} answered`, results: answer };
  const results = answer.map(judged);
  const refused = results.filter((result) => !result.success);
  if (refused.length === 0) return { success: true, processed: count, results };
  const first = refused[0].error ?? 'acknowledgment rejected';
  const error = refused.length === 1 ? first : `${refused.length} of ${count} acknowledgments rejected: ${first}`;
  return { success: false, error, results };
}

/** Extends the distinct leases of what is given, one request each. */
export async function renewLeases(client, given) {
  const list = Array.isArray(given) ? given : [given];
  const ids = new Set(list.map((one) => (typeof one === 'string' ? one : one?.leaseId)).filter(Boolean));
  if (ids.size === 0) return { success: false, error: 'No valid lease IDs found for renewal' };
  const results = [];
  for (const leaseId of ids) results.push(await renewOne(client, leaseId));
  return Array.isArray(given) ? results : results[0];
}

async function renewOne(client, leaseId) {
  try {
    const answer = await client.http.post(`/api/v1/lease/${encodeURIComponent(leaseId)}/extend`, {});
    const body = (Array.isArray(answer) ? answer[0] : answer) ?? {};
    const failed = Boolean(body.error) || body.success === false;
    const result = { leaseId, success: !failed, newExpiresAt: body.newExpiresAt ?? body.lease_expires_at ?? null };
    if (body.renewed !== undefined) result.renewed = body.renewed;
    if (failed) result.error = body.error ? String(body.error) : 'the lease is not held any more';
    return result;
  } catch (error) {
    client.logger.warn('renew', { leaseId, error: error.message });
    return { leaseId, success: false, newExpiresAt: null, error: error.message };
  }
}
