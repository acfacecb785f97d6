import { Client, Toasts } from "../src/index.ts";

const url = process.env.PABAL_URL!;
const client = new Client({ url, service: process.env.PABAL_SERVICE!, secret: process.env.PABAL_SECRET! });
const person = process.env.PERSON_ID!;

// In a page, getToken asks your own server, which has the secret.
const toasts = new Toasts({ url, getToken: async () => (await client.issuePersonToken(person)).token });
const page = await toasts.list({ limit: 20 });
console.log("unread", page.unread);

const stop = new AbortController();
for await (const { toast, unread } of toasts.changes(page.last, stop.signal)) {
  console.log(toast.title, toast.state, unread);
  if (toast.state === "unseen") await toasts.mark(toast.id, "read");
  else stop.abort();
}
