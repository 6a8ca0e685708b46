/* A mailer that sends each mail once, although its queue delivers at least once.
 *
 *   node mailer.mjs [URL]
 *
 * `once` claims the mail's own id; who does not win has nothing to send. It claims before it sends: a mailer that dies in
 * between sends nothing twice, and at worst one mail not at all. */
import { pathToFileURL } from 'node:url';
import { Queen } from 'queen-mq';

/**
 * @param {Queen} queen
 * @param {(mail: object) => Promise<void>} send
 * @param {AbortSignal} [signal] ends the mailer
 */
export async function runMailer(queen, send, signal) {
  await queen.queue('mails').config({ leaseTime: 30, retryLimit: 3 }).create();
  await queen
    .queue('mails')
    .group('mailer')
    .subscriptionMode('all')
    .each()
    .consume(async ({ data: mail }) => {
      const { won } = await queen.kv.once('mails-sent', mail.id, { ttl: '30d' });
      if (!won) return;
      await send(mail);
    }, { signal });
}

if (process.argv[1] && import.meta.url === pathToFileURL(process.argv[1]).href) {
  await runMailer(new Queen(process.argv[2] ?? 'http://localhost:6632'), async (mail) => console.log(`to ${mail.to}: ${mail.text}`));
}
