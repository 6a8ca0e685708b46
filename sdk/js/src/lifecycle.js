/* SIGINT and SIGTERM. One pair of handlers serves all clients of a process, however many there are.
 *
 * The first signal shuts every registered client down (consumers stop and hand back what they did not begin, buffers are
 * sent, locks are released) and then ends the process with 0; a second one ends it at once with 1. */

const SIGNALS = ['SIGINT', 'SIGTERM'];
const clients = new Set();
let shuttingDown = false;

async function onSignal() {
  if (shuttingDown) process.exit(1);
  shuttingDown = true;
  await Promise.allSettled([...clients].map((client) => client.shutdown()));
  process.exit(0);
}

/** From now on a signal shuts this client down. */
export function watchSignals(client) {
  if (clients.size === 0) for (const signal of SIGNALS) process.on(signal, onSignal);
  clients.add(client);
}

/** Signals leave this client alone; with the last one the handlers go. During a shutdown they stay, for the second signal. */
export function unwatchSignals(client) {
  clients.delete(client);
  if (clients.size === 0 && !shuttingDown) for (const signal of SIGNALS) process.off(signal, onSignal);
}
