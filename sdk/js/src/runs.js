/* The consume runs of a client that have not ended, so that a shutdown can stop them and wait. */

export class Runs {
  #runs = new Map();

  /** Registers a run; the function returned takes it out again. */
  add(run) {
    let finish;
    const ended = new Promise((resolve) => {
      finish = resolve;
    });
    this.#runs.set(run, ended);
    return () => {
      this.#runs.delete(run);
      finish();
    };
  }

  /** Stops all of them and waits until they have handed back what they did not begin, or the deadline is over. */
  async stop(clock, deadlineMs) {
    const ends = [...this.#runs.entries()].map(([run, ended]) => {
      run.stop();
      return ended;
    });
    if (ends.length === 0) return;
    let timer;
    const deadline = new Promise((resolve) => {
      timer = clock.setTimeout(resolve, deadlineMs);
    });
    await Promise.race([Promise.all(ends), deadline]);
    clock.clearTimeout(timer);
  }
}
