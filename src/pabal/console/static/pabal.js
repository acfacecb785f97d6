// The console's one script: parts of a page that say where they come from are fetched again while somebody looks.

const PACE = 2000;

async function refresh(part) {
  try {
    const answer = await fetch(part.dataset.live, { redirect: "manual", headers: { accept: "text/html" } });
    if (answer.type === "opaqueredirect") return location.reload();
    if (!answer.ok) throw new Error(String(answer.status));
    part.innerHTML = await answer.text();
  } catch {
    if (!part.querySelector(".complaint")) {
      const note = document.createElement("p");
      note.className = "complaint";
      note.textContent = part.dataset.away;
      part.prepend(note);
    }
  }
}

for (const part of document.querySelectorAll("[data-live]")) {
  setInterval(() => document.hidden || refresh(part), PACE);
}
