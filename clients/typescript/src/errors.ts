// The errors of the client.
//
// PabalError
// ├── ApiError                   the hub refused the request; see `status`, `code` and `detail`
// ├── HubUnavailableError        no valid response after all retries; the request may or may not have been processed
// ├── PairingExpiredError        the session of a bot has ended before a user was paired with it
// └── WebhookVerificationError   the signature of a webhook is wrong or too old

/** A field and the reason it is invalid. */
export interface Mistake {
  field: string;
  why: string;
}

/** The base class of all errors of this package. */
export class PabalError extends Error {
  override name = "PabalError";
}

/** The hub refused the request. `code` is stable; `detail` is written for people. */
export class ApiError extends PabalError {
  override name = "ApiError";
  readonly status: number;
  readonly code: string;
  readonly detail: string;
  readonly mistakes: Mistake[];
  /** Seconds to wait, of a response 429. */
  readonly retryAfterSeconds: number | undefined;

  constructor(status: number, code: string, detail: string, mistakes: Mistake[] = [], retryAfterSeconds?: number) {
    super(`${status} ${code}: ${detail}`);
    this.status = status;
    this.code = code;
    this.detail = detail;
    this.mistakes = mistakes;
    this.retryAfterSeconds = retryAfterSeconds;
  }
}

/** No valid response after all retries. The request may or may not have been processed. */
export class HubUnavailableError extends PabalError {
  override name = "HubUnavailableError";
}

/** The session of a bot has ended before a user was paired with it. Create a new one. */
export class PairingExpiredError extends PabalError {
  override name = "PairingExpiredError";
}

/** The signature of a webhook is wrong or too old. */
export class WebhookVerificationError extends PabalError {
  override name = "WebhookVerificationError";
}

interface ErrorBody {
  code?: string;
  error?: string;
  detail?: string;
  error_description?: string;
  message?: string;
  mistakes?: Mistake[];
}

/** The error of a response that is not a success. */
export async function errorOf(response: Response): Promise<PabalError> {
  const text = await response.text().catch(() => "");
  if (response.status >= 500 && response.status !== 502) {
    return new HubUnavailableError(`the hub returned HTTP ${response.status}: ${text.slice(0, 200)}`);
  }
  let body: ErrorBody = {};
  try {
    body = (JSON.parse(text) ?? {}) as ErrorBody;
  } catch {
    // from a proxy, not from the hub
  }
  if (response.status === 502 && !body.code) return new HubUnavailableError(`a proxy returned HTTP 502: ${text.slice(0, 200)}`);
  const detail = body.detail ?? body.error_description ?? body.message ?? `the hub returned HTTP ${response.status}`;
  const retryAfter = response.status === 429 ? Math.max(retryAfterSeconds(response) ?? 1, 1) : undefined;
  return new ApiError(response.status, body.code ?? body.error ?? "refused", detail, body.mistakes, retryAfter);
}

/** The header Retry-After in seconds; undefined without one. */
export function retryAfterSeconds(response: Response): number | undefined {
  const text = response.headers.get("retry-after")?.trim();
  if (!text) return undefined;
  const seconds = /^\d+$/.test(text) ? Number(text) : (Date.parse(text) - Date.now()) / 1000;
  return Number.isNaN(seconds) ? undefined : Math.max(seconds, 0);
}
