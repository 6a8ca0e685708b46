/* Where the client's log lines go: the program's logger, the console when QUEEN_CLIENT_LOG=true, or nowhere.
 *
 * A logger has info, warn and error, and may have debug (info takes its place). `structuredLogs: true` calls them as
 * pino wants it, an object and then a text; otherwise they get one text. */

const LEVELS = ['info', 'warn', 'error'];

export class Logger {
  #target;
  #structured;
  #hinted = new Set();

  /**
   * @param {object|null} target the program's logger
   * @param {{structuredLogs?: boolean, console?: boolean}} options
   */
  constructor(target, { structuredLogs = false, console: toConsole = false } = {}) {
    if (target !== null && target !== undefined) {
      for (const level of LEVELS) {
        if (typeof target[level] !== 'function') throw new Error(`Invalid logger: it has no function '${level}'`);
      }
      this.#target = target;
    } else {
      this.#target = toConsole ? console : null;
    }
    this.#structured = structuredLogs;
  }

  /** Whether log lines go anywhere. */
  get enabled() {
    return this.#target !== null;
  }

  debug(where, details) {
    this.#write(typeof this.#target?.debug === 'function' ? 'debug' : 'info', where, details);
  }

  info(where, details) {
    this.#write('info', where, details);
  }

  warn(where, details) {
    this.#write('warn', where, details);
  }

  error(where, details) {
    this.#write('error', where, details);
  }

  /**
   * A line about something the API hides on purpose. Goes to the logger; without one, the first line about each `where`
   * goes to the console, so that an outage does not look like an empty queue.
   */
  hidden(where, error) {
    if (this.#target !== null) {
      this.#write('warn', where, { error: error.message });
    } else if (!this.#hinted.has(where)) {
      this.#hinted.add(where);
      console.warn(`[queen] ${where}: ${error.message} (said once; pass a logger to see all)`);
    }
  }

  #write(level, where, details) {
    if (this.#target === null) return;
    try {
      if (this.#structured) {
        this.#target[level](typeof details === 'object' && details !== null ? details : { details }, where);
      } else {
        const text = details === undefined ? '' : ` ${typeof details === 'string' ? details : JSON.stringify(details)}`;
        this.#target[level](`[queen] ${where}${text}`);
      }
    } catch {
      // A logger that throws must not change what the client does.
    }
  }
}
