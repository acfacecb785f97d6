// The command line of the contestants from npm: the same as stage.py. The Makefile installs the modules.

import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { createInterface } from "node:readline";

export const load = createRequire(`${process.env.PEER_MODULES}/`);
export const PAYLOAD = { text: "x".repeat(189) }; // 200 bytes, written without spaces
export const BATCH = 1000;
export const INSERT_ORDER = "insert into public.bench_orders (item) values ('book')";

// The settings of a contestant: the best that `bench.tune` found, or those that `bench.tune` tries now.
export const settings = (best) => ({ ...best, ...JSON.parse(process.env.PEER_SETTINGS ?? "{}") });

// The clock is the same in all processes of a machine.
const now = () => Number(process.hrtime.bigint()) / 1e9;
export const timedPayload = () => ({ at: now() });
export const reportAge = (payload) => {
  const handled = now();
  if (payload.at) console.log(`age ${(handled - payload.at).toFixed(6)}`);
};
const cpuSeconds = () => {
  const { user, system } = process.cpuUsage();
  return (user + system) / 1e6;
};

export class Tally {
  constructor(rows, seconds) {
    Object.assign(this, { rows, seconds, handled: 0, ended: 0 });
    this.all = new Promise((resolve) => (this.done = resolve));
  }

  begin() {
    if (this.began !== undefined) return;
    console.log("begin");
    this.began = now();
    this.cpu = -cpuSeconds();
    this.timer = setTimeout(() => (this.end(), this.done(false)), this.seconds * 1000);
  }

  many(count) {
    this.handled += count;
    if (this.handled >= this.rows) this.done(true);
  }

  get left() {
    return this.began + this.seconds - now();
  }

  end() {
    if (this.ended) return;
    this.ended = now();
    this.cpu += cpuSeconds();
    clearTimeout(this.timer);
    console.log("end");
  }

  get result() {
    const jobs = Math.min(this.handled, this.rows);
    return { rate: jobs / (this.ended - this.began), jobs, cpu: this.cpu };
  }
}

export async function putAll(put, rows) {
  console.log("begin");
  const began = now();
  const cpu = cpuSeconds();
  for (let start = 0; start < rows; start += BATCH) await put(Math.min(BATCH, rows - start));
  const [elapsed, used] = [now() - began, cpuSeconds() - cpu];
  console.log("end");
  return { rate: rows / elapsed, jobs: rows, cpu: used };
}

// Run transactions on each connection, all at the same time, until the time is over. `enqueue` inserts the job.
export async function transact(pool, connections, seconds, enqueue) {
  const clients = await Promise.all(Array.from({ length: connections }, () => pool.connect()));
  const durations = [];
  console.log("begin");
  const began = now();
  const cpu = cpuSeconds();
  await Promise.all(
    clients.map(async (client) => {
      for (let start = began; start < began + seconds; start = now()) {
        await client.query("begin");
        await client.query(INSERT_ORDER);
        await enqueue(client);
        await client.query("commit");
        durations.push(now() - start);
      }
    }),
  );
  const [elapsed, used] = [now() - began, cpuSeconds() - cpu];
  console.log("end");
  for (const client of clients) client.release();
  durations.sort((a, b) => a - b);
  const jobs = durations.length;
  return { rate: jobs / elapsed, jobs, cpu: used, p50: durations[jobs >> 1], p99: durations[Math.floor(jobs * 0.99)] };
}

// Put one job for each line of the input.
async function putOnDemand(put) {
  for await (const _ of createInterface({ input: process.stdin })) await put();
}

function peakMemory() {
  return Number(/VmHWM:\s+(\d+)/.exec(readFileSync("/proc/self/status", "utf8"))[1]) / 1024;
}

export async function enter(contestant) {
  const [url, command, rows = "0", seconds = "10"] = process.argv.slice(2);
  let result = {};
  if (command === "install") await contestant.install(url);
  else if (command === "fill") result = await contestant.fill(url, Number(rows));
  else if (command === "transact") result = await contestant.transact(url, Number(rows), Number(seconds));
  else if (command === "consume") await contestant.consume(url);
  else if (command === "publish") await putOnDemand(await contestant.publisher(url));
  else {
    const tally = new Tally(Number(rows), Number(seconds));
    await contestant.drain(url, tally);
    result = { ...tally.result, memory: peakMemory() };
  }
  console.log(JSON.stringify(result));
  if (command === "publish") process.exit();
}
