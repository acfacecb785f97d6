// Calls that must be type errors: the compiler reports an expected error that does not occur.

import { Client } from "../src/index.ts";

export async function callWrongly(client: Client): Promise<void> {
  // @ts-expect-error an id is a text
  await client.call("GET /v1/queue/events/{id}", { path: { id: 7 } });
  // @ts-expect-error the endpoint has a path parameter
  await client.call("GET /v1/queue/events/{id}", {});
  // @ts-expect-error no such endpoint
  await client.call("GET /v1/nothing", {});
  // @ts-expect-error the name of the field is target_service
  await client.publish("order.paid", {}, { target: "billing" });
  const letters = await client.call("GET /v1/dead-letters", { query: { limit: 5 } });
  // @ts-expect-error no such field
  letters.items.at(0)?.no_such_field;
  // @ts-expect-error the secret is missing
  new Client({ url: "https://hub.example.org", service: "shop" });
}
