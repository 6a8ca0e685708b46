// Types of the package. JSON answers of the broker are passed through, so their interfaces name what programs rely on and
// leave the rest open.

// ---- common ----

/** '30d', '1h30m', '1.5s', '250ms': one or more parts of a number and ms, s, m, h or d. */
export type Duration = string;

/** A started or not yet started operation: nothing is sent until it is awaited (or then, catch or finally is called). */
export interface Lazy<T> extends PromiseLike<T> {
  catch<R = never>(onRejected?: ((reason: any) => R | PromiseLike<R>) | null): Promise<T | R>;
  finally(onSettled?: (() => void) | null): Promise<T>;
}

/** What errors of this client carry, as far as it applies. */
export interface QueenError extends Error {
  /** HTTP status; absent when there was no answer. */
  status?: number;
  /** The broker's machine code. */
  code?: string;
  /** The broker's error body. */
  details?: Record<string, unknown>;
  /** Of a 429 or 503. */
  retryAfterSeconds?: number | null;
  /** Milliseconds, when the client gave up waiting. */
  timeout?: number;
  /** True when the caller's signal fired. */
  aborted?: boolean;
  /** Of a rolled back transaction. */
  reason?: string;
  /** The broker's verdict on a rolled back transaction. */
  result?: TransactionResult;
  /** The broker's answer to a push of which items were refused. */
  results?: PushResult[];
  /** True when an earlier try of the request may have been carried out. */
  maybeCommitted?: boolean;
}

export interface Logger {
  info(...args: any[]): void;
  warn(...args: any[]): void;
  error(...args: any[]): void;
  debug?(...args: any[]): void;
}

// ---- the client ----

export interface QueenOptions {
  /** Base URLs; wins over `url`. */
  urls?: string[];
  url?: string;
  /** For each request that sets none (30000). */
  timeoutMillis?: number;
  /** Tries in all of a request that got no answer or a 5xx (3). With several URLs a try asks each of them once. */
  retryAttempts?: number;
  /** The first pause between tries; it doubles (1000). */
  retryDelayMillis?: number;
  /** How a node is chosen when there are several ('affinity'). */
  loadBalancingStrategy?: 'affinity' | 'round-robin' | 'session';
  /** Points of each node on the affinity ring (128). */
  affinityHashRing?: number;
  /** With several URLs: ask the others when one fails (true). */
  enableFailover?: boolean;
  /** A failed node counts as healthy again after this (5000). */
  healthRetryAfterMillis?: number;
  bearerToken?: string | null;
  headers?: Record<string, string>;
  /** The Host to advertise, whatever address is dialled. */
  hostHeader?: string | null;
  /** SIGINT and SIGTERM shut the client down and end the process (true). */
  handleSignals?: boolean;
  logger?: Logger | null;
  /** Log an object and then a text, as pino wants it. */
  structuredLogs?: boolean;
  retry429?: { maxAttempts?: number; baseMs?: number; capMs?: number };
}

export class Queen {
  constructor(config: string | string[] | QueenOptions);
  /** A builder for create, push, pop, consume, dlq. */
  queue(name?: string | null): QueueBuilder;
  transaction(): TransactionBuilder;
  timer(queue: string): TimerBuilder;
  ack(message: AckTarget, status?: AckStatus, context?: AckContext): Promise<AckResult>;
  ack(messages: BatchAckTarget[], status?: AckStatus, context?: AckContext): Promise<BatchAckResult>;
  renew(lease: string | LeaseHolder): Promise<RenewResult>;
  renew(leases: Array<string | LeaseHolder>): Promise<RenewResult[] | RenewResult>;
  /** A lock as a handle; sends nothing yet. */
  lock(name: string, options: LockOptions): Lock;
  /** One permit of `limit` (1..1024) as a handle; sends nothing yet. */
  semaphore(name: string, limit: number, options: LockOptions): Lock;
  deleteConsumerGroup(group: string, deleteMetadata?: boolean): Promise<any>;
  updateConsumerGroupTimestamp(group: string, timestamp: string): Promise<any>;
  flushAllBuffers(): Promise<void>;
  getBufferStats(): BufferStats;
  enableGracefulShutdown(): void;
  disableGracefulShutdown(): void;
  /** Stops consumers (what was not begun goes back without charging an attempt), then close(). */
  shutdown(): Promise<void>;
  /** Sends what is buffered, releases held locks, lets connections go. Consumers run on. */
  close(): Promise<void>;
  readonly kv: Kv;
  readonly locks: Locks;
  readonly admin: Admin;
  readonly ephemeral: Ephemeral;
  readonly autopilotOff: boolean;
  /** Not served; throws. */
  stream(...args: unknown[]): never;
  /** Not served; throws. */
  consumer(...args: unknown[]): never;
}

// ---- queues ----

export interface QueueConfig {
  leaseTime?: number;
  retryLimit?: number;
  priority?: number;
  delayedProcessing?: number;
  windowBuffer?: number;
  maxSize?: number;
  retentionSeconds?: number;
  completedRetentionSeconds?: number;
  encryptionEnabled?: boolean;
  [option: string]: unknown;
}

export interface ConfigureResult {
  configured: boolean;
  queue: string;
  options: Record<string, unknown>;
  [member: string]: unknown;
}

/** `data`, else `payload`, else the item itself is the message. */
export type PushItem = { data?: unknown; payload?: unknown; transactionId?: string; traceId?: string } | object;

export interface PushResult {
  index: number;
  message_id: string;
  transaction_id: string;
  queueName: string;
  status: 'queued' | 'duplicate' | 'buffered' | string;
  offset?: number;
  error?: string;
  [member: string]: unknown;
}

/** An item as it was sent, with what became of it. */
export interface PushedItem {
  queue: string;
  partition?: string;
  payload: unknown;
  transactionId: string;
  traceId?: string;
  result?: PushResult;
  error?: string;
}

export interface PushOperation<T> extends Lazy<T> {
  /** Items that were stored. */
  onSuccess(fn: (items: PushedItem[]) => unknown): this;
  /** Items that were refused, or all when the request failed; the push then resolves. */
  onError(fn: (items: PushedItem[], error: QueenError) => unknown): this;
  /** Items whose id was stored before. */
  onDuplicate(fn: (items: PushedItem[], error: Error) => unknown): this;
}

export interface QueueOperation<T> extends Lazy<T> {
  onSuccess(fn: (result: T) => unknown): this;
  /** The operation then resolves `{success: false, error}`. */
  onError(fn: (error: QueenError) => unknown): this;
}

export interface ConsumeOperation<M> extends Lazy<void> {
  /** Switches automatic acknowledgment off. */
  onSuccess(fn: (messages: M, result: unknown) => unknown): this;
  /** Switches automatic acknowledgment off, also of failures. */
  onError(fn: (messages: M, error: Error) => unknown): this;
}

export interface Message<T = any> {
  id: string;
  transactionId: string;
  partitionId: string;
  partition: string;
  leaseId: string;
  consumerGroup: string;
  data: T;
  createdAt: string;
  traceId: string | null;
  producerSub: string | null;
  deliveryAttempt?: number;
  retryCount?: number;
  queue?: string;
  offset?: number;
  [member: string]: unknown;
}

export interface TraceOptions {
  traceName?: string | string[];
  eventType?: string;
  data: unknown;
}

/** What consume hands to its handler. */
export interface ConsumedMessage<T = any> extends Message<T> {
  /** Never rejects. */
  trace(options: TraceOptions): Promise<{ success: boolean; error?: string; [member: string]: unknown }>;
}

export interface PopResult<T = any> {
  messages: Message<T>[];
  /** What the broker chose. */
  autopilot: { partitions?: number; batch?: number; waitMs?: number } | null;
  /** Why there are no messages, when the pop failed. */
  error?: QueenError;
}

export interface BufferOptions {
  messageCount?: number;
  timeMillis?: number;
  maxSize?: number;
  retryDelayMillis?: number;
  /** Told of items the broker refused, or will never take. */
  onError?: (items: PushedItem[], error: QueenError) => void;
}

export interface BufferStats {
  activeBuffers: number;
  totalBufferedMessages: number;
  oldestBufferAge: number;
  flushesPerformed: number;
}

/** What a handler gets: one message after each(), else an array. */
export type Handed<T, Each extends boolean> = Each extends true ? ConsumedMessage<T> : ConsumedMessage<T>[];

export interface QueueBuilder<Each extends boolean = false, Buffered extends boolean = false> {
  readonly name: string | null;
  namespace(name: string): this;
  task(name: string): this;
  /** What is not named gets its default, also when the queue exists. */
  config(options: QueueConfig): this;
  /** A pop of 'Default' takes any partition. */
  partition(name: string): this;
  /** None is queue mode. */
  group(name: string): this;
  /** Pins how many messages a pop takes; 0 leaves it to the broker. */
  batch(count: number): this;
  /** Pins how many partitions a pop takes from; 0 leaves it to the broker. */
  partitions(count: number): this;
  autopilot(on?: boolean): this;
  /** Each worker of consume ends after this many messages. */
  limit(count: number | null): this;
  /** Each worker of consume ends after this long without a message. */
  idleMillis(ms: number | null): this;
  /** Workers of consume. */
  concurrency(count: number): this;
  /** The handler gets one message at a time. */
  each(): QueueBuilder<true, Buffered>;
  /** Consume only. */
  autoAck(on: boolean): this;
  wait(on: boolean): this;
  timeoutMillis(ms: number): this;
  /** Renew leases while a handler runs; without an interval one is chosen. */
  renewLease(on: boolean, intervalMillis?: number | null): this;
  /** Where a new group begins. */
  subscriptionMode(mode: 'all' | 'new' | 'from_beginning' | string): this;
  /** Where a new group begins: 'now' or an ISO time. */
  subscriptionFrom(from: string): this;
  /** Only the last value of each partition. */
  conflation(on?: boolean): this;
  /** Publish a status document of consume in KV. */
  supervision(options: { group: string }): this;
  /** Gather pushes on this side first. */
  buffer(options?: BufferOptions): QueueBuilder<Each, true>;
  create(): QueueOperation<ConfigureResult>;
  delete(): QueueOperation<{ deleted: boolean; [member: string]: unknown }>;
  push(items: PushItem | PushItem[]): PushOperation<Buffered extends true ? { buffered: true; count: number } : PushResult[]>;
  flushBuffer(): Promise<void>;
  /** Never rejects (except for conflation faults): an error gives an empty array. */
  pop<T = any>(): Promise<Message<T>[]>;
  popResult<T = any>(): Promise<PopResult<T>>;
  consume<T = any>(handler: (given: Handed<T, Each>) => unknown, options?: { signal?: AbortSignal }): ConsumeOperation<Handed<T, Each>>;
  dlq(group?: string | null): DlqBuilder;
}

export interface DeadLetter<T = any> {
  data: T;
  errorMessage: string;
  transactionId: string;
  partitionId: string;
  [member: string]: unknown;
}

export interface DlqBuilder {
  limit(count: number): this;
  offset(count: number): this;
  from(timestamp: string): this;
  to(timestamp: string): this;
  /** Never rejects: an error gives an empty page. */
  get<T = any>(): Promise<{ messages: DeadLetter<T>[]; total: number }>;
}

// ---- acknowledgments ----

/** true is 'completed', false is 'failed'; 'retry' charges no attempt, 'dlq' dead-letters at once. */
export type AckStatus = boolean | 'completed' | 'failed' | 'retry' | 'dlq';

export interface AckTarget {
  transactionId?: string;
  id?: string;
  partitionId: string;
  leaseId?: string;
  consumerGroup?: string;
  [member: string]: unknown;
}

/** A message of a batch may have a status of its own. */
export interface BatchAckTarget extends AckTarget {
  _status?: AckStatus;
  _error?: string;
}

export interface AckContext {
  group?: string | null;
  consumerGroup?: string | null;
  error?: string | null;
}

export interface AckResult {
  success: boolean;
  error: string | null;
  index?: number;
  transactionId?: string;
  leaseReleased?: boolean;
  dlq?: boolean;
  noop?: boolean;
  [member: string]: unknown;
}

export interface BatchAckResult {
  success: boolean;
  processed?: number;
  error?: string;
  results?: AckResult[];
}

export interface LeaseHolder {
  leaseId?: string;
  [member: string]: unknown;
}

export interface RenewResult {
  success: boolean;
  leaseId?: string;
  newExpiresAt?: string | null;
  renewed?: number;
  error?: string;
}

// ---- transactions ----

export interface TransactionResult {
  success: boolean;
  transactionId?: string;
  /** 'kv_precondition' is the only one that commit() resolves with. */
  reason?: string;
  error?: string;
  failedIndex?: number;
  kvReason?: KvReason;
  version?: number;
  value?: any;
  results: Array<{ index: number; type: 'ack' | 'push' | 'kv' | 'timer'; [member: string]: unknown }>;
  /** What next() took. */
  next?: { messages: Message[]; [member: string]: unknown };
  [member: string]: unknown;
}

export interface NextOptions {
  queue: string;
  partition?: string;
  group?: string;
  consumerGroup?: string;
  batch?: number;
  partitions?: number;
  wait?: boolean;
  timeout?: number;
  leaseSeconds?: number;
  subscriptionMode?: string;
  subscriptionFrom?: string;
  conflation?: boolean;
}

export interface TransactionQueue {
  partition(name: string): this;
  push(items: PushItem | PushItem[]): TransactionBuilder;
}

export interface TransactionKv {
  get(ns: string, key: string): TransactionBuilder;
  getMany(ns: string, keys: string[]): TransactionBuilder;
  put(ns: string, key: string, value: unknown, options?: PutOptions): TransactionBuilder;
  putIfAbsent(ns: string, key: string, value: unknown, options?: PutIfAbsentOptions): TransactionBuilder;
  delete(ns: string, key: string, options?: ConditionOptions): TransactionBuilder;
  incr(ns: string, key: string, delta?: number, options?: IncrOptions): TransactionBuilder;
  check(ns: string, key: string, options: { expect: number; required?: boolean }): TransactionBuilder;
  /** Throws: not possible inside a transaction. */
  getPrefix(...args: unknown[]): never;
}

export interface TransactionBuilder {
  ack(messages: AckTarget | AckTarget[], status?: AckStatus, context?: AckContext): this;
  queue(name: string): TransactionQueue;
  readonly kv: TransactionKv;
  /** The whole transaction happens once: it is refused when the key is claimed. */
  once(ns: string, key: string, options?: OnceOptions): this;
  /** Commits only while the lock is held. */
  guard(lock: Lock): this;
  timer(queue: string): TransactionTimer;
  /** Also takes the next messages in the same round trip. */
  next(options: NextOptions): this;
  commit(): Promise<TransactionResult>;
}

// ---- KV ----

export type KvReason = 'exists' | 'version' | 'absent' | 'limit' | 'type' | string;

/** One of ttlSeconds, ttl, until; or forever. */
export interface ExpiryOptions {
  ttlSeconds?: number;
  ttl?: Duration;
  until?: Date | string | number;
  forever?: true;
}

export interface ConditionOptions {
  /** The version the row must be at; 0: absent. */
  expect?: number;
  /** A lost condition refuses the whole call or transaction. */
  required?: boolean;
}

export type PutOptions = ExpiryOptions & ConditionOptions;
export type PutIfAbsentOptions = ExpiryOptions & { required?: boolean };
export type IncrOptions = ExpiryOptions & { min?: number; max?: number; required?: boolean };
export type OnceOptions = ExpiryOptions & { value?: unknown; required?: boolean };

export interface KvRow<T = any> {
  found: boolean;
  key: string;
  value?: T;
  version?: number;
  expiresAt?: string | null;
  updatedAt?: string;
  [member: string]: unknown;
}

export interface KvWriteResult<T = any> {
  op: string;
  key: string;
  applied: boolean;
  version?: number;
  value?: T;
  reason?: KvReason;
  precondition?: boolean;
  failedIndex?: number;
  [member: string]: unknown;
}

export interface Kv {
  get<T = any>(ns: string, key: string): Promise<KvRow<T>>;
  getMany<T = any>(ns: string, keys: string[]): Promise<{ rows: KvRow<T>[]; missing: string[]; truncated: boolean }>;
  getPrefix<T = any>(ns: string, prefix: string, options?: { limit?: number; after?: string; keysOnly?: boolean }): Promise<{ rows: KvRow<T>[]; truncated: boolean; nextAfter: string | null }>;
  listAll<T = any>(ns: string, prefix: string, options?: { limit?: number; after?: string; keysOnly?: boolean }): AsyncGenerator<KvRow<T>, void, void>;
  put<T = any>(ns: string, key: string, value: T, options?: PutOptions): Promise<KvWriteResult<T>>;
  putIfAbsent<T = any>(ns: string, key: string, value: T, options?: PutIfAbsentOptions): Promise<KvWriteResult<T>>;
  delete(ns: string, key: string, options?: ConditionOptions): Promise<KvWriteResult>;
  incr(ns: string, key: string, delta?: number, options?: IncrOptions): Promise<KvWriteResult<number>>;
  check(ns: string, key: string, options: { expect: number; required?: boolean }): Promise<KvWriteResult>;
  /** Claims a key; the value is the winner's, whoever won. */
  once<T = any>(ns: string, key: string, options?: OnceOptions): Promise<{ won: boolean; value: T; version: number; result: KvWriteResult<T> }>;
}

// ---- timers ----

export interface TimerResult {
  ok: boolean;
  status: 'scheduled' | 'rescheduled' | 'cancelled' | 'absent' | 'too_late' | string;
  timerKey?: string;
  txn?: string;
  messageId?: string;
  deliverAt?: string;
  [member: string]: unknown;
}

interface TimerSettings {
  key(key: string): this;
  partition(name: string): this;
  delay(duration: Duration): this;
  /** A negative delay is due at once. */
  delayMs(ms: number): this;
  payload(value: unknown): this;
  /** The transaction id the message will carry. */
  txn(id: string): this;
}

export interface TimerBuilder extends TimerSettings {
  schedule(): Promise<TimerResult>;
  cancel(): Promise<TimerResult>;
  peek(): Promise<{ found: boolean; timerKey?: string; txn?: string; deliverAt?: string; payload?: string; [member: string]: unknown }>;
  list(options?: { after?: string; limit?: number }): Promise<{ rows: Array<{ timerKey: string; [member: string]: unknown }>; truncated: boolean; nextAfter: string | null }>;
}

export interface TransactionTimer extends TimerSettings {
  schedule(): TransactionBuilder;
  cancel(): TransactionBuilder;
  /** Throws: not possible inside a transaction. */
  peek(): never;
  /** Throws: not possible inside a transaction. */
  list(): never;
}

// ---- locks ----

export interface LockGuard {
  op: 'check';
  ns: string;
  key: string;
  expect: number;
  required: true;
}

export interface LockHolder {
  slot: number;
  owner: string | null;
  token?: number;
  since?: string;
  expiresAt?: string;
  renewedAt?: string;
}

export interface Lifetime {
  ttl?: Duration;
  ttlSeconds?: number;
}

export interface LockOptions extends Lifetime {
  owner?: string;
  /** Renew in the background (true). */
  autoRenew?: boolean;
  /** A third of the lifetime by default. */
  renewEvery?: Duration;
  retryMinMs?: number;
  retryMaxMs?: number;
}

export interface AcquireResult {
  acquired: boolean;
  slot?: number;
  token?: number;
  owner?: string | null;
  guard?: LockGuard;
  already?: boolean;
  reason?: 'held' | 'contended' | string;
  holders?: LockHolder[];
}

export class Locks {
  private constructor();
  acquire(name: string, options: Lifetime & { owner?: string; limit?: number }): Promise<AcquireResult>;
  renew(name: string, options: Lifetime & { token: number; slot?: number; owner?: string }): Promise<{ renewed: boolean; slot?: number; token?: number; guard?: LockGuard; reason?: string; holders?: LockHolder[] }>;
  release(name: string, options: { token: number; slot?: number }): Promise<{ released: boolean; slot?: number; reason?: string }>;
  get(name: string): Promise<{ held: boolean; holders: LockHolder[] }>;
  batch(operations: Array<Record<string, unknown>>): Promise<any[]>;
}

export class Lock {
  private constructor();
  readonly name: string;
  readonly owner: string;
  readonly limit: number;
  readonly ttlSeconds: number;
  readonly held: boolean;
  readonly token: number | null;
  readonly slot: number | null;
  /** Epoch milliseconds by the local clock. */
  readonly validUntil: number | null;
  /** Aborted when the lock is lost; a new one for each acquisition. */
  readonly signal: AbortSignal;
  acquire(options?: { wait?: Duration; signal?: AbortSignal }): Promise<boolean>;
  renew(): Promise<boolean>;
  release(): Promise<boolean>;
  run<T>(fn: (lock: Lock) => T | Promise<T>, options?: { wait?: Duration; signal?: AbortSignal }): Promise<{ acquired: false } | { acquired: true; value: T }>;
  guard(): LockGuard;
  onLost(fn: (reason: 'renew' | 'guard' | 'expired') => void): this;
}

// ---- admin ----

type Params = Record<string, string | number | boolean | null | undefined>;

export class Admin {
  private constructor();
  getOverview(): Promise<any>;
  getNamespaces(): Promise<any>;
  getTasks(): Promise<any>;
  listQueues(params?: Params): Promise<any>;
  getQueue(queue: string): Promise<any>;
  getQueueDepth(queue: string, group?: string): Promise<any>;
  getPartitions(params?: Params): Promise<any>;
  /** Always rejects, with what to do instead. */
  clearQueue(...args: unknown[]): Promise<never>;
  /** Always rejects, with what to do instead. */
  moveMessageToDLQ(...args: unknown[]): Promise<never>;
  listMessages(params?: Params): Promise<any>;
  getMessage(partitionId: string, transactionId: string): Promise<any>;
  deleteMessage(partitionId: string, transactionId: string): Promise<any>;
  retryMessage(partitionId: string, transactionId: string): Promise<any>;
  getTracesByName(name: string, params?: Params): Promise<any>;
  getTraceNames(params?: Params): Promise<any>;
  getTracesForMessage(partitionId: string, transactionId: string): Promise<any>;
  getStatus(params?: Params): Promise<any>;
  getQueueStats(params?: Params): Promise<any>;
  getQueueDetail(queue: string, params?: Params): Promise<any>;
  getAnalytics(params?: Params): Promise<any>;
  listConsumerGroups(): Promise<any>;
  getConsumerGroup(group: string): Promise<any>;
  getLaggingConsumers(minLagSeconds?: number): Promise<any>;
  refreshConsumerStats(): Promise<any>;
  deleteConsumerGroupForQueue(group: string, queue: string, deleteMetadata?: boolean): Promise<any>;
  seekConsumerGroup(group: string, queue: string, options: { timestamp?: string; toEnd?: boolean }): Promise<any>;
  health(): Promise<any>;
  metrics(): Promise<any>;
  getSystemMetrics(params?: Params): Promise<any>;
  getWorkerMetrics(params?: Params): Promise<any>;
}

// ---- left out ----

/** Every call rejects with code `ephemeral_unsupported`. */
export class Ephemeral {
  private constructor();
  configure(...args: unknown[]): Promise<never>;
  reset(...args: unknown[]): Promise<never>;
  delete(...args: unknown[]): Promise<never>;
  push(...args: unknown[]): Promise<never>;
  pop(...args: unknown[]): Promise<never>;
  ack(...args: unknown[]): Promise<never>;
  queues(...args: unknown[]): Promise<never>;
  depth(...args: unknown[]): Promise<never>;
  flush(...args: unknown[]): Promise<never>;
}

export class Stream {
  private constructor();
  static from(...args: unknown[]): never;
}

export function tokenBucketGate(...args: unknown[]): never;
export function slidingWindowGate(...args: unknown[]): never;

// ---- constants ----

export const CONFLATION_UNSUPPORTED: 'conflation_unsupported';
export const EPHEMERAL_UNSUPPORTED: 'ephemeral_unsupported';
export const EPHEMERAL_QUEUE_NOT_FOUND: 'ephemeral_queue_not_found';
export const LOCK_NOT_HELD: 'LOCK_NOT_HELD';
export const CLIENT_DEFAULTS: Readonly<Required<Omit<QueenOptions, 'url' | 'urls' | 'structuredLogs' | 'retry429'>>>;
export const QUEUE_DEFAULTS: Readonly<QueueConfig>;
export const CONSUME_DEFAULTS: Readonly<Record<string, any>>;
export const POP_DEFAULTS: Readonly<{ batch: number; wait: boolean; timeoutMillis: number; autoAck: boolean }>;
export const BUFFER_DEFAULTS: Readonly<Required<Omit<BufferOptions, 'onError'>>>;
