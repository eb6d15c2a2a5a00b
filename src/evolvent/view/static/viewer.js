// The script of the viewer. Pages are whole without it: it keeps lists of any length quick, pages live, and hands on keys.
// Everything that it shows is HTML that the server has escaped; it makes none from data.
"use strict";

const body = document.body;
const byId = (id) => document.getElementById(id);
document.documentElement.classList.add("scripted");

// ---------------------------------------------------------------- lists of any length

class List {
  constructor(port) {
    this.port = port;
    this.rows = byId("rows");
    this.form = byId("filters");
    this.search = byId("search");
    this.total = Number(port.dataset.found);
    this.first = Number(port.dataset.first);
    this.count = this.rows.children.length;
    this.whole = port.dataset.whole === "yes";
    this.cursor = -1;
    this.wanted = false;
    this.asked = 0;
    this.kept = new URL(port.dataset.rowsFrom, location.href);
    this.high = this.rows.querySelector("tr")?.getBoundingClientRect().height || 36;
    this.top = this.gap();
    this.bottom = this.gap();
    this.port.addEventListener("scroll", () => this.look(), { passive: true });
    addEventListener("resize", () => { this.measure(); this.place(); this.look(); });
    this.form.addEventListener("submit", (event) => { event.preventDefault(); this.again(); });
    this.form.addEventListener("change", (event) => { if (event.target !== this.search) this.again(); });
    let wait = 0;
    this.search.addEventListener("input", () => { clearTimeout(wait); wait = setTimeout(() => this.again(), 40); });
    addEventListener("pageshow", (event) => { if (event.persisted) this.look(true); });
    this.measure();
    this.place();
    const kept = Number(sessionStorage.getItem(`at ${location.pathname}${location.search}`));
    if (kept) this.port.scrollTop = kept;
    else if (this.first) this.port.scrollTop = this.first * this.high;
    if (!this.whole) this.readOn();
    requestAnimationFrame(() => requestAnimationFrame(() => performance.mark("rows painted")));
  }

  gap() {
    const row = document.createElement("tr");
    row.className = "gap";
    row.setAttribute("aria-hidden", "true");
    const cell = document.createElement("td");
    row.append(cell);
    return row;
  }

  measure() { // asked only here: while rows are exchanged a layout would lose the place that is scrolled to
    this.columns = [...this.port.querySelectorAll("thead th")].filter((one) => one.offsetParent !== null).length;
  }

  place() { // rows stand between two gaps as high as what is not there
    for (const [gap, rows] of [[this.top, this.first], [this.bottom, this.total - this.first - this.count]]) {
      gap.firstChild.colSpan = this.columns; // a wider one would make columns that nobody sees
      gap.firstChild.style.height = `${Math.max(0, rows) * this.high}px`;
      gap.hidden = rows <= 0;
    }
    this.rows.prepend(this.top);
    this.rows.append(this.bottom);
  }

  look(force = false) {
    try { sessionStorage.setItem(`at ${location.pathname}${location.search}`, String(this.port.scrollTop)); } catch { /* full */ }
    const shown = Math.ceil(this.port.clientHeight / this.high);
    const begin = Math.floor(this.port.scrollTop / this.high);
    const enough = begin >= this.first && Math.min(begin + shown, this.total) <= this.first + this.count;
    if (enough && !force) return;
    this.fetch(Math.max(0, begin - 50), shown + 100);
  }

  address(first, count) {
    const address = new URL(this.kept);
    for (const [name, value] of new FormData(this.form)) if (value) address.searchParams.set(name, value);
    address.searchParams.set("first", first);
    address.searchParams.set("count", count);
    return address;
  }

  async fetch(first, count) {
    const number = ++this.asked;
    const answer = await got(this.address(first, count));
    if (!answer || number !== this.asked) return false; // another question came meanwhile
    this.show(await answer.json());
    return true;
  }

  show(page) {
    const held = this.rows.contains(document.activeElement) ? document.activeElement.closest("tr")?.dataset.place : null;
    const made = document.createElement("tbody");
    made.innerHTML = page.html;
    this.total = page.found;
    this.first = page.first;
    this.count = made.children.length;
    this.whole = page.whole;
    this.rows.replaceChildren(...made.children);
    this.place();
    byId("found").textContent = page.told;
    this.rows.closest("table").setAttribute("aria-rowcount", page.found + 1);
    byId("none")?.remove();
    if (!page.found) {
      const none = document.createElement("p");
      none.id = "none";
      none.className = "empty";
      none.textContent = page.none;
      this.port.append(none);
    }
    if (held) this.rowAt(Number(held))?.querySelector("a")?.focus({ preventScroll: true });
    this.settle();
    if (!page.whole) this.readOn();
  }

  async again() { // another question: from the beginning
    performance.mark("search asked");
    this.port.scrollTop = 0;
    this.cursor = -1;
    const address = new URL(this.form.action);
    for (const [name, value] of new FormData(this.form)) if (value && !(name === "sort" && value === "seq")) address.searchParams.set(name, value);
    history.replaceState(null, "", address);
    if (await this.fetch(0, Math.ceil(this.port.clientHeight / this.high) + 50)) {
      requestAnimationFrame(() => requestAnimationFrame(() => performance.measure("search painted", "search asked")));
    }
  }

  async readOn() { // the server reads a large store a stretch at a time
    if (this.reading) return;
    this.reading = true;
    while (!this.whole) {
      await pause(60);
      if (!(await this.fetch(this.first, Math.max(this.count, 100)))) await pause(400);
    }
    this.reading = false;
  }

  rowAt(place) { return this.rows.querySelector(`tr[data-place="${place}"]`); }

  settle() { // the row under the cursor is marked, and focused if it was waited for
    for (const row of this.rows.querySelectorAll("tr.at")) row.classList.remove("at");
    const row = this.rowAt(this.cursor);
    row?.classList.add("at");
    if (row && this.wanted) {
      this.wanted = false;
      row.querySelector("a")?.focus({ preventScroll: true });
    }
  }

  async go(place) {
    this.cursor = Math.max(0, Math.min(this.total - 1, place));
    const head = this.port.querySelector("thead").offsetHeight;
    const at = this.cursor * this.high;
    if (at < this.port.scrollTop) this.port.scrollTop = at;
    if (at + this.high + head > this.port.scrollTop + this.port.clientHeight) this.port.scrollTop = at + this.high + head - this.port.clientHeight;
    this.wanted = true;
    if (this.rowAt(this.cursor)) this.settle();
    else await this.fetch(Math.max(0, this.cursor - 50), 150);
  }

  move(by) { return this.go(this.cursor < 0 && by > 0 ? Math.floor(this.port.scrollTop / this.high) : this.cursor + by); }
}

const pause = (time) => new Promise((done) => setTimeout(done, time));

async function got(address) {
  try {
    const answer = await fetch(address, { cache: "no-store" });
    standing(answer.ok);
    return answer.ok ? answer : null;
  } catch {
    standing(false);
    return null;
  }
}

function standing(well) {
  const live = byId("live");
  live.classList.toggle("lost", !well);
  if (!well) live.replaceChildren(document.createElement("i"), "the viewer does not answer");
  else if (live.dataset.lost) location.reload();
  if (!well) live.dataset.lost = "yes";
}

// ---------------------------------------------------------------- rows of whole pages, and turns

class Rows {
  constructor(holder) { this.holder = holder; this.at = -1; }
  all() {
    const every = this.holder.dataset.rows === "tree" ? [...this.holder.querySelectorAll("summary, p:not(.tree-head)")] : [...this.holder.querySelectorAll("[data-row]")];
    return every.filter((one) => one.offsetParent !== null);
  }
  go(place) {
    const every = this.all();
    if (!every.length) return;
    this.at = Math.max(0, Math.min(every.length - 1, place));
    for (const one of this.holder.querySelectorAll(".at")) one.classList.remove("at");
    const row = every[this.at];
    row.classList.add("at");
    const target = row.matches("summary") ? row : row.querySelector("a");
    if (target) target.focus({ preventScroll: true });
    row.scrollIntoView({ block: "nearest" });
  }
  move(by) {
    const every = this.all();
    const held = every.findIndex((one) => one === document.activeElement || one.contains(document.activeElement));
    this.go((held >= 0 ? held : this.at) + by);
  }
  get total() { return this.all().length; }
  current() { return this.all()[this.at]; }
}

const port = byId("viewport");
const top_ = document.querySelector(".top");
const fit = () => document.documentElement.style.setProperty("--top", `${top_.offsetHeight}px`);
fit();
addEventListener("resize", fit);
const holder = document.querySelector("[data-rows]");
const rows = port ? new List(port) : holder ? new Rows(holder) : null;

// ---------------------------------------------------------------- live pages

async function follow() {
  let stamp = body.dataset.stamp;
  while (true) {
    await pause(document.hidden ? 8000 : 2000);
    const answer = await got(body.dataset.pulse);
    if (!answer) { await pause(3000); continue; }
    const now = await answer.json();
    const live = byId("live");
    if (!live.dataset.lost) live.replaceChildren(...(now.live ? [document.createElement("i"), "live"] : []));
    if (now.stamp === stamp) continue;
    stamp = now.stamp;
    if (port) rows.look(true);
    else await renew();
  }
}

async function renew() { // what changed is put in place of what was; what is folded, marked or focused stays so
  const parts = [...document.querySelectorAll("[data-part]")];
  const answer = parts.length && (await got(location.href));
  if (!answer) return;
  const made = new DOMParser().parseFromString(await answer.text(), "text/html");
  for (const part of parts) {
    const fresh = made.querySelector(`[data-part="${part.dataset.part}"]`);
    if (!fresh || part.contains(document.activeElement) || fresh.innerHTML === part.innerHTML) continue;
    const open = [...part.querySelectorAll("details")].map((one) => one.open);
    const marked = new Set([...part.querySelectorAll("input:checked")].map((one) => one.value));
    part.replaceChildren(...fresh.childNodes);
    part.querySelectorAll("details").forEach((one, place) => { if (place < open.length) one.open = open[place]; });
    for (const one of part.querySelectorAll("input[type=checkbox]")) one.checked = marked.has(one.value);
  }
}

if (body.dataset.pulse) follow();

// ---------------------------------------------------------------- keys

const help = byId("help");
const keys = byId("keys");
keys.hidden = false;
keys.addEventListener("click", () => help.showModal());

function up() {
  const here = new URL(location.href);
  const list = sessionStorage.getItem("list");
  const run = here.pathname.match(/^\/run\/[0-9a-f]+/)?.[0];
  if (run && here.pathname.endsWith("/trajectory")) location.href = list?.startsWith(`${run}/trajectories`) ? list : `${run}/trajectories`;
  else if (run && here.search && here.pathname.match(/\/(trees|beliefs)$/)) location.href = here.pathname;
  else if (run && here.pathname !== run) location.href = run;
  else if (here.pathname !== "/") location.href = "/";
}
if (port) addEventListener("pagehide", () => sessionStorage.setItem("list", location.pathname + location.search));

const press = (id) => byId(id)?.click();
const acts = {
  j: () => rows?.move(1), k: () => rows?.move(-1), g: () => rows?.go(0), G: () => rows?.go(rows.total - 1),
  n: () => press("after"), p: () => press("before"), t: () => press("theme"), u: up,
  "/": () => { byId("search")?.focus(); byId("search")?.select(); },
  "?": () => help.showModal(),
  x: () => { const box = rows?.current?.()?.querySelector("input[type=checkbox]"); if (box) box.checked = !box.checked; },
  c: () => {
    const links = [...document.querySelectorAll("#colours a")];
    const at = links.findIndex((one) => one.hasAttribute("aria-current"));
    if (links.length > 1) links[(at + 1) % links.length].click();
  },
};

addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || help.open) return;
  if (event.target.matches("input:not([type=checkbox]), select, textarea")) {
    if (event.key === "Escape") event.target.blur();
    if (event.key === "Enter" && port && event.target === byId("search")) { event.preventDefault(); rows.go(0); }
    if (event.key === "ArrowDown" && event.target === byId("search") && rows) { event.preventDefault(); rows.go(0); }
    return;
  }
  if (port && port.contains(event.target) && (event.key === "ArrowDown" || event.key === "ArrowUp") && rows.cursor >= 0) {
    event.preventDefault();
    rows.move(event.key === "ArrowDown" ? 1 : -1);
  }
  if (!Object.hasOwn(acts, event.key)) return;
  event.preventDefault();
  acts[event.key]();
});
