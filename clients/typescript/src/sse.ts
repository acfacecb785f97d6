// Server-sent events of the hub, read from a response.

/** One event. `id` is empty if it has none. */
export interface StreamEvent {
  name: string;
  data: unknown;
  id: string;
}

/** Yield the events of a response, and null for a ping. Ends when the response ends. */
export async function* readEvents(response: Response): AsyncGenerator<StreamEvent | null> {
  const reader = response.body!.pipeThrough(new TextDecoderStream()).getReader();
  let buffer = "";
  try {
    while (true) {
      const { done, value } = await reader.read();
      if (done) return;
      buffer += value;
      const blocks = buffer.split("\n\n");
      buffer = blocks.pop()!;
      for (const block of blocks) yield parseEvent(block);
    }
  } finally {
    await reader.cancel().catch(() => undefined);
  }
}

function parseEvent(block: string): StreamEvent | null {
  const fields = new Map<string, string>();
  for (const line of block.split("\n")) {
    const colon = line.indexOf(": ");
    if (colon > 0) fields.set(line.slice(0, colon), line.slice(colon + 2));
  }
  const data = fields.get("data");
  if (data === undefined) return null;
  return { name: fields.get("event") ?? "message", data: JSON.parse(data) as unknown, id: fields.get("id") ?? "" };
}

/** Aborts if nothing arrives for a while: the hub sends a ping every 20 seconds. */
export class Watchdog {
  readonly #controller = new AbortController();
  readonly #silenceMs: number;
  #timer: ReturnType<typeof setTimeout> | undefined;

  constructor(silenceMs: number) {
    this.#silenceMs = silenceMs;
    this.feed();
  }

  get signal(): AbortSignal {
    return this.#controller.signal;
  }

  feed(): void {
    this.stop();
    this.#timer = setTimeout(() => this.#controller.abort(new Error("the stream is silent")), this.#silenceMs);
  }

  stop(): void {
    clearTimeout(this.#timer);
  }
}
