// The page: asks, keeps what was answered, and has it drawn anew when something has changed.

import { NeedsToken, follow, get, getAll, keepToken } from "./api.js";
import { drawCluster } from "./cluster.js";
import { by, clock, count, duration, h, label, places, rate, show } from "./dom.js";
import { drawGantt } from "./gantt.js";
import { drawDecisions, drawShadow, drawTables } from "./tables.js";

const COLOURS = 8, EVERY_MS = 2000;
const MODES = { enforce: "decisions are carried out", advise: "decisions are written at the engine's jobs, and not carried out", observe: "decisions are written down, and not carried out" };
const colours = new Map();

const state = {
  status: null, jobs: new Map(), waiting: [], unread: 0, running: [], ended: [], endedBefore: false, decisions: [], chosen: null, filter: "", span: 3600, offset: 0,
  /** Whether a job is in one of the pictures. */
  coloured(id) {
    const job = state.jobs.get(id);
    return Boolean(job && (job.state === "running" || (job.state === "ended" && job.placement.length)));
  },
  /** A colour of its own for each job, as long as there are any; kept while the page is open. */
  colour(id) {
    if (!colours.has(id)) {
      const used = Array(COLOURS).fill(0);
      for (const colour of colours.values()) used[colour] += 1;
      for (const job of state.running) if (colours.has(job.id)) used[colours.get(job.id)] += 10000;
      colours.set(id, used.indexOf(Math.min(...used)));
    }
    return colours.get(id);
  },
  choose(id, move) {
    state.chosen = state.chosen === id ? null : id;
    drawChosen();
    if (move && state.chosen && matchMedia("(max-width: 900px)").matches) by("job").scrollIntoView({ block: "nearest" });
  },
};

// ---- asking

async function refresh() {
  const [running, status, cluster, links, waiting, held, ended, decisions, shadow] = await Promise.all([getAll("jobs?state=running&limit=1000"),
    ...["status", "cluster", "links", "jobs?state=waiting&limit=1000", "jobs?state=held&limit=1000", "jobs?state=ended&limit=300", "decisions?limit=50", "shadow"].map(get)]);
  Object.assign(state, { status, cluster, links, running, ended: ended.items, endedBefore: ended.next !== null, decisions: decisions.items, shadow });
  state.offset = status.now_s - Date.now() / 1000;
  state.waiting = [...waiting.items, ...held.items].sort((a, b) => a.submitted_s - b.submitted_s);
  state.unread = waiting.total + held.total - state.waiting.length;
  state.jobs = new Map([...ended.items, ...state.waiting, ...running].map((job) => [job.id, job]));
  for (const job of state.running) state.colour(job.id);
  draw();
}

let last = 0, pending = null, missed = false;
/** Have it asked; a page that nobody sees asks once it is shown again. */
function soon() {
  missed = document.hidden;
  if (missed) return;
  pending ??= setTimeout(async () => {
    pending = null;
    missed = document.hidden;
    if (missed) return;
    last = Date.now();
    try { await refresh(); } catch (problem) { complain(problem); }
  }, Math.max(0, last + EVERY_MS - Date.now()));
}

async function stay() {
  for (;;) {
    try { await follow(soon); } catch (problem) {
      complain(problem);
      if (problem instanceof NeedsToken) return;
    }
    await new Promise((resolve) => setTimeout(resolve, 3000));
  }
}

function complain(problem) {
  if (problem instanceof NeedsToken) {
    by("token").hidden = false;
    by("main").hidden = true;
    by("token-problem").textContent = problem.message;
    by("token").elements.token.focus();
  } else warn([`The server cannot be asked: ${problem.message}. Trying again.`]);
}

// ---- drawing

const warn = (texts) => {
  const now = [...by("warnings").children].map((each) => each.textContent);
  if (now.join("\n") !== texts.join("\n")) show("warnings", texts.map((text) => h("p", { class: "warning" }, text)));
};

function draw() {
  const { status } = state;
  by("token").hidden = true;
  by("main").hidden = false;
  by("name").textContent = status.topology;
  document.title = `Hemiola: ${status.topology}`;
  warn([
    status.engine_away && `The engine cannot be asked: ${status.engine_away}. What is shown is as it was before.`,
    status.broken_policy && `${status.fallback} decides, as the chosen policy broke: ${status.broken_policy}`,
    status.kill_switch && "The kill switch is thrown: nothing is carried out.",
    !status.leads && `This instance waits: ${status.leader || "another one"} leads. What is shown comes from the journal; which hosts are down or not ours is not known here.`,
  ].filter(Boolean));
  drawFacts(status);
  drawFigures(status);
  drawCluster(state);
  drawTables(state);
  drawGantt(state);
  drawDecisions(state);
  drawShadow(state);
  drawChosen();
  tick();
  document.body.dataset.snapshot = status.snapshot;
}

function drawFacts(status) {
  const facts = [
    ["mode", status.mode, MODES[status.mode] ?? ""],
    ["policy", status.broken_policy ? status.fallback : status.policy, ""],
    ["engine", `${status.engine || "not named"}${status.engine_away ? ", away" : ""}`, status.engine_away],
    ["run", `${status.run}, since ${status.run_began_s ? clock(status.run_began_s) : "–"}`, ""],
    ["leader", status.leads ? "this instance" : "another one", status.leader],
  ];
  show("facts", facts.map(([name, value, title]) => h("li", { title: title || null }, h("span", {}, name), ` ${value}`)));
}

function drawFigures({ gpus, jobs, wanted_gpus: wanted }) {
  const all = gpus.free + gpus.used + gpus.blocked + gpus.down;
  const parts = [["used", gpus.used, "used"], ["free", gpus.free, "free"], ["blocked", gpus.blocked, "not ours"], ["down", gpus.down, "down"]];
  const bar = parts.filter(([, n]) => n).map(([kind, n]) => { const part = h("span", { class: `segment ${kind}` }); part.style.flexGrow = n; return part; });
  const words = parts.map(([, n, name]) => `${n} ${name}`).join(", ");
  show("figures",
    h("div", { class: "card figure grow" }, h("p", {}, h("strong", {}, `${gpus.used}`), ` of ${all} GPUs used`), h("div", { class: "stack", role: "img", "aria-label": `GPUs: ${words}` }, bar), h("p", { class: "soft" }, words)),
    h("div", { class: "card figure" }, h("p", {}, h("strong", {}, `${jobs.running}`), " running"), h("p", { class: "soft" }, `${count(state.running.filter((job) => job.placement.length > 1).length, "job")} over several hosts`)),
    h("div", { class: "card figure" }, h("p", {}, h("strong", {}, `${jobs.waiting}`), " waiting"), h("p", { class: "soft" }, `want ${count(wanted, "GPU")}; ${jobs.held} held`)));
}

function drawChosen() {
  const job = state.chosen ? state.jobs.get(state.chosen) : null;
  for (const element of document.querySelectorAll("[data-job]")) element.classList.toggle("chosen", element.dataset.job === state.chosen);
  for (const element of document.querySelectorAll("button.link")) element.setAttribute("aria-pressed", String(Boolean(element.closest(`tr`)?.dataset.job === state.chosen)));
  document.body.classList.toggle("choosing", Boolean(state.chosen));
  if (!job) {
    by("h-job").textContent = "Job";
    return show("job-body", h("p", { class: "about" }, state.chosen ? "This job is no longer among those shown." : "Choose a job in the picture or in a table to see where it is and why."));
  }
  by("h-job").textContent = label(job);
  const links = state.links.items.flatMap((link) => link.jobs.filter((on) => on.job === job.id).map((on) => ({ link, on })));
  const fullest = links.sort((a, b) => b.link.predicted_bytes_per_s / (b.link.capacity_bytes_per_s ?? Infinity) - a.link.predicted_bytes_per_s / (a.link.capacity_bytes_per_s ?? Infinity))[0];
  const others = fullest ? fullest.link.jobs.filter((on) => on.job !== job.id).map((on) => state.jobs.get(on.job)).filter(Boolean).map(label) : [];
  const facts = [
    ["State", job.state === "ended" ? `ended: ${job.outcome}` : job.state], ["Why", job.why || "–"], ["Engine's id", job.engine_id], ["UUID", job.id], ["User", job.user],
    ["GPUs", `${job.gpus}${job.required ? `, within one ${job.required}` : ""}`], ["Model", job.model || "not named"], ["Submitted", clock(job.submitted_s, true)],
    ["Waited", duration(job.queued_s)], ["Ran", duration(job.served_s)], ["Run time declared", duration(job.declared_s)], ["Stopped", count(job.preemptions, "time")], ["Moved", count(job.migrations, "time")],
    ["Where", job.placement.length ? places(job.placement) : "–"],
    job.predicted_iteration_s === null ? null : ["Iteration, predicted", `${job.predicted_iteration_s.toPrecision(3)} s, ${job.predicted_slowdown.toFixed(2)}× the best`],
    job.measured_iteration_s === null ? null : ["Iteration, measured", `${job.measured_iteration_s.toPrecision(3)} s`],
    fullest ? ["Fullest link, predicted", `${fullest.link.name}: ${rate(fullest.on.bytes_per_s)} of its ${rate(fullest.link.predicted_bytes_per_s)}${others.length ? `; also there: ${others.join(", ")}` : ""}`] : null,
  ].filter(Boolean);
  return show("job-body", h("dl", {}, facts.flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])), h("button", { type: "button", "data-key": "choose none", onclick: () => state.choose(state.chosen) }, "Choose none"));
}

function tick() {
  const now = Date.now() / 1000 + state.offset;
  for (const element of document.querySelectorAll("time[data-since]")) element.textContent = duration(now - Number(element.dataset.since));
}

// ---- people

by("token").addEventListener("submit", (event) => {
  event.preventDefault();
  keepToken(by("token").elements.token.value.trim());
  refresh().then(stay).catch(complain);
});
by("filter").addEventListener("input", () => { state.filter = by("filter").value.trim().toLowerCase(); if (state.status) { drawTables(state); drawChosen(); tick(); } });
by("span").addEventListener("change", () => { state.span = Number(by("span").value); if (state.status) { drawGantt(state); drawChosen(); } });
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && state.chosen) state.choose(state.chosen);
  else if (event.key === "/" && !/^(INPUT|SELECT|TEXTAREA)$/.test(document.activeElement?.tagName ?? "")) { event.preventDefault(); by("filter").focus(); }
});
document.addEventListener("visibilitychange", () => { if (missed) soon(); });
let resized = null;
addEventListener("resize", () => { clearTimeout(resized); resized = setTimeout(() => { if (state.status) { drawGantt(state); drawChosen(); } }, 150); });
setInterval(() => { if (state.status && !document.hidden) tick(); }, 1000);
setInterval(() => { if (state.status && !document.hidden) soon(); }, 30000);
refresh().then(stay).catch((problem) => { complain(problem); if (!(problem instanceof NeedsToken)) stay(); });
