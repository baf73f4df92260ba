// Elements from values: text stays text, whatever is in it. And numbers as people read them.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== ""));
  return element;
}

export const h = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
export const s = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);
export const by = (id) => document.getElementById(id);

/** Put new children in, and the focus back to where it was, by `data-key`. */
export function show(id, ...children) {
  const element = by(id);
  const focused = element.contains(document.activeElement) ? document.activeElement.dataset.key : null;
  const left = element.scrollLeft;
  element.replaceChildren(...children.flat().filter((child) => child !== null && child !== ""));
  element.scrollLeft = left;
  if (focused) [...element.querySelectorAll("[data-key]")].find((each) => each.dataset.key === focused)?.focus();
}

export const count = (number, word) => `${number.toLocaleString("en")} ${word}${number === 1 ? "" : "s"}`;

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60 ? (whole % 60) + " s" : ""}`.trim();
  const minutes = Math.round(whole / 60);
  if (minutes < 48 * 60) return `${Math.floor(minutes / 60)} h ${minutes % 60 ? (minutes % 60) + " min" : ""}`.trim();
  return `${(minutes / 1440).toFixed(1)} d`;
}

export function rate(bytesPerS) {
  const units = ["B/s", "kB/s", "MB/s", "GB/s", "TB/s"];
  let value = bytesPerS, unit = 0;
  while (value >= 999.5 && unit < units.length - 1) { value /= 1000; unit += 1; }
  return `${value ? value.toPrecision(3) : 0} ${units[unit]}`;
}

export const percent = (share) => (share > 0 && share < 0.01 ? "<1 %" : `${Math.round(share * 100)} %`);

/** Numbers as ranges: [0, 1, 2, 5] is "0–2,5". */
export function ranges(numbers) {
  const parts = [];
  for (const n of numbers) {
    const last = parts.at(-1);
    if (last && last[1] === n - 1) last[1] = n;
    else parts.push([n, n]);
  }
  return parts.map(([a, b]) => (a === b ? `${a}` : `${a}–${b}`)).join(",");
}

export const places = (placement) =>
  placement.length > 6
    ? `${placement.slice(0, 5).map((part) => part.host).join(", ")} and ${placement.length - 5} more hosts`
    : placement.map((part) => `${part.host} (${ranges(part.gpus)})`).join(", ");

export const clock = (seconds, withDay) => {
  const date = new Date(seconds * 1000);
  const time = date.toLocaleTimeString("en-GB");
  return withDay ? `${date.toLocaleDateString("en-CA")} ${time}` : time;
};

export const label = (job) => job.name || job.engine_id || job.id.slice(0, 8);
