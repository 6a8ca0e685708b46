/* Checks what `new Queen(...)` was given and fills in the defaults. Sends nothing, keeps nothing. */
import { CLIENT_DEFAULTS } from './defaults.js';

const STRATEGIES = ['affinity', 'round-robin', 'session'];
const OFF = new Set(['off', 'false', '0', 'no', 'disabled']);

/**
 * @param {string|string[]|object} config
 * @returns {object} complete options, with `urls` an array without trailing slashes
 */
export function clientOptions(config) {
  const given = typeof config === 'string' ? { urls: [config] } : Array.isArray(config) ? { urls: config } : (config ?? {});
  const urls = given.urls ?? (given.url === undefined || given.url === null ? undefined : [given.url]);
  if (urls === undefined || urls === null) throw new Error('Must provide urls or url in configuration');
  if (!Array.isArray(urls) || urls.length === 0) throw new Error('urls must be a non-empty array');
  const options = { ...CLIENT_DEFAULTS };
  for (const [name, value] of Object.entries(given)) {
    if (value !== undefined) options[name] = value;
  }
  options.urls = urls.map(checkedUrl);
  options.headers = { ...(options.headers ?? {}) };
  options.hostHeader = checkedHost(options);
  if (!STRATEGIES.includes(options.loadBalancingStrategy)) {
    throw new Error(`Invalid loadBalancingStrategy: ${options.loadBalancingStrategy} (expected ${STRATEGIES.join(', ')})`);
  }
  for (const name of ['timeoutMillis', 'retryAttempts', 'affinityHashRing']) checkNumber(options, name, 1);
  for (const name of ['retryDelayMillis', 'healthRetryAfterMillis']) checkNumber(options, name, 0);
  return options;
}

/** Whether QUEEN_SDK_POP_AUTOPILOT switches the broker's choice of batches off for this process. */
export function autopilotIsOff(environment) {
  return OFF.has((environment.QUEEN_SDK_POP_AUTOPILOT ?? '').trim().toLowerCase());
}

function checkNumber(options, name, least) {
  const value = options[name];
  if (typeof value !== 'number' || !Number.isFinite(value) || value < least) {
    throw new Error(`Invalid ${name}: ${value} (a number of at least ${least})`);
  }
}

function checkedUrl(url) {
  if (typeof url !== 'string' || !url.startsWith('http') || !URL.canParse(url)) throw new Error(`Invalid URL: ${url}`);
  return url.replace(/\/+$/, '');
}

/** The Host to advertise: a bare authority, from the option or from a Host among the headers, which is taken out. */
function checkedHost(options) {
  const name = Object.keys(options.headers).find((header) => header.toLowerCase() === 'host');
  let host = options.hostHeader;
  if (name !== undefined) {
    host ??= options.headers[name];
    delete options.headers[name];
    console.warn('[queen] a Host in headers is used as hostHeader; set that option instead');
  }
  if (host === null || host === undefined) return null;
  if (typeof host !== 'string' || !/^(\[[0-9a-fA-F:.]+\]|[^\s/?#@:[\]\\]+)(:\d{1,5})?$/.test(host)) {
    throw new Error(`Invalid hostHeader: ${host} (a bare authority such as 'acme.example' or 'acme:6711')`);
  }
  return host;
}
