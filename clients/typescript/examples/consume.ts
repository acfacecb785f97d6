import { Client, Dead, Retry } from "../src/index.ts";

const client = new Client({
  url: process.env.PABAL_URL!,
  service: process.env.PABAL_SERVICE!,
  secret: process.env.PABAL_SECRET!,
});
const stop = new AbortController();
process.on("SIGTERM", () => stop.abort());

await client.consume(
  async (event) => {
    console.log(event.event_type, JSON.stringify(event.payload));
    if (event.payload.order === 8) throw new Retry("the bank is closed", 600);
    if (event.payload.order === 9) return new Dead("no such customer");
  },
  { signal: stop.signal, concurrency: 20 },
);
