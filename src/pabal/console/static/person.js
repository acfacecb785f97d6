// The page of one person: shows new toasts as they arrive, and saves changes at once.

const POPUP_MS = 8000;
const REFRESH_DELAY_MS = 150;
const RECONNECT_MS = 3000;
const MAX_POPUPS = 3;

const root = document.documentElement;
const inbox = document.querySelector("#inbox");
const preferences = document.querySelector("#preferences");
const saved = document.querySelector("#saved");
const disconnected = document.querySelector("#disconnected");
const popups = document.querySelector("#popups");

let lastEventId = inbox.dataset.last;
let source, refreshTimer;

root.classList.add("live");

// Inbox

async function refresh() {
  const response = await fetch(`/me/inbox${location.search}`, { headers: { accept: "text/html" } });
  if (response.status === 401) return location.reload();
  if (!response.ok) return;
  const html = await response.text();
  const focused = inbox.contains(document.activeElement) ? document.activeElement : null;
  const index = focused ? [...inbox.querySelectorAll("article")].indexOf(focused.closest("article")) : -1;
  const ids = focused ? [focused.id, focused.closest("article")?.id] : [];
  inbox.innerHTML = html;
  showInboxState();
  if (focused) restoreFocus(ids, index);
}

// Focuses the same element again, or the toast that took its place.
function restoreFocus(ids, index) {
  const articles = inbox.querySelectorAll("article");
  const next = articles[Math.min(index, articles.length - 1)];
  const target = ids.map((id) => id && document.getElementById(id)).find(Boolean) ?? next ?? document.querySelector(".views a");
  target?.focus();
}

function refreshSoon() {
  clearTimeout(refreshTimer);
  refreshTimer = setTimeout(() => refresh().catch(() => undefined), REFRESH_DELAY_MS);
}

const seenObserver = new IntersectionObserver((entries) => {
  for (const { isIntersecting, target } of entries) {
    if (!isIntersecting || document.hidden) continue;
    seenObserver.unobserve(target);
    fetch(`/me/toasts/${target.id.slice("toast-".length)}/seen`, { method: "POST", redirect: "manual" }).catch(() => undefined);
  }
}, { threshold: 0.5 });

function showInboxState() {
  const unread = Number(inbox.querySelector(".inbox-summary").dataset.unread);
  document.title = (unread ? `(${unread}) ` : "") + inbox.dataset.title;
  seenObserver.disconnect();
  for (const toast of inbox.querySelectorAll("[data-state=unseen]")) seenObserver.observe(toast);
}

inbox.addEventListener("submit", async (event) => {
  event.preventDefault();
  try {
    const response = await fetch(event.target.action, { method: "POST", redirect: "manual" });
    if (response.type !== "opaqueredirect") throw new Error(String(response.status));
    await refresh();
  } catch {
    event.target.submit(); // a full page load shows the error
  }
});

// Stream of toasts

function showPopup(toast) {
  const card = document.createElement("article");
  const body = document.createElement("p");
  const close = document.createElement("button");
  card.lang = toast.locale;
  if (toast.title) {
    const title = document.createElement("h2");
    title.textContent = toast.title;
    card.append(title);
  }
  body.textContent = toast.body;
  close.type = "button";
  close.textContent = "×";
  close.setAttribute("aria-label", popups.dataset.close);
  close.addEventListener("click", () => card.remove());
  card.append(body, close);
  popups.append(card);
  while (popups.children.length > MAX_POPUPS) popups.firstElementChild.remove();
  if (toast.criticality !== "emergency") setTimeout(() => card.remove(), POPUP_MS);
}

document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") popups.replaceChildren();
});

function openStream() {
  source?.close();
  source = new EventSource(`/me/stream?after=${lastEventId}`);
  source.addEventListener("connected", () => {
    disconnected.hidden = true;
  });
  source.addEventListener("toast", (event) => {
    lastEventId = event.lastEventId;
    const { toast } = JSON.parse(event.data);
    if (toast.state === "unseen") showPopup(toast);
    if (toast.state !== "seen") refreshSoon();
  });
  source.addEventListener("error", () => {
    disconnected.hidden = false;
    if (source.readyState !== EventSource.CLOSED) return;
    setTimeout(() => { if (!document.hidden) openStream(); }, RECONNECT_MS);
    refreshSoon(); // reloads the page if the session has ended
  });
}

// Browsers limit connections per host, so a hidden tab closes its stream and resumes from its last event.
document.addEventListener("visibilitychange", () => {
  if (document.hidden) source?.close();
  else openStream();
});

// Preferences

preferences.addEventListener("change", async (event) => {
  const control = event.target;
  saved.textContent = "";
  saved.classList.remove("bad");
  try {
    const response = await fetch(preferences.action, { method: "POST", body: new URLSearchParams(new FormData(preferences)), redirect: "manual" });
    if (response.type !== "opaqueredirect") throw new Error(String(response.status));
    saved.textContent = saved.dataset.saved;
  } catch {
    if (control.type === "checkbox") control.checked = !control.checked;
    saved.textContent = saved.dataset.failed;
    saved.classList.add("bad");
  }
});

showInboxState();
if (!document.hidden) openStream();
