// The page of a server: its measurements, and a chat.
const element = (id) => document.getElementById(id);
const PERIOD_MS = 1000;

let model = "";
let before = null; // tokens and time of the last look
let abort = null; // of the answer that is written
const messages = [];

const headers = () => {
  const key = element("key").value;
  return key ? { authorization: `Bearer ${key}` } : {};
};

// Null: the default of the server.
const temperature = () => {
  const number = element("temperature").valueAsNumber;
  return Number.isNaN(number) ? null : number;
};

// {name: [[labels, value], …]} of Prometheus' text.
function parse(text) {
  const found = {};
  for (const line of text.split("\n")) {
    const match = /^([a-z_:]+)(?:\{(.*)\})? (\S+)$/i.exec(line);
    if (match) (found[match[1]] ??= []).push([match[2] ?? "", Number(match[3])]);
  }
  return found;
}

const bytes = (count) => `${(count / 2 ** 20).toFixed(1)} MiB`;

function showState(text, ok) {
  element("state").textContent = text;
  element("state").dataset.ok = ok;
}

function show(health, metrics) {
  model = health.model;
  element("model").textContent = [model, health.quant_kind].filter(Boolean).join(", ");
  showState(health.state, health.status === "ok");
  element("running").textContent = health.running;
  element("waiting").textContent = health.waiting;
  const tokens = metrics.worker_tokens_generated_total?.[0][1] ?? 0;
  const now = performance.now();
  if (before) {
    const rate = ((tokens - before.tokens) * 1000) / (now - before.now);
    element("rate").textContent = Math.max(0, rate).toFixed(1);
  }
  before = { tokens, now };
  const pages = Object.fromEntries(
    (metrics.worker_kv_pages ?? []).map(([label, count]) => [label.match(/"(.*)"/)[1], count]),
  );
  const all = (pages.free ?? 0) + (pages.cached ?? 0) + (pages.held ?? 0);
  element("pages").value = all ? pages.held / all : 0;
  element("pages-text").textContent = `${pages.held ?? 0} of ${all}, ${pages.cached ?? 0} cached`;
  const purposes = (metrics.worker_vram_purpose_bytes ?? []).filter(([, count]) => count > 0);
  const used = purposes.reduce((sum, [, count]) => sum + count, 0);
  const weights = purposes.find(([label]) => label.includes("weights"))?.[1] ?? 0;
  const total = health.vram_bytes_total;
  element("memory-label").textContent = total ? "Device memory, used of all" : "Device memory, weights of what is used";
  element("memory").value = total ? used / total : used ? weights / used : 0;
  const parts = purposes.map(([label, count]) => `${label.match(/"(.*)"/)[1]} ${bytes(count)}`);
  const size = total ? `${bytes(used)} of ${bytes(total)}` : bytes(used);
  element("memory-text").textContent = parts.length ? `${size}: ${parts.join(", ")}` : "unknown";
}

// The models that can be loaded, besides the first one.
const others = new Map();

function showModels(list) {
  for (const { id, state } of list.slice(1)) {
    if (!others.has(id)) others.set(id, addModel(id));
    const { label, button, progress } = others.get(id);
    label.textContent = `${id}: ${state} `;
    button.textContent = state === "ready" ? "Unload" : "Load";
    button.disabled = !["ready", "unloaded"].includes(state);
    progress.hidden = state !== "loading";
  }
}

function addModel(id) {
  const [item, label, button, progress] = ["li", "span", "button", "progress"].map((name) => document.createElement(name));
  item.append(label, button, " ", progress);
  element("models").append(item);
  button.addEventListener("click", async () => {
    const action = button.textContent.toLowerCase();
    progress.removeAttribute("value");
    try {
      const path = `v1/models/${encodeURIComponent(id)}/${action}`;
      const response = await fetch(path, { method: "POST", headers: headers() });
      if (!response.ok) throw new Error((await response.json()).error.message);
      if (action === "unload") return;
      for await (const data of events(response.body)) {
        const { error, done_bytes, total_bytes } = JSON.parse(data);
        if (error) throw new Error(error.message);
        if (total_bytes) progress.value = done_bytes / total_bytes;
      }
    } catch (error) {
      add("error", error.message);
    }
  });
  return { label, button, progress };
}

async function look() {
  try {
    const [health, metrics, models] = await Promise.all(
      ["health", "metrics", "v1/models"].map((path) => fetch(path, { headers: headers() })),
    );
    // Without a model in it, it is an error.
    const refused = [health, metrics].find((reply) => !reply.ok && reply.status !== 503);
    if (refused) showState((await refused.json()).error.message, false);
    else show(await health.json(), parse(await metrics.text()));
    if (models.ok) showModels((await models.json()).data);
  } catch {
    showState("no answer", false);
  }
  setTimeout(look, PERIOD_MS);
}

function add(kind, text) {
  const item = document.createElement("li");
  item.className = kind;
  item.textContent = text;
  element("messages").append(item);
  return item;
}

// The data of a stream's events.
async function* events(body) {
  let rest = "";
  for await (const part of body.pipeThrough(new TextDecoderStream())) {
    const lines = (rest + part).split("\n");
    rest = lines.pop();
    for (const line of lines) if (line.startsWith("data: ")) yield line.slice(6);
  }
}

// Shows an answer while it comes. `reply` gets its text without the reasoning, as the next request sends it.
async function answer(item, reply) {
  const response = await fetch("v1/chat/completions", {
    method: "POST",
    headers: { "content-type": "application/json", ...headers() },
    body: JSON.stringify({ model, messages, stream: true, temperature: temperature() }),
    signal: abort.signal,
  });
  if (!response.ok) throw new Error((await response.json()).error.message);
  for await (const data of events(response.body)) {
    if (data === "[DONE]") return;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new Error(chunk.error.message);
    const delta = chunk.choices[0]?.delta ?? {};
    reply.content += delta.content ?? "";
    item.textContent += (delta.reasoning_content ?? "") + (delta.content ?? "");
  }
}

element("chat").addEventListener("submit", async (event) => {
  event.preventDefault();
  const text = element("text").value;
  element("text").value = "";
  messages.push({ role: "user", content: text });
  add("user", text);
  const item = add("assistant", "");
  const reply = { role: "assistant", content: "" };
  abort = new AbortController();
  element("send").disabled = true;
  element("stop").disabled = false;
  try {
    await answer(item, reply);
  } catch (error) {
    if (error.name !== "AbortError") add("error", error.message);
  }
  if (reply.content) messages.push(reply);
  else {
    // Without an answer the question is not part of the conversation.
    messages.pop();
    element("text").value ||= text;
  }
  abort = null;
  element("send").disabled = false;
  element("stop").disabled = true;
});

element("stop").addEventListener("click", () => abort?.abort());
look();
