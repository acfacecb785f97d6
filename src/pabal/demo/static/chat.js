// The chat page's one script. Everything shown comes from the chat's own stream; what is written only goes there.

const log = document.getElementById("log");
const state = document.getElementById("state");
const pair = document.getElementById("pair");
const quick = document.getElementById("quick");
const form = document.getElementById("write");
const text = document.getElementById("text");
const words = document.getElementById("words").dataset;
const language = document.documentElement.lang;
const me = sessionStorage.getItem("me") ?? crypto.randomUUID().replaceAll("-", "");
sessionStorage.setItem("me", me); // a tab is a person, also after a reload
const chat = `/chats/${me}`;
const waiting = new Map(); // callbacks that owe an answer, and the bubbles that say so

const make = (tag, name = "", inside = "") => {
  const made = document.createElement(tag);
  if (name) made.className = name;
  made.append(inside);
  return made;
};

async function say(what) {
  const body = JSON.stringify({ text: what, language });
  try {
    await fetch(chat, { method: "POST", headers: { "content-type": "application/json" }, body });
  } catch {
    away(true);
  }
}

function away(is) {
  state.textContent = is ? state.dataset.away : state.dataset.open;
  state.classList.toggle("away", is);
}

// What a skill response may hold, in a plain form.

const lines = (part) => [part.title && make("h2", "", part.title), part.description && make("p", "", part.description)];

function picture(image) {
  const link = make("a", "", image.altText || words.picture);
  link.href = address(image.imageUrl) ?? "#";
  link.target = "_blank";
  link.rel = "noopener noreferrer";
  return make("p", "", link);
}

function address(said) {
  try {
    const { protocol, href } = new URL(said);
    return ["http:", "https:"].includes(protocol) ? href : null;
  } catch {
    return null;
  }
}

function button(what) {
  const href = what.action === "webLink" ? address(what.webLinkUrl) : what.action === "phone" ? `tel:${what.phoneNumber}` : null;
  const made = make(href ? "a" : "button", "", what.label ?? "");
  if (href) Object.assign(made, { href, target: "_blank", rel: "noopener noreferrer" });
  else made.type = "button";
  if (what.action === "phone") made.prepend(words.call);
  if (!href) made.addEventListener("click", () => say(what.messageText ?? what.label));
  return made;
}

function card(content, ...more) {
  const made = make("article", "card");
  const images = [content.thumbnail, ...(content.thumbnails ?? [])].filter((image) => image?.imageUrl);
  made.append(...lines(content).filter(Boolean), ...images.map(picture), ...more);
  const doing = make("div", "doing");
  doing.append(...(content.buttons ?? []).map(button));
  if (doing.childElementCount) made.append(doing);
  return made;
}

function list(items) {
  const made = make("ul");
  made.append(...items.map((item) => make("li", "", [item.title, item.description].filter(Boolean).join(": "))));
  return made;
}

function facts(items) {
  const made = make("dl");
  for (const { title, description } of items) made.append(make("dt", "", title ?? ""), make("dd", "", description ?? ""));
  return made;
}

const KINDS = {
  simpleText: ({ text: said }) => make("p", "bubble", said ?? ""),
  simpleImage: (image) => card({ thumbnail: image }),
  textCard: card,
  basicCard: card,
  commerceCard: (content) => card({ title: content.description, ...content, description: price(content) }),
  listCard: (content) => card({ ...content, title: content.header?.title }, list(content.items ?? [])),
  itemCard: (content) => card(content, facts(content.itemList ?? [])),
  carousel: (content) => {
    const row = make("div", "row");
    row.append(...(content.items ?? []).map((item) => output({ [content.type]: item })));
    return row;
  },
};

const price = ({ price: amount, currency }) => (amount === undefined ? "" : `${Number(amount).toLocaleString()} ${currency ?? ""}`);

function output(part) {
  const kind = Object.keys(part).find((name) => name in KINDS);
  return kind ? KINDS[kind](part[kind]) : make("p", "bubble", JSON.stringify(part));
}

// What may happen in a chat.

function turn(who, at, ...parts) {
  const made = make("div", `turn ${who}`);
  const column = make("div");
  column.append(...parts);
  made.append(column, make("time", "", new Date(at).toLocaleTimeString(language, { hour: "2-digit", minute: "2-digit" })));
  return made;
}

function typing(said) {
  const made = make("p", "bubble typing");
  const dots = make("span", "dots");
  dots.setAttribute("aria-hidden", "true");
  dots.append(make("i"), make("i"), make("i"));
  made.append(dots, make("span", "", said || words.waits));
  return made;
}

function settle(number) {
  waiting.get(number)?.remove();
  waiting.delete(number);
}

const HAPPENS = {
  mine: (entry) => turn("mine", entry.at, make("p", "bubble", entry.text)),
  awaited: (entry) => {
    const bubble = turn("theirs", entry.at, typing(entry.text));
    waiting.set(entry.answers, bubble);
    return bubble;
  },
  said: (entry) => {
    settle(entry.answers);
    quick.replaceChildren(...entry.quickReplies.map(button));
    return turn("theirs", entry.at, ...entry.outputs.map(output));
  },
  lapsed: (entry) => {
    settle(entry.answers);
    return make("p", "note", words.lapsed);
  },
  failed: (entry) => make("p", "note bad", entry.why === "silent" ? words.silent : words.refused + entry.status),
};

const stream = new EventSource(chat);
stream.addEventListener("open", () => away(false));
stream.addEventListener("error", () => away(true));
stream.addEventListener("entry", ({ data }) => {
  const entry = JSON.parse(data);
  if (entry.kind === "mine") quick.replaceChildren();
  log.append(HAPPENS[entry.kind](entry));
  log.scrollTop = log.scrollHeight;
});
stream.addEventListener("bot", ({ data }) => {
  const { code, paired } = JSON.parse(data);
  const shown = pair.querySelector(".code");
  if (shown) shown.textContent = `/pair ${code}`;
  pair.hidden = paired || (shown !== null && !code);
  log.scrollTop = log.scrollHeight;
});

pair.querySelector(".code")?.addEventListener("click", (event) => {
  say(event.target.textContent);
  text.focus();
});
quick.addEventListener("click", () => text.focus());
text.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return; // Hangul is put together before it is sent
  event.preventDefault();
  form.requestSubmit();
});
form.addEventListener("submit", (event) => {
  event.preventDefault();
  if (text.value.trim()) say(text.value.trim());
  text.value = "";
  text.focus();
});
