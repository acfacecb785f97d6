import { createServer } from "node:http";
import { WebhookVerificationError, verifyWebhook } from "../src/index.ts";

const server = createServer(async (request, response) => {
  const chunks: Uint8Array[] = [];
  for await (const chunk of request) chunks.push(chunk as Uint8Array);
  try {
    const event = await verifyWebhook(process.env.WEBHOOK_SECRET!, request.headers, Buffer.concat(chunks));
    console.log(event.event_type, JSON.stringify(event.payload));
    response.writeHead(204).end();
  } catch (error) {
    response.writeHead(error instanceof WebhookVerificationError ? 401 : 500).end();
  }
});
server.listen(Number(process.env.PORT ?? 0), "127.0.0.1", () => console.log(JSON.stringify(server.address())));
