// What a handler may return or throw instead of being done.

/** Try again later; counts an attempt. Any other exception is a retry as well. */
export class Retry {
  readonly reason: string;
  /** Seconds; without it the hub's backoff applies. */
  readonly delaySeconds: number | undefined;

  constructor(reason: string, delaySeconds?: number) {
    this.reason = reason;
    this.delaySeconds = delaySeconds;
  }
}

/** Give up at once: the event becomes a dead letter. */
export class Dead {
  readonly reason: string;

  constructor(reason: string) {
    this.reason = reason;
  }
}

/** Try again later without counting an attempt. */
export class Snooze {
  readonly reason: string;
  readonly delaySeconds: number;

  constructor(reason: string, delaySeconds: number) {
    this.reason = reason;
    this.delaySeconds = delaySeconds;
  }
}

export type Outcome = Retry | Dead | Snooze;
