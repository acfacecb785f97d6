import { RelayBot, createSession } from "../src/index.ts";

const url = process.env.PABAL_URL!;
const session = await createSession(url);
console.log(`In the chat, send: /pair ${session.pairingCode}`);

const bot = new RelayBot({ url, token: session.token });
bot.onMessage(async (message) => `Echo: ${message.text}`);

const stop = new AbortController();
process.on("SIGTERM", () => stop.abort());
await bot.run(stop.signal);
