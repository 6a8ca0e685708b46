/* A lazy operation: create(), delete(), push() and consume() return one. Nothing is sent until it is awaited.
 *
 * It starts at the first then(), catch() or finally(), once, and remembers its outcome. Callbacks set before that
 * (onSuccess, onError, onDuplicate) are handed to the function that does the work. */

export class LazyOperation {
  #run;
  #promise = null;
  #callbacks = {};

  /** @param {(callbacks: object) => Promise<*>} run */
  constructor(run) {
    this.#run = run;
  }

  /** Whether it was started. */
  get started() {
    return this.#promise !== null;
  }

  onSuccess(fn) {
    return this.#on('onSuccess', fn);
  }

  onError(fn) {
    return this.#on('onError', fn);
  }

  then(onFulfilled, onRejected) {
    return this.#start().then(onFulfilled, onRejected);
  }

  catch(onRejected) {
    return this.#start().catch(onRejected);
  }

  finally(onSettled) {
    return this.#start().finally(onSettled);
  }

  _on(name, fn) {
    return this.#on(name, fn);
  }

  #on(name, fn) {
    if (typeof fn !== 'function') throw new TypeError(`${name} needs a function`);
    if (this.#promise !== null) throw new Error(`${name} must be set before the operation is awaited`);
    this.#callbacks[name] = fn;
    return this;
  }

  #start() {
    this.#promise ??= this.#run(this.#callbacks);
    return this.#promise;
  }
}

/** A push: also tells of items whose id was stored before. */
export class PushOperation extends LazyOperation {
  onDuplicate(fn) {
    return this._on('onDuplicate', fn);
  }
}
