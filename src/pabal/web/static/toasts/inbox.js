// A person's toasts at the hub: loads them, follows every change, and marks them.
//
// A stream is opened with a ticket, which works once, so every connection takes a new one and continues after the last
// change it has seen. A token that has expired is fetched anew.

const PAGE_SIZE = 20;
const MAX_TOASTS = 100;
const FIRST_RETRY_MS = 1000;
const MAX_RETRY_MS = 60_000;

/** A response that is not a success. */
export class ToastRequestError extends Error {
  constructor(response) {
    super(`HTTP ${response.status}`);
    this.status = response.status;
    this.retryAfter = Number(response.headers.get("retry-after")) || 0;
  }
}

/** Fires `change`, `toast` (detail: a new toast) and `problem` (detail: "", "away" or "refused"). */
export class ToastInbox extends EventTarget {
  unread = 0;
  isLoaded = false;

  #hub;
  #fetchToken;
  #toasts = new Map();
  #max = MAX_TOASTS;
  #cursor = null; // of the next page; "" begins with the first one again
  #last = 0;
  #token = null;
  #source = null;
  #timer = null;
  #failures = 0;
  #connection = null; // what an earlier connection still does is ignored

  constructor(hub, fetchToken) {
    super();
    this.#hub = hub;
    this.#fetchToken = fetchToken;
  }

  /** The toasts that are not archived, the newest first. */
  get toasts() {
    return [...this.#toasts.values()].sort((one, other) => other.created_at.localeCompare(one.created_at));
  }

  /** Whether there are older toasts, which `loadMore` loads. */
  get hasMore() {
    return this.#cursor !== null;
  }

  open() {
    if (this.#connection) return;
    this.#connection = Symbol("connection");
    this.#connect(this.#connection);
  }

  close() {
    this.#connection = null;
    clearTimeout(this.#timer);
    this.#source?.close();
  }

  /** Mark a toast: `seen`, `read` or `archive`. The stream tells the new number of unread toasts. */
  async mark(toast, action) {
    const marked = await this.#request("POST", `/v1/toasts/${toast.id}/${action}`);
    if (this.#toasts.has(toast.id)) this.#put(marked); // unless the stream has told that it is archived
    this.#fire("change");
  }

  /** Mark all toasts as read, also those that are not loaded. */
  async markAllRead() {
    const toasts = this.toasts; // one that arrives meanwhile stays unread
    await this.#request("POST", "/v1/toasts/read");
    const read = { state: "read", read_at: new Date().toISOString() };
    for (const toast of toasts) if (!toast.read_at && this.#toasts.has(toast.id)) this.#put({ ...toast, ...read });
    this.#fire("change");
  }

  /** Load the next page of older toasts. */
  async loadMore() {
    const known = this.#toasts.size;
    this.#max = Math.max(this.#max, known + PAGE_SIZE);
    while (this.hasMore && this.#toasts.size === known) await this.#loadPage();
    this.#fire("change");
  }

  // Connection

  async #connect(connection) {
    try {
      if (!this.isLoaded) await this.#load(connection);
      const { ticket } = await this.#request("POST", "/v1/toasts/ticket");
      if (connection === this.#connection) this.#openStream(connection, ticket);
    } catch (error) {
      this.#retry(connection, error);
    }
  }

  async #load(connection) {
    const page = await this.#loadPage();
    if (connection !== this.#connection) return;
    this.#last = page.last;
    this.unread = page.unread;
    this.isLoaded = true;
    this.#fire("change");
  }

  async #loadPage() {
    const query = new URLSearchParams({ limit: String(PAGE_SIZE), ...(this.#cursor && { cursor: this.#cursor }) });
    const page = await this.#request("GET", `/v1/toasts?${query}`);
    this.#cursor = page.cursor;
    page.items.forEach((toast) => this.#put(toast));
    return page;
  }

  #openStream(connection, ticket) {
    const query = new URLSearchParams({ after: String(this.#last), ticket });
    const source = new EventSource(`${this.#hub}/v1/toasts/stream?${query}`);
    this.#source = source;
    source.addEventListener("connected", (event) => {
      this.#failures = 0;
      this.unread = JSON.parse(event.data).unread;
      this.#fire("problem", "");
      this.#fire("change");
    });
    source.addEventListener("toast", (event) => {
      const { toast, unread } = JSON.parse(event.data);
      const isNew = !this.#toasts.has(toast.id) && toast.state === "unseen";
      this.#last = event.lastEventId;
      this.unread = unread;
      this.#put(toast);
      this.#fire("change");
      if (isNew) this.#fire("toast", toast);
    });
    source.addEventListener("error", () => {
      source.close(); // its own reconnect would send the used ticket
      this.#retry(connection);
    });
  }

  #retry(connection, error = null) {
    if (connection !== this.#connection) return;
    const backoff = Math.min(FIRST_RETRY_MS * 2 ** this.#failures, MAX_RETRY_MS) * (0.75 + Math.random() / 2);
    // One end of a stream is usual: the hub restarts, or the token has expired.
    if (error || this.#failures > 0) this.#fire("problem", error?.status ? "refused" : "away");
    this.#failures += 1;
    this.#timer = setTimeout(() => this.#connect(connection), Math.max(backoff, (error?.retryAfter ?? 0) * 1000));
  }

  async #request(method, path) {
    let response = await this.#send(method, path);
    if (response.status === 401) {
      this.#token = null;
      response = await this.#send(method, path);
    }
    if (!response.ok) throw new ToastRequestError(response);
    return response.json();
  }

  async #send(method, path) {
    this.#token ??= this.#fetchToken(); // concurrent requests share one token
    try {
      const headers = { authorization: `Bearer ${await this.#token}` };
      return await fetch(this.#hub + path, { method, headers, credentials: "omit", cache: "no-store", referrerPolicy: "no-referrer" });
    } catch (error) {
      this.#token = null; // the next request asks for a token again
      throw error;
    }
  }

  // Toasts

  #put(toast) {
    if (toast.state === "archived") this.#toasts.delete(toast.id);
    else if (toast.read_at || !this.#toasts.get(toast.id)?.read_at) this.#toasts.set(toast.id, toast); // never back to unread
    if (this.#toasts.size <= this.#max) return;
    this.#toasts.delete(this.toasts.at(-1).id);
    this.#cursor = "";
  }

  #fire(name, detail = null) {
    this.dispatchEvent(new CustomEvent(name, { detail }));
  }
}
