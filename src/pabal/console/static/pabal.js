// The console's one script: a page's living parts are fetched again when the hub says so; keys lead through the house.

const living = () => document.querySelectorAll("[data-live][id]");

function localTimes(root) {
  for (const time of root.querySelectorAll("time[data-at]")) {
    const at = new Date(time.dateTime);
    const two = (number) => String(number).padStart(2, "0");
    const day = `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
    time.title = time.dateTime;
    time.textContent = `${day} ${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
  }
}

// What keeps the page from being fresh: the database is `away`, or the hub itself is `lost` to us. Nothing, and it is gone.
function complain(how) {
  const main = document.querySelector("#main");
  const said = main.querySelector(":scope > .complaint.away");
  if (!how) return said?.remove();
  if (said?.textContent === document.body.dataset[how]) return;
  const note = said ?? document.createElement("p");
  note.className = "complaint away";
  note.setAttribute("role", "alert");
  note.textContent = document.body.dataset[how];
  main.prepend(note);
}

// What somebody has ticked, opened or is writing in is left as it is until they are done.
const busy = (part) => part.querySelector("input:checked, details[open], textarea:focus, input:focus, select:focus");

function renew(part, fresh) {
  if (!fresh || part.innerHTML === fresh.innerHTML || busy(part)) return;
  const held = part.contains(document.activeElement) ? document.activeElement : null;
  const way = held?.id ? `#${CSS.escape(held.id)}` : held?.hasAttribute("href") ? `[href="${CSS.escape(held.getAttribute("href"))}"]` : "";
  part.replaceChildren(...fresh.childNodes);
  if (way) part.querySelector(way)?.focus({ preventScroll: true });
}

let fetching = false;

async function look() {
  if (fetching || !living().length) return;
  fetching = true;
  try {
    const answer = await fetch(location.href, { redirect: "manual", headers: { accept: "text/html", "x-look": "again" } });
    if (answer.type === "opaqueredirect" || answer.status === 401) return location.reload();
    if (!answer.ok) throw new Error(String(answer.status));
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    localTimes(page);
    for (const part of living()) {
      const fresh = page.getElementById(part.id);
      if (!fresh && part.dataset.live === "whole") return location.reload(); // the page has become another
      renew(part, fresh);
    }
    complain();
  } catch (error) {
    complain(error.message === "503" ? "away" : "lost");
  } finally {
    fetching = false;
  }
}

let stream = null;

function follow() {
  if (document.hidden || !living().length) {
    stream?.close();
    stream = null;
  } else if (!stream) {
    stream = new EventSource(document.body.dataset.stream ?? "/console/live");
    stream.addEventListener("look", look);
    stream.addEventListener("error", () => {
      look();
      if (stream?.readyState === EventSource.CLOSED) {
        stream = null;
        setTimeout(follow, 2000);
      }
    });
  }
}

// Keys: / to the search, g and a letter to a room, j and k through the rows of a list.
const writing = (target) => target.closest("input, textarea, select, [contenteditable]");
let going = 0;

function key(press) {
  if (press.ctrlKey || press.metaKey || press.altKey || writing(press.target)) return;
  if (Date.now() - going < 1500) {
    going = 0;
    return document.querySelector(`.rooms [data-key="${CSS.escape(press.key)}"]`)?.click();
  }
  if (press.key === "g") going = Date.now();
  else if (press.key === "/") {
    press.preventDefault();
    document.querySelector("#find")?.focus();
  } else if (press.key === "j" || press.key === "k") {
    const rows = [...document.querySelectorAll("[data-row]")];
    const here = rows.findIndex((row) => row === document.activeElement);
    rows[Math.min(rows.length - 1, Math.max(0, here + (press.key === "j" ? 1 : -1)))]?.focus();
  }
}

// What ends soon counts down: `data-left` says how many seconds it has.
function countDown() {
  for (const span of document.querySelectorAll("[data-left]")) {
    const left = Math.max(0, Number(span.dataset.left) - 1);
    span.dataset.left = left;
    span.textContent = `${Math.floor(left / 60)}:${String(left % 60).padStart(2, "0")}`;
  }
}

// One box that ticks all the others of its form.
function tick(change) {
  if (!change.target.matches("[data-ticks]")) return;
  for (const box of change.target.form.querySelectorAll(`input[name="${CSS.escape(change.target.dataset.ticks)}"]`)) box.checked = change.target.checked;
}

// Where rooms and tabs are one line, the one we are in is in sight.
function showRoom() {
  for (const here of document.querySelectorAll(".rooms [aria-current], .tabs [aria-current]")) {
    const line = here.parentElement;
    line.scrollLeft += here.getBoundingClientRect().left - line.getBoundingClientRect().left - (line.clientWidth - here.offsetWidth) / 2;
  }
}

if (document.body.classList.contains("console")) {
  localTimes(document);
  showRoom();
  document.addEventListener("visibilitychange", follow);
  document.addEventListener("keydown", key);
  document.addEventListener("change", tick);
  setInterval(countDown, 1000);
  follow();
}
