// The console's one script: parts of a page that say where they come from are fetched again while somebody looks.

const PACE = 2000;

async function refresh(part) {
  try {
    const answer = await fetch(part.dataset.live, { redirect: "manual", headers: { accept: "text/html" } });
    if (answer.type === "opaqueredirect") return location.reload();
    if (!answer.ok) throw new Error(String(answer.status));
    const html = await answer.text();
    if (part.dataset.seen !== html) part.innerHTML = part.dataset.seen = html;
  } catch {
    if (part.querySelector(":scope > .complaint")) return;
    const note = document.createElement("p");
    note.className = "complaint";
    note.setAttribute("role", "alert");
    note.textContent = part.dataset.away;
    part.prepend(note);
    delete part.dataset.seen;
  }
}

async function follow(part) {
  if (!document.hidden) await refresh(part);
  setTimeout(follow, PACE, part);
}

for (const part of document.querySelectorAll("[data-live]")) setTimeout(follow, PACE, part);
