/* Names of parts that are left out: ephemeral queues and streams. Programs that import them load; using one says so. */

/** `code` of the errors that say that ephemeral queues are not served. */
export const EPHEMERAL_UNSUPPORTED = 'ephemeral_unsupported';
export const EPHEMERAL_QUEUE_NOT_FOUND = 'ephemeral_queue_not_found';

function refuse(what, code) {
  const error = new Error(`${what} are not part of this client: the broker does not serve them`);
  if (code !== undefined) error.code = code;
  throw error;
}

/** queen.ephemeral: every call rejects with code `ephemeral_unsupported`. */
export class Ephemeral {
  async configure() {
    refuse('Ephemeral queues', EPHEMERAL_UNSUPPORTED);
  }

  async reset() {
    refuse('Ephemeral queues', EPHEMERAL_UNSUPPORTED);
  }

  async delete() {
    refuse('Ephemeral queues', EPHEMERAL_UNSUPPORTED);
  }

  async push() {
    refuse('Ephemeral queues', EPHEMERAL_UNSUPPORTED);
  }

  async pop() {
    refuse('Ephemeral queues', EPHEMERAL_UNSUPPORTED);
  }

  async ack() {
    refuse('Ephemeral queues', EPHEMERAL_UNSUPPORTED);
  }

  async queues() {
    refuse('Ephemeral queues', EPHEMERAL_UNSUPPORTED);
  }

  async depth() {
    refuse('Ephemeral queues', EPHEMERAL_UNSUPPORTED);
  }

  async flush() {
    refuse('Ephemeral queues', EPHEMERAL_UNSUPPORTED);
  }
}

/** Streams: from() throws. */
export class Stream {
  static from() {
    refuse('Streams');
  }

  constructor() {
    refuse('Streams');
  }
}

export function tokenBucketGate() {
  refuse('Streams');
}

export function slidingWindowGate() {
  refuse('Streams');
}

/** queen.stream() and queen.consumer(): the window calls of the 0.x line. */
export function refuseWindows() {
  refuse('Window streams of the 0.x line');
}
