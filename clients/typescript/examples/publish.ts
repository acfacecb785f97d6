import { Client } from "../src/index.ts";

const client = new Client({
  url: process.env.PABAL_URL!,
  service: process.env.PABAL_SERVICE!,
  secret: process.env.PABAL_SECRET!,
});

const event = await client.publish("order.paid", { order: 7 }, { target_service: "billing" });
console.log(event.id);

const results = await client.publishMany([
  { event_type: "order.seen", payload: { order: 8 }, target_service: "billing" },
  { event_type: "order.seen", payload: { order: 9 }, target_service: "billing" },
]);
console.log(results.map((result) => result.status));

const stored = await client.call("GET /v1/queue/events/{id}", { path: { id: event.id } });
console.log(stored.status);
