// <pabal-toasts>: a bell with the number of unread toasts, their list, and a popup for each new one, in any page.
//
//   <script type="module" src="https://hub.example.org/static/toasts.js"></script>
//   <pabal-toasts token-url="/pabal-token"></pabal-toasts>
//
// `token-url` is an endpoint of your own server: it answers a POST with {"token": "…"}, a token that it gets from the hub
// (POST /v1/people/{id}/token) for the person who is signed in. Or set the property `getToken` to an async function.
// The hub must allow the page's origin: PABAL_ALLOWED_ORIGINS.
//
// Attributes: hub (default: the origin of this file), token-url, lang (ko or en), theme (light or dark), popups="off".
// Events: pabal-toast (detail: the toast) and pabal-unread (detail: the number of unread toasts).

import { ToastInbox, ToastRequestError } from "./toasts/inbox.js";
import { STYLE } from "./toasts/style.js";
import { formatTimeAgo, languageOf, textsOf } from "./toasts/texts.js";

const MAX_POPUPS = 3;
const POPUP_MS = 8000;
const MAX_COUNT = 99; // shown as 99+
const SVG = "http://www.w3.org/2000/svg";
const BELL_PATH = "M12 3a6 6 0 0 0-6 6v3.6L4.3 16a.7.7 0 0 0 .6 1h14.2a.7.7 0 0 0 .6-1L18 12.6V9a6 6 0 0 0-6-6zM9.8 19a2.3 2.3 0 0 0 4.4 0z";

function element(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else node.setAttribute(key, value);
  }
  node.append(...children); // text stays text: nothing is parsed as markup
  return node;
}

function bellIcon() {
  const svg = document.createElementNS(SVG, "svg");
  const path = document.createElementNS(SVG, "path");
  svg.setAttribute("viewBox", "0 0 24 24");
  svg.setAttribute("aria-hidden", "true");
  path.setAttribute("d", BELL_PATH);
  svg.append(path);
  return svg;
}

export class PabalToasts extends HTMLElement {
  static observedAttributes = ["lang", "hub", "token-url"];

  #inbox = null;
  #isStarted = false; // attributes are announced before the element is connected
  #getToken = null;
  #problem = "";
  #shownUnread = 0;
  #parts;

  constructor() {
    super();
    const count = element("span", { class: "count", "aria-hidden": "true", hidden: "" });
    const bell = element(
      "button",
      { class: "bell", type: "button", "aria-expanded": "false", "aria-controls": "panel", onclick: () => this.toggle() },
      bellIcon(),
      count,
    );
    const title = element("h2", { id: "title" });
    const readAll = element("button", { type: "button", onclick: () => this.#markAllRead() });
    const note = element("p", { class: "note", role: "status" });
    const list = element("ul", { "aria-labelledby": "title" });
    const more = element("button", { class: "more", type: "button", onclick: () => this.#loadMore() });
    const panel = element(
      "section",
      { class: "panel", id: "panel", role: "dialog", "aria-labelledby": "title", tabindex: "-1", hidden: "" },
      element("header", {}, title, readAll),
      note,
      list,
      more,
    );
    const popups = element("div", { class: "popups" });
    const polite = element("div", { class: "hidden", role: "status" });
    const urgent = element("div", { class: "hidden", role: "alert" });
    const root = this.attachShadow({ mode: "open" });
    root.adoptedStyleSheets = [STYLE];
    root.append(bell, panel, popups, polite, urgent);
    root.addEventListener("keydown", (event) => this.#onKey(event));
    this.#parts = { bell, count, title, readAll, note, list, more, panel, popups, polite, urgent };
    if (Object.hasOwn(this, "getToken")) { // set before this module was loaded
      const getToken = this.getToken;
      delete this.getToken;
      this.#getToken = getToken;
    }
  }

  connectedCallback() {
    document.addEventListener("visibilitychange", this.#onVisibility);
    document.addEventListener("pointerdown", this.#onPointerDown);
    this.#isStarted = true;
    this.restart();
  }

  disconnectedCallback() {
    document.removeEventListener("visibilitychange", this.#onVisibility);
    document.removeEventListener("pointerdown", this.#onPointerDown);
    this.#isStarted = false;
    this.#inbox?.close();
    this.#inbox = null;
  }

  attributeChangedCallback(name, before, after) {
    if (!this.#isStarted || before === after) return;
    if (name === "lang") this.#render();
    else this.restart();
  }

  /** An async function that returns a token for the person, instead of `token-url`. */
  get getToken() {
    return this.#getToken;
  }

  set getToken(getToken) {
    this.#getToken = getToken;
    if (this.#isStarted) this.restart();
  }

  /** The number of unread toasts. */
  get unread() {
    return this.#inbox?.unread ?? 0;
  }

  /** Begin anew, for example after another person has signed in. */
  restart() {
    this.#inbox?.close();
    this.#inbox = null;
    this.#problem = "";
    this.#parts.popups.replaceChildren();
    if (this.#getToken || this.getAttribute("token-url")) this.#follow(new ToastInbox(this.#hub, () => this.#fetchToken()));
    this.#render();
  }

  /** Open or close the list. */
  toggle(open = this.#parts.panel.hidden) {
    const { bell, panel, popups } = this.#parts;
    const hadFocus = panel.contains(this.shadowRoot.activeElement);
    panel.hidden = !open;
    bell.setAttribute("aria-expanded", String(open));
    if (!open) {
      if (hadFocus) bell.focus();
      return;
    }
    const { left, right } = bell.getBoundingClientRect();
    panel.dataset.align = left + right > document.documentElement.clientWidth ? "end" : "start";
    popups.replaceChildren(); // the list has them all
    this.#render();
    panel.focus();
    this.#inbox?.toasts.forEach((toast) => this.#markSeen(toast));
  }

  get #hub() {
    return (this.getAttribute("hub") ?? new URL(import.meta.url).origin).replace(/\/+$/, "");
  }

  get #language() {
    return languageOf(this.lang || this.closest("[lang]")?.lang || document.documentElement.lang || navigator.language);
  }

  #follow(inbox) {
    this.#inbox = inbox;
    const listen = (name, react) => inbox.addEventListener(name, (event) => inbox === this.#inbox && react(event.detail));
    listen("change", () => this.#render());
    listen("toast", (toast) => this.#showToast(toast));
    listen("problem", (problem) => {
      this.#problem = problem;
      this.#render();
    });
    if (!document.hidden) inbox.open();
  }

  async #fetchToken() {
    if (this.#getToken) return this.#getToken();
    const response = await fetch(this.getAttribute("token-url"), { method: "POST", cache: "no-store" });
    if (!response.ok) throw new ToastRequestError(response);
    return (await response.json()).token;
  }

  // Browsers limit connections per host, so a hidden tab closes its stream and continues after its last change.
  #onVisibility = () => {
    if (document.hidden) this.#inbox?.close();
    else this.#inbox?.open();
  };

  #onPointerDown = (event) => {
    if (!this.#parts.panel.hidden && !event.composedPath().includes(this)) this.toggle(false);
  };

  #onKey(event) {
    if (event.key !== "Escape") return;
    const { panel, popups } = this.#parts;
    if (popups.contains(this.shadowRoot.activeElement)) popups.replaceChildren();
    else if (!panel.hidden) this.toggle(false);
    else return;
    event.stopPropagation();
  }

  // New toasts

  #showToast(toast) {
    const { panel, polite, urgent } = this.#parts;
    this.#emit("pabal-toast", toast);
    const region = toast.criticality === "emergency" ? urgent : polite;
    region.lang = toast.locale;
    region.textContent = [toast.title, toast.body].filter(Boolean).join(". ");
    if (!panel.hidden) this.#markSeen(toast);
    else if (this.getAttribute("popups") !== "off") this.#showPopup(toast);
  }

  #showPopup(toast) {
    const { popups } = this.#parts;
    const language = this.#language;
    const card = element("article", { class: "popup", "data-criticality": toast.criticality, lang: toast.locale });
    if (toast.title) card.append(element("h3", {}, toast.title));
    const close = { type: "button", "aria-label": textsOf(language).close, lang: language, onclick: () => card.remove() };
    card.append(element("p", {}, toast.body), element("button", close, "×"));
    popups.append(card);
    while (popups.children.length > MAX_POPUPS) popups.firstElementChild.remove();
    this.#markSeen(toast);
    if (toast.criticality !== "emergency") setTimeout(() => this.#expirePopup(card), POPUP_MS);
  }

  // A popup stays while a pointer or the focus is on it.
  #expirePopup(card) {
    const isUsed = card.matches(":hover") || card.contains(this.shadowRoot.activeElement);
    if (isUsed) setTimeout(() => this.#expirePopup(card), POPUP_MS);
    else card.remove();
  }

  // Marking

  #markSeen(toast) {
    if (toast.state === "unseen") this.#inbox.mark(toast, "seen").catch(() => undefined);
  }

  async #run(change, focus) {
    this.#problem = "";
    try {
      await change();
      focus();
    } catch {
      this.#problem = "failed";
      this.#render();
    }
  }

  #markAllRead() {
    const inbox = this.#inbox;
    return this.#run(() => inbox.markAllRead(), () => this.#parts.panel.focus());
  }

  async #loadMore() {
    const inbox = this.#inbox;
    const { length } = inbox.toasts;
    this.#parts.more.disabled = true;
    await this.#run(() => inbox.loadMore(), () => this.#focusItem(length));
    this.#parts.more.disabled = false;
    inbox.toasts.slice(length).forEach((toast) => this.#markSeen(toast));
  }

  // The focus goes to the item that took the place of the one that was marked.
  #focusItem(index) {
    const { list, panel } = this.#parts;
    const item = list.children[Math.min(index, list.children.length - 1)];
    (item?.querySelector("button") ?? panel).focus();
  }

  // Rendering

  #render() {
    const { bell, count, title, readAll, note, list, more, panel } = this.#parts;
    const language = this.#language;
    const texts = textsOf(language);
    const toasts = this.#inbox?.toasts ?? [];
    const focused = this.shadowRoot.activeElement?.dataset.key;
    panel.lang = language;
    title.textContent = texts.title;
    readAll.textContent = texts.readAll;
    readAll.hidden = this.unread === 0;
    more.textContent = texts.more;
    more.hidden = !this.#inbox?.hasMore;
    const isEmpty = this.#inbox?.isLoaded && !toasts.length && more.hidden;
    note.textContent = texts[this.#problem] ?? (isEmpty ? texts.empty : "");
    note.hidden = !note.textContent;
    list.replaceChildren(...toasts.map((toast, index) => this.#item(toast, index, language)));
    if (focused) list.querySelector(`[data-key="${focused}"]`)?.focus();
    count.hidden = this.unread === 0;
    count.textContent = this.unread > MAX_COUNT ? `${MAX_COUNT}+` : String(this.unread);
    bell.setAttribute("aria-label", texts.bell(this.unread));
    bell.lang = language;
    if (this.unread === this.#shownUnread) return;
    this.#shownUnread = this.unread;
    this.#emit("pabal-unread", this.unread);
  }

  #item(toast, index, language) {
    const texts = textsOf(language);
    const isUnread = toast.state !== "read";
    const button = (action) => {
      const onclick = () => this.#run(() => this.#inbox.mark(toast, action), () => this.#focusItem(index));
      return element("button", { type: "button", "data-key": `${action}-${toast.id}`, onclick }, texts[action]);
    };
    return element(
      "li",
      { "data-unread": String(isUnread) },
      ...(isUnread ? [element("span", { class: "hidden" }, `${texts.unread}. `)] : []),
      ...(toast.title ? [element("h3", { lang: toast.locale }, toast.title)] : []),
      element("p", { lang: toast.locale }, toast.body),
      element(
        "div",
        { class: "actions" },
        ...(isUnread ? [button("read")] : []),
        button("archive"),
        element("time", { datetime: toast.created_at }, formatTimeAgo(toast.created_at, language)),
      ),
    );
  }

  #emit(name, detail) {
    this.dispatchEvent(new CustomEvent(name, { detail, bubbles: true, composed: true }));
  }
}

customElements.define("pabal-toasts", PabalToasts);
