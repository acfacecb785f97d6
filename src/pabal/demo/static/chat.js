// The chat page. It shows only what the chat's event stream sends; messages are posted to the same URL.

const log = document.getElementById("log");
const state = document.getElementById("state");
const pair = document.getElementById("pair");
const quick = document.getElementById("quick");
const form = document.getElementById("write");
const text = document.getElementById("text");
const words = document.getElementById("words").dataset;
const language = document.documentElement.lang;
const me = sessionStorage.getItem("me") ?? crypto.randomUUID().replaceAll("-", "");
sessionStorage.setItem("me", me); // a tab stays the same user after a reload
const chat = `/chats/${me}`;
const waiting = new Map(); // open callbacks by number, with their bubbles

const make = (tag, name = "", inside = "") => {
  const element = document.createElement(tag);
  if (name) element.className = name;
  element.append(inside);
  return element;
};

async function sendMessage(content) {
  const body = JSON.stringify({ text: content, language });
  try {
    await fetch(chat, { method: "POST", headers: { "content-type": "application/json" }, body });
  } catch {
    showAway(true);
  }
}

function showAway(isAway) {
  state.textContent = isAway ? state.dataset.away : state.dataset.open;
  state.classList.toggle("away", isAway);
}

// The outputs of a skill response, in a plain form.

const lines = (part) => [part.title && make("h2", "", part.title), part.description && make("p", "", part.description)];

function picture(image) {
  const link = make("a", "", image.altText || words.picture);
  link.href = safeUrl(image.imageUrl) ?? "#";
  link.target = "_blank";
  link.rel = "noopener noreferrer";
  return make("p", "", link);
}

function safeUrl(text) {
  try {
    const { protocol, href } = new URL(text);
    return ["http:", "https:"].includes(protocol) ? href : null;
  } catch {
    return null;
  }
}

function button(spec) {
  const href = spec.action === "webLink" ? safeUrl(spec.webLinkUrl) : spec.action === "phone" ? `tel:${spec.phoneNumber}` : null;
  const element = make(href ? "a" : "button", "", spec.label ?? "");
  if (href) Object.assign(element, { href, target: "_blank", rel: "noopener noreferrer" });
  else element.type = "button";
  if (spec.action === "phone") element.prepend(words.call);
  if (!href) element.addEventListener("click", () => sendMessage(spec.messageText ?? spec.label));
  return element;
}

function card(content, ...more) {
  const element = make("article", "card");
  const images = [content.thumbnail, ...(content.thumbnails ?? [])].filter((image) => image?.imageUrl);
  element.append(...lines(content).filter(Boolean), ...images.map(picture), ...more);
  const doing = make("div", "doing");
  doing.append(...(content.buttons ?? []).map(button));
  if (doing.childElementCount) element.append(doing);
  return element;
}

function list(items) {
  const element = make("ul");
  element.append(...items.map((item) => make("li", "", [item.title, item.description].filter(Boolean).join(": "))));
  return element;
}

function facts(items) {
  const element = make("dl");
  for (const { title, description } of items) element.append(make("dt", "", title ?? ""), make("dd", "", description ?? ""));
  return element;
}

const KINDS = {
  simpleText: ({ text: content }) => make("p", "bubble", content ?? ""),
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

// The entries of a chat.

function turn(who, at, ...parts) {
  const element = make("div", `turn ${who}`);
  const column = make("div");
  column.append(...parts);
  element.append(column, make("time", "", new Date(at).toLocaleTimeString(language, { hour: "2-digit", minute: "2-digit" })));
  return element;
}

function typing(content) {
  const element = make("p", "bubble typing");
  const dots = make("span", "dots");
  dots.setAttribute("aria-hidden", "true");
  dots.append(make("i"), make("i"), make("i"));
  element.append(dots, make("span", "", content || words.waits));
  return element;
}

function settle(number) {
  waiting.get(number)?.remove();
  waiting.delete(number);
}

const ENTRIES = {
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
stream.addEventListener("open", () => showAway(false));
stream.addEventListener("error", () => showAway(true));
stream.addEventListener("entry", ({ data }) => {
  const entry = JSON.parse(data);
  if (entry.kind === "mine") quick.replaceChildren();
  log.append(ENTRIES[entry.kind](entry));
  log.scrollTop = log.scrollHeight;
});
stream.addEventListener("bot", ({ data }) => {
  const { code, paired } = JSON.parse(data);
  const codeButton = pair.querySelector(".code");
  if (codeButton) codeButton.textContent = `/pair ${code}`;
  pair.hidden = paired || (codeButton !== null && !code);
  log.scrollTop = log.scrollHeight;
});

pair.querySelector(".code")?.addEventListener("click", (event) => {
  sendMessage(event.target.textContent);
  text.focus();
});
quick.addEventListener("click", () => text.focus());
text.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return; // Enter while composing Hangul does not send
  event.preventDefault();
  form.requestSubmit();
});
form.addEventListener("submit", (event) => {
  event.preventDefault();
  if (text.value.trim()) sendMessage(text.value.trim());
  text.value = "";
  text.focus();
});
