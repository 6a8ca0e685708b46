/* Push the same order twice; the second one is recognised by its transaction id and stored nowhere.
 *
 *   node push-twice.mjs [URL]
 *
 * This is how a producer that does not know whether its first push arrived sends it again. */
import { Queen } from 'queen-mq';

const client = new Queen(process.argv[2] ?? 'http://localhost:6632');

await client.queue('orders').create();

const order = { transactionId: 'order-9137', data: { orderId: 9137, total: 42.5 } };
const [first] = await client.queue('orders').push([order]);
const [second] = await client.queue('orders').push([order]);

console.log(JSON.stringify({ first: first.status, second: second.status, sameMessage: first.message_id === second.message_id }));

await client.close();
