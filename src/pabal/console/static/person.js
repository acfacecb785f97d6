// One person's page: what changes anywhere is shown here, and what is done here is done at once.

const SHOWN = 8000;
const PAUSE = 150;
const AGAIN = 3000;
const MOST_POPS = 3;

const root = document.documentElement;
const inbox = document.querySelector("#inbox");
const wishes = document.querySelector("#wishes");
const saved = document.querySelector("#saved");
const away = document.querySelector("#away");
const pop = document.querySelector("#pop");

let last = inbox.dataset.last;
let source, waiting;

root.classList.add("live");

// The inbox, as the server writes it

async function refresh() {
  const answer = await fetch(`/me/inbox${location.search}`, { headers: { accept: "text/html" } });
  if (answer.status === 401) return location.reload();
  if (!answer.ok) return;
  const html = await answer.text();
  const at = document.activeElement;
  const mine = inbox.contains(at) ? at : null;
  const place = mine ? [...inbox.querySelectorAll("article")].indexOf(mine.closest("article")) : -1;
  const ids = mine ? [mine.id, mine.closest("article")?.id] : [];
  inbox.innerHTML = html;
  shown();
  if (mine) keepPlace(ids, place);
}

// Whoever works with the keyboard goes on where they were, or at what is there now.
function keepPlace(ids, place) {
  const articles = inbox.querySelectorAll("article");
  const next = articles[Math.min(place, articles.length - 1)];
  const found = ids.map((id) => id && document.getElementById(id)).find(Boolean) ?? next ?? document.querySelector(".views a");
  found?.focus();
}

function soon() {
  clearTimeout(waiting);
  waiting = setTimeout(() => refresh().catch(() => undefined), PAUSE);
}

const watch = new IntersectionObserver((entries) => {
  for (const { isIntersecting, target } of entries) {
    if (!isIntersecting || document.hidden) continue;
    watch.unobserve(target);
    fetch(`/v1/toasts/${target.id.slice("toast-".length)}/seen`, { method: "POST" }).catch(() => undefined);
  }
}, { threshold: 0.5 });

function shown() {
  const unread = Number(inbox.querySelector(".tally").dataset.unread);
  document.title = (unread ? `(${unread}) ` : "") + inbox.dataset.title;
  watch.disconnect();
  for (const toast of inbox.querySelectorAll("[data-state=unseen]")) watch.observe(toast);
}

inbox.addEventListener("submit", async (event) => {
  event.preventDefault();
  try {
    const answer = await fetch(event.target.action, { method: "POST", redirect: "manual" });
    if (answer.type !== "opaqueredirect") throw new Error(String(answer.status));
    await refresh();
  } catch {
    event.target.submit(); // the browser says what is wrong
  }
});

// What comes

function show(toast) {
  const card = document.createElement("article");
  const words = document.createElement("p");
  const close = document.createElement("button");
  card.lang = toast.locale;
  if (toast.title) {
    const title = document.createElement("h2");
    title.textContent = toast.title;
    card.append(title);
  }
  words.textContent = toast.body;
  close.type = "button";
  close.textContent = "×";
  close.setAttribute("aria-label", pop.dataset.close);
  close.addEventListener("click", () => card.remove());
  card.append(words, close);
  pop.append(card);
  while (pop.children.length > MOST_POPS) pop.firstElementChild.remove();
  if (toast.criticality !== "emergency") setTimeout(() => card.remove(), SHOWN);
}

document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") pop.replaceChildren();
});

function open() {
  source?.close();
  source = new EventSource(`/v1/toasts/stream?after=${last}`);
  source.addEventListener("connected", () => {
    away.hidden = true;
  });
  source.addEventListener("toast", (event) => {
    last = event.lastEventId;
    const { toast } = JSON.parse(event.data);
    if (toast.state === "unseen") show(toast);
    if (toast.state !== "seen") soon();
  });
  source.addEventListener("error", () => {
    away.hidden = false;
    if (source.readyState !== EventSource.CLOSED) return;
    setTimeout(() => { if (!document.hidden) open(); }, AGAIN);
    soon(); // whoever is no longer let in is told by the page
  });
}

// A browser keeps few connections to one place: a tab nobody looks at needs none, and goes on from its number.
document.addEventListener("visibilitychange", () => {
  if (document.hidden) source?.close();
  else open();
});

// Wishes

wishes.addEventListener("change", async (event) => {
  const control = event.target;
  saved.textContent = "";
  saved.classList.remove("bad");
  try {
    const answer = await fetch(wishes.action, { method: "POST", body: new URLSearchParams(new FormData(wishes)), redirect: "manual" });
    if (answer.type !== "opaqueredirect") throw new Error(String(answer.status));
    saved.textContent = saved.dataset.saved;
  } catch {
    if (control.type === "checkbox") control.checked = !control.checked;
    saved.textContent = saved.dataset.failed;
    saved.classList.add("bad");
  }
});

shown();
if (!document.hidden) open();
