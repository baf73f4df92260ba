// Jobs, decisions and policies as tables.

import { by, clock, count, duration, h, label, percent, places, show } from "./dom.js";

function table(id, empty, columns, rows) {
  if (!rows.length) return show(id, h("p", { class: "about" }, empty));
  return show(id, h("table", {}, h("thead", {}, h("tr", {}, columns.map(([name, kind]) => h("th", { scope: "col", class: kind }, name)))),
    h("tbody", {}, rows.map(({ job, cells }) => h("tr", { "data-job": job }, cells.map((cell, i) => h(i ? "td" : "th", { class: columns[i][1], scope: i ? null : "row", "data-label": columns[i][0] }, cell)))))));
}

const mark = (id, state) => (state.coloured(id) ? h("span", { class: `swatch c${state.colour(id)}`, "aria-hidden": "true" }) : null);
const chooser = (where, id, text, state) =>
  h("button", { type: "button", class: "link", "data-key": `${where} ${id}`, "aria-pressed": String(state.chosen === id), onclick: () => state.choose(id, true) },
    mark(id, state), text);

const since = (seconds) => h("time", { "data-since": seconds });
const two = (above, below) => [above, below ? h("small", {}, below) : null];
/** Below a table, what of its jobs it leaves out; `unread` are those that were not asked for, so that no filter has seen them. */
function leaveOut(id, below, unread, filter) {
  const more = below + (filter ? 0 : unread), unseen = filter ? unread : 0;
  const words = [more && `${count(more, "more job")} not shown`, unseen && `${count(unseen, "job")} not looked through`].filter(Boolean).join(", ");
  if (words) by(id).append(h("p", { class: "about" }, `${words}; the API has them.`));
}

/** What an iteration takes, as the job reports it, over what was predicted beside the present others. */
function iteration(job) {
  if (job.measured_iteration_s === null) return job.predicted_iteration_s === null ? "" : h("span", { class: "soft", title: "predicted; the job reports nothing" }, seconds(job.predicted_iteration_s));
  const predicted = job.predicted_iteration_s === null ? null : h("small", {}, `predicted ${seconds(job.predicted_iteration_s)}`);
  return [seconds(job.measured_iteration_s), predicted];
}

const three = (value) => value < 999.5 ? value.toPrecision(3) : value.toFixed(0);
const seconds = (value) => value < 1 ? `${three(1000 * value)} ms` : `${three(value)} s`;

export function drawTables(state) {
  const matching = (job) => !state.filter || [job.id, job.engine_id, job.name, job.user, job.model].some((text) => text.toLowerCase().includes(state.filter));
  const queue = state.waiting.filter(matching), running = state.running.filter(matching);
  const shown = queue.slice(0, 200);
  table("queue-body", state.filter ? "No waiting job matches the filter." : "Nobody waits.",
    [["Job", "who"], ["User", ""], ["GPUs", "n"], ["Waits", "n"], ["Why", "wide"]],
    shown.map((job) => ({ job: job.id, cells: [two(chooser("queue", job.id, label(job), state), job.name ? job.engine_id : ""), job.user, String(job.gpus), since(job.since_s), [job.state === "held" ? h("span", { class: "tag" }, "held") : null, job.why, job.binds_failed ? h("small", { class: "bad" }, `the engine did not take it ${job.binds_failed} times in a row`) : null]] })));
  leaveOut("queue-body", queue.length - shown.length, state.unread, state.filter);
  const first = running.slice(0, 300);
  table("running-body", state.filter ? "No running job matches the filter." : "Nothing runs.",
    [["Job", "who"], ["User", ""], ["GPUs", "n"], ["Runs for", "n"], ["Slowdown", "n"], ["Iteration", "n"], ["Where", "wide"], ["Why there", "wide"]],
    first.map((job) => ({ job: job.id, cells: [two(chooser("running", job.id, label(job), state), [job.name ? job.engine_id : "", job.model].filter(Boolean).join(", ")), job.user, String(job.gpus), since(job.since_s), job.predicted_slowdown === null ? h("span", { class: "soft", title: "it named no model" }, "not known") : `${job.predicted_slowdown.toFixed(2)}×`, iteration(job), places(job.placement), job.why] })));
  leaveOut("running-body", running.length - first.length, 0, state.filter);
  table("ended-body", "No job has ended yet.",
    [["Job", "who"], ["User", ""], ["GPUs", "n"], ["Ended", "n"], ["Waited", "n"], ["Ran", "n"], ["How", "wide"]],
    state.ended.filter(matching).slice(0, 25).map((job) => ({ job: job.id, cells: [two(chooser("ended", job.id, label(job), state), job.name ? job.engine_id : ""), job.user, String(job.gpus), clock(job.ended_s), duration(job.queued_s), job.first_started_s === null ? "never" : duration(job.served_s), [job.outcome, job.preemptions ? h("small", {}, `stopped ${count(job.preemptions, "time")}`) : null]] })));
}

export function drawDecisions(state) {
  table("decisions-body", "None yet.", [["When", ""], ["What", ""], ["Job", "who"], ["Where", "wide"], ["Reason", "wide"]],
    state.decisions.map((decision) => ({ job: decision.job, cells: [clock(decision.time_s),
      h("span", { class: `tag ${decision.refused ? "bad" : ""}` }, decision.refused ? `${decision.kind} refused` : decision.kind),
      chooser(`decision ${decision.id}`, decision.job, decision.name || decision.engine_id || decision.job.slice(0, 8), state), decision.placement.length ? places(decision.placement) : "–",
      [decision.reason, decision.refused ? h("small", { class: "bad" }, `refused: ${decision.refused}`) : null]] })));
}

export function drawShadow(state) {
  const { state: how, figures, notes, problem, since_s, until_s, took_s } = state.shadow;
  const parts = [];
  if (how === "off") parts.push(h("p", { class: "about" }, "Not set up: the service was started without policies to compare."));
  if (how === "running") parts.push(h("p", { class: "about" }, figures.length ? "Being computed anew; these are the figures before." : "Being computed."));
  if (how === "failed") parts.push(h("p", { class: "about" }, `No comparison: ${problem}`));
  if (figures.length) {
    const most = Math.max(...figures.map((each) => each.jct_mean_s ?? 0));
    parts.push(h("p", { class: "about" }, `Jobs submitted from ${clock(since_s, true)} to ${clock(until_s, true)} that have ended, simulated under each policy in ${duration(took_s)}.`),
      h("div", { class: "scroll", tabindex: "0", role: "region", "aria-labelledby": "h-shadow" }, h("table", {}, h("thead", {}, h("tr", {}, ["Policy", "Mean time from submission to end", "Median", "95 %", "Mean wait", "All done in", "GPUs used", "Stops", "Jobs"].map((name, i) => h("th", { scope: "col", class: i > 1 ? "n" : "" }, name)))),
        h("tbody", {}, figures.map((each) => {
          const bar = h("b");
          bar.style.width = `${most ? ((each.jct_mean_s ?? 0) / most) * 100 : 0}%`;
          return h("tr", { class: each.policy ? "" : "real" }, h("th", { scope: "row" }, each.policy || "what really happened"),
            h("td", {}, h("div", { class: "load long" }, h("span", { class: "bar", "aria-hidden": "true" }, bar), h("span", { class: "number" }, duration(each.jct_mean_s)))),
            [duration(each.jct_p50_s), duration(each.jct_p95_s), duration(each.queueing_mean_s), duration(each.makespan_s), each.gpu_utilization === null ? "–" : percent(each.gpu_utilization), String(each.preemptions), String(each.jobs)].map((text) => h("td", { class: "n" }, text)));
        })))),
      h("details", {}, h("summary", { "data-key": "shadow notes" }, "What this assumes"), h("ul", {}, notes.map((note) => h("li", {}, note)))));
  }
  show("shadow-body", parts);
}
