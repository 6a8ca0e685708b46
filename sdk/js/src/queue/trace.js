/* message.trace(): POST /api/v1/traces. Resolves whatever happens: tracing must not disturb the work. */

/**
 * The function a consumed message gets as its `trace`. It is called as a method, so that one function serves all messages.
 */
export function traceFunction(client, group) {
  return async function trace({ traceName, eventType = 'info', data } = {}) {
    if (data === undefined || data === null) return { success: false, error: 'Trace data is required' };
    const names = (Array.isArray(traceName) ? traceName : [traceName]).filter((name) => typeof name === 'string' && name !== '');
    try {
      const answer = await client.http.post('/api/v1/traces', {
        transactionId: this.transactionId,
        partitionId: this.partitionId,
        consumerGroup: group,
        traceNames: names.length > 0 ? names : null,
        eventType,
        data,
      });
      return { success: true, ...answer };
    } catch (error) {
      client.logger.warn('trace', { error: error.message });
      return { success: false, error: error.message };
    }
  };
}
