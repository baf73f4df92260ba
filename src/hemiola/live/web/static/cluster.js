// The cluster: racks, hosts, a cell per GPU, and how full each link is predicted to be.

import { by, count, h, label, percent, ranges, rate, show } from "./dom.js";

/** Segments of equal GPUs of a host, from left to right: {from, length, kind, job}. */
function segments(host) {
  const cells = Array.from({ length: host.gpus }, () => ({ kind: "used", job: null }));
  for (const gpu of host.free) cells[gpu] = { kind: "free", job: null };
  for (const gpu of host.blocked) cells[gpu] = { kind: "blocked", job: null };
  for (const job of host.jobs) for (const gpu of job.gpus) cells[gpu] = { kind: "job", job };
  if (host.down) cells.forEach((cell, gpu) => { if (cell.kind !== "job") cells[gpu] = { kind: "down", job: null }; });
  const found = [];
  cells.forEach((cell, gpu) => {
    const last = found.at(-1);
    if (last && last.kind === cell.kind && last.job === cell.job) last.length += 1;
    else found.push({ from: gpu, length: 1, ...cell });
  });
  return found;
}

const WORDS = { free: "free", blocked: "not ours", down: "down", used: "used" };

function segment(part, state) {
  const gpus = ranges(Array.from({ length: part.length }, (_, i) => part.from + i));
  const job = part.job && state.jobs.get(part.job.job);
  const name = part.job ? (job ? label(job) : part.job.engine_id) : WORDS[part.kind];
  const cells = Array.from({ length: part.length }, () => h("i"));
  const attributes = { class: `segment ${part.job ? `taken c${state.colour(part.job.job)}` : part.kind}`, title: `GPU ${gpus}: ${name}` };
  const text = part.job && part.length > 2 ? h("span", {}, part.job.engine_id) : part.kind === "down" && part.length > 2 ? h("span", {}, "down") : null;
  const element = part.job
    ? h("button", { ...attributes, type: "button", tabindex: "-1", "aria-hidden": "true", "data-job": part.job.job, onclick: () => state.choose(part.job.job) }, ...cells, text)
    : h("div", { ...attributes, "aria-hidden": "true" }, ...cells, text);
  element.style.flexGrow = part.length;
  return element;
}

function spoken(host, parts, state) {
  const words = parts.map((part) => {
    const job = part.job && state.jobs.get(part.job.job);
    return `${count(part.length, "GPU")} ${part.job ? `job ${job ? label(job) : part.job.engine_id}` : WORDS[part.kind]}`;
  });
  return `${host.name}: ${words.join(", ")}`;
}

/** How full a link is, with its numbers as text. */
function load(link, long) {
  if (!link) return null;
  const share = link.capacity_bytes_per_s ? link.predicted_bytes_per_s / link.capacity_bytes_per_s : 0;
  const fill = h("b", { class: share > 0.8 ? "full" : share > 0.5 ? "half" : "" });
  fill.style.width = `${Math.min(100, share * 100)}%`;
  const marks = [fill];
  if (link.measured_bytes_per_s !== null && link.capacity_bytes_per_s) {
    const mark = h("i", {});
    mark.style.left = `${Math.min(100, 100 * link.measured_bytes_per_s / link.capacity_bytes_per_s)}%`;
    marks.push(mark);
  }
  const of = link.capacity_bytes_per_s ? ` of ${rate(link.capacity_bytes_per_s)}` : "";
  const counted = link.measured_bytes_per_s === null ? "" : `; its counters say ${rate(link.measured_bytes_per_s)}`;
  const words = `${link.name}: predicted ${rate(link.predicted_bytes_per_s)}${of}${counted}`;
  return h("div", { class: `load ${long ? "long" : ""}`, title: words },
    h("span", { class: "bar", role: "img", "aria-label": words }, marks),
    h("span", { class: "number", "aria-hidden": "true" }, long ? `${rate(link.predicted_bytes_per_s)}${of} (${percent(share)})` : percent(share)));
}

export function drawCluster(state) {
  const nics = new Map(), uplinks = new Map();
  for (const link of state.links.items) (link.kind === "nic" ? nics : uplinks).set(link.kind === "nic" ? link.of : `${link.level} ${link.of}`, link);
  const groups = state.cluster.groups.map((group) => {
    const free = group.hosts.reduce((sum, host) => sum + host.free.length, 0);
    const all = group.hosts.reduce((sum, host) => sum + host.gpus, 0);
    const hosts = group.hosts.map((host) => {
      const parts = segments(host);
      return h("li", { class: "host" },
        h("span", { class: "host-name", title: host.gpu_type }, host.name),
        h("span", { class: "hidden" }, spoken(host, parts, state)),
        h("div", { class: "gpus" }, parts.map((part) => segment(part, state))),
        load(nics.get(host.name), false));
    });
    return h("div", { class: "rack" },
      h("div", { class: "rack-head" }, h("h3", {}, [group.level, group.name, ...group.within.map((name) => `in ${name}`)].join(" ")),
        h("span", { class: "soft" }, `${free} of ${all} GPUs free`), load(uplinks.get(`${group.level} ${group.name}`), true)),
      h("ul", {}, hosts));
  });
  const wider = [...uplinks.values()].filter((link) => link.level !== state.cluster.groups[0]?.level);
  show("cluster", groups, wider.length ? h("div", { class: "rack" }, h("h3", {}, "Wider links"), h("ul", {}, wider.map((link) => h("li", {}, `${link.level} ${link.of} `, load(link, true))))) : null,
    state.links.unknown_jobs ? h("p", { class: "about" }, `${count(state.links.unknown_jobs, "job")} over several hosts named no model: what they send is not known, and not in the bars.`) : null);
  if (!by("legend").childElementCount)
    show("legend", ["taken c0", "free", "blocked", "down"].map((kind) => h("li", {}, h("span", { class: `segment swatch ${kind}`, "aria-hidden": "true" }), { "taken c0": "a job", free: "free", blocked: "not ours", down: "down" }[kind])));
}
