/* How a pop or a consumer's poll looks on the wire: path, query, key for the choice of node, time-out.
 *
 * With autopilot (the default) the broker chooses how many messages and partitions a pop takes, as far as the program has
 * not pinned them. Names are percent-encoded here. */
import { DEFAULT_PARTITION, POLL_SLACK_MILLIS, POP_DEFAULTS, QUEUE_MODE } from '../defaults.js';
import { checkConflation } from './conflation.js';

/** One path segment. A name of dots only would be taken for a folder, so its dots are encoded too. */
export function segment(name) {
  const text = encodeURIComponent(name);
  return /^\.+$/.test(text) ? text.replaceAll('.', '%2E') : text;
}

/** The path of a pop; throws when the builder names neither a queue nor a namespace or task. */
export function pollPath({ queue, partition, namespace, task }) {
  if (queue) {
    const path = `/api/v1/pop/queue/${segment(queue)}`;
    return partition !== DEFAULT_PARTITION ? `${path}/partition/${segment(partition)}` : path;
  }
  if (!namespace && !task) throw new Error('Must specify queue, namespace, or task for a pop');
  return '/api/v1/pop';
}

/**
 * The query of a pop, in a fixed order.
 *
 * @param {object} settings the builder's
 * @param {{consume: boolean, autopilot: boolean, timeoutMillis: number}} how
 */
export function pollQuery(settings, { consume, autopilot, timeoutMillis }) {
  const { batch, partitions } = settings;
  const engaged = autopilot && (batch === null || partitions === null);
  const query = new URLSearchParams();
  if (engaged) query.set('autopilot', 'true');
  if (batch !== null || !engaged) query.set('batch', String(batch ?? POP_DEFAULTS.batch));
  query.set('wait', String(settings.wait));
  query.set('timeout', String(timeoutMillis));
  const add = (name, value) => {
    if (value !== null && value !== undefined && value !== '') query.set(name, String(value));
  };
  add('consumerGroup', settings.group);
  if (!consume) addNames();
  add('subscriptionMode', settings.subscriptionMode);
  add('subscriptionFrom', settings.subscriptionFrom);
  if (consume) addNames();
  if (partitions !== null && (engaged || partitions > 1)) query.set('partitions', String(partitions));
  if (settings.conflation) query.set('conflation', 'true');
  return query.toString();

  function addNames() {
    add('namespace', settings.namespace);
    add('task', settings.task);
  }
}

/** The key that keeps one consumer's polls on one node. */
export function pollKey({ queue, partition, namespace, task, group }, consume) {
  const name = group ?? QUEUE_MODE;
  if (!queue) return `${namespace || '*'}:${task || '*'}:${name}`;
  return `${queue}:${consume && partition === DEFAULT_PARTITION ? '*' : partition}:${name}`;
}

/**
 * One pop. Rejects on every error; what to hide is up to the caller.
 *
 * @returns {Promise<{messages: object[], autopilot: object|null}>}
 */
export async function poll(client, settings, { consume, autopilot, timeoutMillis, signal }) {
  const path = `${pollPath(settings)}?${pollQuery(settings, { consume, autopilot, timeoutMillis })}`;
  const body = await client.http.get(path, {
    timeoutMillis: !consume || settings.wait ? timeoutMillis + POLL_SLACK_MILLIS : timeoutMillis,
    affinityKey: pollKey(settings, consume),
    parked: settings.wait,
    signal,
  });
  if (settings.conflation) checkConflation(body, () => client.warnConflict(settings));
  const messages = Array.isArray(body?.messages) ? body.messages.filter(Boolean) : [];
  return { messages, autopilot: body?.autopilot ?? null };
}
