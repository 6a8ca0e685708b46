/* A worker that takes payments. One transaction does all that belongs to one payment, or nothing of it:
 *
 *   - the message is acknowledged
 *   - the payment's row in KV says that it was taken
 *   - a receipt goes to the customer's own partition
 *   - a reminder is scheduled for the next day
 *   - and all of that only once for one payment, however often it is delivered
 *
 *   node payments.mjs [URL] */
import { pathToFileURL } from 'node:url';
import { Queen } from 'queen-mq';

/**
 * @param {Queen} queen
 * @param {object} hooks
 * @param {(payment: object, message: object) => Promise<{reference: string}>} hooks.charge talks to the bank; must be safe to repeat
 * @param {(outcome: string, payment: object) => void} [hooks.told] 'taken', 'repeated' or 'lost'
 * @param {AbortSignal} [signal] ends the worker
 */
export async function runPayments(queen, { charge, told = () => {} }, signal) {
  await queen.queue('payments').config({ leaseTime: 2, retryLimit: 1 }).create();
  await queen
    .queue('payments')
    .group('billing')
    .subscriptionMode('all')
    .autoAck(false)
    .each()
    .consume(async (message) => {
      const payment = message.data;
      // What charge throws makes the message fail: it comes again, and in the end lies among the dead letters.
      const { reference } = await charge(payment, message);
      try {
        const result = await queen
          .transaction()
          .ack(message)
          .kv.put('payments', payment.id, { state: 'taken', reference }, { ttl: '365d' })
          .queue('receipts').partition(payment.customer).push([{ data: { payment: payment.id, reference } }])
          .timer('reminders').key(`payment-${payment.id}`).delay('1d').payload({ payment: payment.id }).schedule()
          .once('payments-taken', payment.id, { ttl: '30d' })
          .commit();
        if (result.success) {
          told('taken', payment);
        } else {
          // kv_precondition: this payment was taken before. The message has still to be done with.
          await queen.ack(message, true, { group: 'billing' });
          told('repeated', payment);
        }
      } catch (error) {
        if (error.reason !== 'rejected_ack') throw error;
        // The lease ran out, so nothing of this happened; the message is somebody's again, maybe ours.
        told('lost', payment);
      }
    }, { signal });
}

if (process.argv[1] && import.meta.url === pathToFileURL(process.argv[1]).href) {
  await runPayments(new Queen(process.argv[2] ?? 'http://localhost:6632'), {
    charge: async ({ id }) => ({ reference: `bank-${id}` }),
    told: (outcome, { id }) => console.log(`${id}: ${outcome}`),
  });
}
