// Who had which GPUs when: a row per host, a lane per GPU, a bar per job.

import { by, clock, count, duration, label, s, show } from "./dom.js";

const LEFT = 76, TOP = 6, BOTTOM = 22, GAP = 5;
const STEPS = [60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400];

/** Of a job that ran several times one bar, as long as all of them, up to its end: it may have waited in between. */
function spans(state, from, to) {
  const found = [];
  for (const job of state.running) found.push({ job, begin: job.since_s, end: to });
  for (const job of state.ended)
    if (job.first_started_s !== null && job.ended_s > from && job.placement.length)
      found.push({ job, begin: Math.max(job.first_started_s, job.ended_s - job.served_s), end: job.ended_s });
  return found.filter((span) => span.end > from && span.begin < to);
}

/** Runs of neighbouring GPUs, so that a job with a whole host is one bar. */
function chunks(gpus) {
  const found = [];
  for (const gpu of gpus) {
    const last = found.at(-1);
    if (last && last.from + last.length === gpu) last.length += 1;
    else found.push({ from: gpu, length: 1 });
  }
  return found;
}

export function drawGantt(state) {
  const width = Math.max(280, by("gantt").clientWidth), to = state.status.now_s, from = to - state.span;
  const hosts = state.cluster.groups.flatMap((group) => group.hosts);
  const lane = hosts.length > 64 ? 1.5 : hosts.length > 24 ? 2.5 : 4;
  const tops = new Map();
  let y = TOP;
  for (const host of hosts) { tops.set(host.name, y); y += host.gpus * lane + GAP; }
  const x = (time) => LEFT + ((Math.max(from, time) - from) / (to - from)) * (width - LEFT - 8);
  const step = STEPS.find((each) => state.span / each <= width / 110) ?? 86400;
  const marks = [];
  const zone = new Date().getTimezoneOffset() * 60;
  for (let time = Math.ceil((from - zone) / step) * step + zone; time <= to; time += step) {
    const text = step >= 86400 ? clock(time, true).slice(5, 10) : clock(time).slice(0, 5);
    marks.push(s("line", { class: "grid", x1: x(time), x2: x(time), y1: TOP, y2: y }), s("text", { class: "tick", x: x(time), y: y + 14, "text-anchor": "middle" }, text));
  }
  const rows = hosts.map((host, i) => {
    const top = tops.get(host.name), height = host.gpus * lane;
    const named = height >= 9 || i % Math.ceil(9 / (height + GAP)) === 0;
    return [s("rect", { class: host.down ? "lane down" : "lane", x: LEFT, y: top, width: width - LEFT - 8, height }),
      named ? s("text", { class: "tick", x: LEFT - 8, y: top + height / 2 + 4, "text-anchor": "end" }, host.name.length > 11 ? `${host.name.slice(0, 10)}…` : host.name) : null];
  });
  const drawn = spans(state, from, to);
  const bars = drawn.flatMap(({ job, begin, end }) => job.placement.flatMap((part) => chunks(part.gpus).map((chunk) => {
    const left = x(begin), wide = Math.max(1.5, x(end) - left);
    const bar = s("rect", { class: `stint ${job.state === "ended" ? "over" : ""} c${state.colour(job.id)}`, "data-job": job.id, x: left, y: (tops.get(part.host) ?? TOP) + chunk.from * lane, width: wide, height: Math.max(1, chunk.length * lane - 0.5), rx: 1.5, onclick: () => state.choose(job.id) },
      s("title", {}, `${label(job)} (${job.user}), ${count(job.gpus, "GPU")}, ${clock(begin)}, ${duration(end - begin)}`));
    const text = wide > 70 && chunk.length * lane >= 11 ? s("text", { class: `name ${job.state === "ended" ? "over" : ""} c${state.colour(job.id)}`, x: left + 5, y: (tops.get(part.host) ?? TOP) + (chunk.from + chunk.length / 2) * lane + 4 }, label(job).slice(0, Math.floor(wide / 7.5))) : null;
    return [bar, text];
  })).flat()).filter(Boolean);
  const words = `${count(drawn.length, "job")} on ${count(hosts.length, "host")} from ${clock(from, true)} to ${clock(to)}; the tables have them in words.`;
  const cut = state.endedBefore ? ` Of jobs that have ended, only the ${count(state.ended.length, "job")} submitted last are drawn.` : "";
  by("gantt-about").textContent = `A row per host, a lane per GPU. ${words}${cut}`;
  show("gantt", s("svg", { width, height: y + BOTTOM, viewBox: `0 0 ${width} ${y + BOTTOM}`, role: "img", "aria-label": `Gantt chart: ${words}` }, rows.flat().filter(Boolean), marks, bars));
}
