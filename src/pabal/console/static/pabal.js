// Refreshes the live parts of a page when the hub says so, and handles keyboard shortcuts.

const liveParts = () => document.querySelectorAll("[data-live][id]");

function showLocalTimes(root) {
  for (const time of root.querySelectorAll("time[data-local-time]")) {
    const at = new Date(time.dateTime);
    const pad = (number) => String(number).padStart(2, "0");
    const day = `${at.getFullYear()}-${pad(at.getMonth() + 1)}-${pad(at.getDate())}`;
    time.title = time.dateTime;
    time.textContent = `${day} ${pad(at.getHours())}:${pad(at.getMinutes())}:${pad(at.getSeconds())}`;
  }
}

// Shows that the database is `unavailable` or the hub `unreachable`. Without a reason the message is removed.
function showOutage(reason) {
  const main = document.querySelector("#main");
  const shown = main.querySelector(":scope > .error.offline");
  if (!reason) return shown?.remove();
  if (shown?.textContent === document.body.dataset[reason]) return;
  const message = shown ?? document.createElement("p");
  message.className = "error offline";
  message.setAttribute("role", "alert");
  message.textContent = document.body.dataset[reason];
  main.prepend(message);
}

// A part in which the user selects, reads details or types is not replaced.
const isInUse = (part) => part.querySelector("input:checked, details[open], textarea:focus, input:focus, select:focus");

function replacePart(part, newPart) {
  if (!newPart || part.innerHTML === newPart.innerHTML || isInUse(part)) return;
  const focused = part.contains(document.activeElement) ? document.activeElement : null;
  const selector = focused?.id ? `#${CSS.escape(focused.id)}` : focused?.hasAttribute("href") ? `[href="${CSS.escape(focused.getAttribute("href"))}"]` : "";
  part.replaceChildren(...newPart.childNodes);
  if (selector) part.querySelector(selector)?.focus({ preventScroll: true });
}

let isFetching = false;

async function refresh() {
  if (isFetching || !liveParts().length) return;
  isFetching = true;
  try {
    const response = await fetch(location.href, { redirect: "manual", headers: { accept: "text/html", "x-refresh": "1" } });
    if (response.type === "opaqueredirect" || response.status === 401) return location.reload();
    if (!response.ok) throw new Error(String(response.status));
    const page = new DOMParser().parseFromString(await response.text(), "text/html");
    showLocalTimes(page);
    for (const part of liveParts()) {
      const newPart = page.getElementById(part.id);
      if (!newPart && part.dataset.live === "page") return location.reload(); // a different page is served now
      replacePart(part, newPart);
    }
    showOutage();
  } catch (error) {
    showOutage(error.message === "503" ? "unavailable" : "unreachable");
  } finally {
    isFetching = false;
  }
}

let stream = null;

function followStream() {
  if (document.hidden || !liveParts().length) {
    stream?.close();
    stream = null;
  } else if (!stream) {
    stream = new EventSource(document.body.dataset.stream ?? "/console/live");
    stream.addEventListener("refresh", refresh);
    stream.addEventListener("error", () => {
      refresh();
      if (stream?.readyState === EventSource.CLOSED) {
        stream = null;
        setTimeout(followStream, 2000);
      }
    });
  }
}

// Shortcuts: / focuses the search, g and a letter opens a page, j and k move through the rows of a list.
const isTyping = (target) => target.closest("input, textarea, select, [contenteditable]");
let prefixPressedAt = 0;

function handleKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || isTyping(event.target)) return;
  if (Date.now() - prefixPressedAt < 1500) {
    prefixPressedAt = 0;
    return document.querySelector(`.sidebar [data-shortcut="${CSS.escape(event.key)}"]`)?.click();
  }
  if (event.key === "g") prefixPressedAt = Date.now();
  else if (event.key === "/") {
    event.preventDefault();
    document.querySelector("#trace-search")?.focus();
  } else if (event.key === "j" || event.key === "k") {
    const rows = [...document.querySelectorAll("[data-row]")];
    const current = rows.findIndex((row) => row === document.activeElement);
    rows[Math.min(rows.length - 1, Math.max(0, current + (event.key === "j" ? 1 : -1)))]?.focus();
  }
}

function countDown() {
  for (const span of document.querySelectorAll("[data-seconds-left]")) {
    const seconds = Math.max(0, Number(span.dataset.secondsLeft) - 1);
    span.dataset.secondsLeft = seconds;
    span.textContent = `${Math.floor(seconds / 60)}:${String(seconds % 60).padStart(2, "0")}`;
  }
}

// A checkbox with data-select-all sets all checkboxes of that name in its form.
function selectAll(event) {
  if (!event.target.matches("[data-select-all]")) return;
  for (const checkbox of event.target.form.querySelectorAll(`input[name="${CSS.escape(event.target.dataset.selectAll)}"]`)) checkbox.checked = event.target.checked;
}

// Where the menu or the tabs scroll sideways, the current entry is scrolled into view.
function showCurrentEntry() {
  for (const entry of document.querySelectorAll(".sidebar [aria-current], .tabs [aria-current]")) {
    const bar = entry.parentElement;
    bar.scrollLeft += entry.getBoundingClientRect().left - bar.getBoundingClientRect().left - (bar.clientWidth - entry.offsetWidth) / 2;
  }
}

if (document.body.classList.contains("console")) {
  showLocalTimes(document);
  showCurrentEntry();
  document.addEventListener("visibilitychange", followStream);
  document.addEventListener("keydown", handleKey);
  document.addEventListener("change", selectAll);
  setInterval(countDown, 1000);
  followStream();
}
