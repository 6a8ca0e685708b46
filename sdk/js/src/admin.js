/* queen.admin: thin calls for looking and for operating. Each resolves with the broker's body and rejects on an error. */

const query = (params) => {
  const search = new URLSearchParams();
  for (const [name, value] of Object.entries(params ?? {})) {
    if (value !== undefined && value !== null) search.set(name, String(value));
  }
  const text = search.toString();
  return text === '' ? '' : `?${text}`;
};
const name = encodeURIComponent;

export class Admin {
  #http;

  constructor(client) {
    this.#http = client.http;
  }

  #get(path, params) {
    return this.#http.get(`${path}${query(params)}`);
  }

  /** Totals of the broker. */
  async getOverview() {
    return this.#get('/api/v1/resources/overview');
  }

  async getNamespaces() {
    return this.#get('/api/v1/resources/namespaces');
  }

  async getTasks() {
    return this.#get('/api/v1/resources/tasks');
  }

  async listQueues(params = {}) {
    return this.#get('/api/v1/resources/queues', params);
  }

  async getQueue(queue) {
    return this.#get(`/api/v1/resources/queues/${name(queue)}`);
  }

  /** What a group has not consumed of a queue, in all and by partition. */
  async getQueueDepth(queue, group) {
    return this.#get(`/api/v1/resources/queues/${name(queue)}/depth`, { group });
  }

  async getPartitions(params = {}) {
    return this.#get('/api/v1/resources/partitions', params);
  }

  /** Not possible: always rejects, with what to do instead. */
  async clearQueue() {
    throw new Error('A queue can not be cleared: seek its consumer groups to the end (admin.seekConsumerGroup(group, queue, { toEnd: true })), or delete and create it');
  }

  /** Not possible: always rejects, with what to do instead. */
  async moveMessageToDLQ() {
    throw new Error("A message is not moved to the dead letters from outside: acknowledge it with status 'dlq' (queen.ack(message, 'dlq'))");
  }

  async listMessages(params = {}) {
    return this.#get('/api/v1/messages', params);
  }

  async getMessage(partitionId, transactionId) {
    return this.#get(`/api/v1/messages/${name(partitionId)}/${name(transactionId)}`);
  }

  async deleteMessage(partitionId, transactionId) {
    return this.#http.delete(`/api/v1/messages/${name(partitionId)}/${name(transactionId)}`);
  }

  async retryMessage(partitionId, transactionId) {
    return this.#http.post(`/api/v1/messages/${name(partitionId)}/${name(transactionId)}/retry`, {});
  }

  async getTracesByName(traceName, params = {}) {
    return this.#get(`/api/v1/traces/by-name/${name(traceName)}`, params);
  }

  async getTraceNames(params = {}) {
    return this.#get('/api/v1/traces/names', params);
  }

  async getTracesForMessage(partitionId, transactionId) {
    return this.#get(`/api/v1/traces/${name(partitionId)}/${name(transactionId)}`);
  }

  async getStatus(params = {}) {
    return this.#get('/api/v1/status', params);
  }

  async getQueueStats(params = {}) {
    return this.#get('/api/v1/status/queues', params);
  }

  async getQueueDetail(queue, params = {}) {
    return this.#get(`/api/v1/status/queues/${name(queue)}`, params);
  }

  async getAnalytics(params = {}) {
    return this.#get('/api/v1/status/analytics', params);
  }

  async listConsumerGroups() {
    return this.#get('/api/v1/consumer-groups');
  }

  async getConsumerGroup(group) {
    return this.#get(`/api/v1/consumer-groups/${name(group)}`);
  }

  async getLaggingConsumers(minLagSeconds = 60) {
    return this.#get('/api/v1/consumer-groups/lagging', { minLagSeconds });
  }

  async refreshConsumerStats() {
    return this.#http.post('/api/v1/stats/refresh', {});
  }

  async deleteConsumerGroupForQueue(group, queue, deleteMetadata = true) {
    return this.#http.delete(`/api/v1/consumer-groups/${name(group)}/queues/${name(queue)}${query({ deleteMetadata })}`);
  }

  /** Moves a group's cursors in a queue: `{timestamp}` or `{toEnd: true}`. */
  async seekConsumerGroup(group, queue, options = {}) {
    return this.#http.post(`/api/v1/consumer-groups/${name(group)}/queues/${name(queue)}/seek`, options);
  }

  async health() {
    return this.#get('/health');
  }

  /** JSON, or the text of a broker that answers text. */
  async metrics() {
    return this.#get('/metrics');
  }

  async getSystemMetrics(params = {}) {
    return this.#get('/api/v1/analytics/system-metrics', params);
  }

  async getWorkerMetrics(params = {}) {
    return this.#get('/api/v1/analytics/worker-metrics', params);
  }
}
