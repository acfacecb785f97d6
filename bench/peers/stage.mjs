// The stage the contestants from npm stand on; it is the same as stage.py, and the modules are where the Makefile put them.

import { readFileSync } from "node:fs";
import { createRequire } from "node:module";

export const load = createRequire(`${process.env.PEER_MODULES}/`);
export const PAYLOAD = { text: "x".repeat(189) }; // 200 bytes, written without spaces
export const BATCH = 1000;

// What it is run with: the best that `bench.tune` found for it, or what `bench.tune` is trying now.
export const settings = (best) => ({ ...best, ...JSON.parse(process.env.PEER_SETTINGS ?? "{}") });

const now = () => performance.now() / 1000;

export class Tally {
  constructor(rows, seconds) {
    Object.assign(this, { rows, seconds, handled: 0, ended: 0 });
    this.all = new Promise((resolve) => (this.done = resolve));
  }

  begin() {
    this.began = now();
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
    this.ended ||= now();
    clearTimeout(this.timer);
  }

  get rate() {
    return Math.min(this.handled, this.rows) / (this.ended - this.began);
  }
}

export async function putAll(put, rows) {
  const began = now();
  for (let start = 0; start < rows; start += BATCH) await put(Math.min(BATCH, rows - start));
  return rows / (now() - began);
}

function peakMemory() {
  return Number(/VmHWM:\s+(\d+)/.exec(readFileSync("/proc/self/status", "utf8"))[1]) / 1024;
}

export async function enter(contestant) {
  const [url, what, rows = "0", seconds = "10"] = process.argv.slice(2);
  let said = {};
  if (what === "install") await contestant.install(url);
  else if (what === "fill") said = { rate: await contestant.fill(url, Number(rows)) };
  else {
    const tally = new Tally(Number(rows), Number(seconds));
    await contestant.drain(url, tally);
    said = { rate: tally.rate, memory: peakMemory() };
  }
  console.log(JSON.stringify(said));
}
