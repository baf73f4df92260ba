// Draws a job's timeline: rows of segments on a canvas, to be zoomed; the critical path above and inside.
"use strict";
(() => {
  const root = document.documentElement;
  const GUTTER = 150, AXIS = 24, PATH = 20, ROW = 17, GAP = 9, FOOT = 6;
  const decode = (text, Type) => {
    const bytes = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
    return new Type(bytes.buffer);
  };
  const digits = (value, most) => String(Number(value.toPrecision(most)));
  const words = (seconds) => {
    for (const [unit, scale] of [["s", 1], ["ms", 1e-3], ["µs", 1e-6]]) {
      if (Math.abs(seconds) >= scale) return `${digits(seconds / scale, 4)} ${unit}`;
    }
    return seconds === 0 ? "0 s" : `${digits(seconds / 1e-9, 3)} ns`;
  };
  const size = (bytes) => {
    for (const [unit, scale] of [["GB", 1e9], ["MB", 1e6], ["kB", 1e3]]) {
      if (bytes >= scale) return `${digits(bytes / scale, 3)} ${unit}`;
    }
    return `${bytes} B`;
  };

  function viewer(place) {
    const data = JSON.parse(document.getElementById(place.dataset.source).textContent);
    const canvas = place.querySelector("canvas"), tip = place.querySelector(".tip"), pen = canvas.getContext("2d");
    const unpack = (name, Type) => (data[name] ? decode(data[name], Type) : null);
    const row = unpack("row", Uint16Array), kind = unpack("kind", Uint8Array), name = unpack("name", Uint32Array);
    const start = unpack("start", Uint32Array), end = unpack("end", Uint32Array);
    const bytes = unpack("size", Float32Array), count = unpack("count", Uint32Array), module = unpack("module", Uint32Array);
    const tick = data.seconds / (2 ** 32 - 1);
    const first = new Uint32Array(data.rows.length + 1);
    for (let i = 0; i < data.length; i++) first[row[i] + 1] = i + 1;
    for (let i = 1; i < first.length; i++) first[i] = Math.max(first[i], first[i - 1]);
    const top = [];
    let y = AXIS + PATH + GAP;
    data.rows.forEach((one, i) => {
      if (i && data.rows[i - 1].rank !== one.rank) y += GAP;
      top.push(y);
      y += ROW;
    });
    const height = y + FOOT;
    const mine = data.iterations.find((one) => one[3]);
    const zero = mine ? mine[1] : 0;
    const home = [zero - 0.03 * data.view, zero + 1.03 * data.view];
    let [low, high] = home, drag = null, color = {}, hatch = null, width = 0;

    const x = (seconds) => GUTTER + ((seconds - low) / (high - low)) * (width - GUTTER);
    const seconds = (at) => low + ((at - GUTTER) / (width - GUTTER)) * (high - low);

    function theme() {
      const style = getComputedStyle(root), get = (variable) => style.getPropertyValue(variable).trim();
      color = { ink: get("--ink"), soft: get("--soft"), line: get("--line"), paper: get("--paper"), page: get("--page") };
      const named = { compute: "--compute", communication: "--communication", wait: "--wire", input: "--input", copy: "--copy", other: "--other" };
      color.kinds = data.kinds.map((one) => get(named[one]));
      color.idle = get("--idle");
      const tile = document.createElement("canvas");
      tile.width = tile.height = 6;
      const brush = tile.getContext("2d");
      brush.strokeStyle = "rgba(255,255,255,0.5)";
      brush.lineWidth = 1.6;
      brush.beginPath();
      for (const shift of [-6, 0, 6]) { brush.moveTo(shift, 6); brush.lineTo(shift + 6, 0); }
      brush.stroke();
      hatch = pen.createPattern(tile, "repeat");
    }

    function fit() {
      width = place.clientWidth;
      const ratio = devicePixelRatio || 1;
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
      canvas.style.height = `${height}px`;
      pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    }

    const snap = (at) => Math.round(at * devicePixelRatio) / devicePixelRatio;

    // Fills from `from` to `to` (seconds); joins what was drawn up to `drawnTo` (pixels) if that is next to it.
    function box(from, to, y, high, which, label, drawnTo) {
      let a = snap(Math.max(x(from), GUTTER));
      const b = snap(Math.min(x(to), width));
      if (b <= a && b < GUTTER + 0.1) return drawnTo;
      if (a - drawnTo < 1) {
        if (b <= drawnTo) return drawnTo;
        a = Math.max(drawnTo, GUTTER);
      }
      const wide = Math.max(b - a - (b - a > 3 ? 1 / devicePixelRatio : 0), 1 / devicePixelRatio);
      pen.fillStyle = which < 0 ? color.idle : color.kinds[which];
      pen.fillRect(a, y, wide, high);
      if (data.kinds[which] === "wait" && wide > 4) {
        pen.fillStyle = hatch;
        pen.fillRect(a, y, wide, high);
      }
      if (label && wide > 46) text(label, a + 4, y + high / 2, wide - 8, which);
      return a + Math.max(b - a, 1 / devicePixelRatio);
    }

    function text(label, at, y, wide, which) {
      pen.font = "11px system-ui, sans-serif";
      const room = Math.floor(wide / 5.9);
      const shown = label.length <= room ? label : room > 5 ? `${label.slice(0, room - 1)}…` : "";
      pen.fillStyle = which < 0 ? color.ink : "#fff";
      if (matchMedia("(prefers-color-scheme: dark)").matches && which >= 0) pen.fillStyle = "#0c1016";
      pen.textAlign = "left";
      pen.textBaseline = "middle";
      if (shown) pen.fillText(shown, at, y + 0.5);
    }

    function axis() {
      const rough = (high - low) / Math.max(3, (width - GUTTER) / 110);
      const power = 10 ** Math.floor(Math.log10(rough));
      const step = [1, 2, 5, 10].map((one) => one * power).find((one) => one >= rough);
      pen.font = "11.5px system-ui, sans-serif";
      pen.textBaseline = "alphabetic";
      pen.textAlign = "center";
      for (let at = zero + Math.ceil((low - zero) / step) * step; at <= high; at += step) {
        pen.strokeStyle = color.line;
        pen.lineWidth = 1;
        pen.beginPath();
        pen.moveTo(x(at), AXIS - 4);
        pen.lineTo(x(at), height);
        pen.stroke();
        pen.fillStyle = color.soft;
        const edge = x(at);
        if (edge > GUTTER + 18 && edge < width - 24) pen.fillText(words(Math.round((at - zero) / step) * step), edge, AXIS - 9);
      }
      pen.setLineDash([4, 3]);
      pen.strokeStyle = color.soft;
      for (const [number, from] of data.iterations) {
        if (from < low || from > high) continue;
        pen.beginPath();
        pen.moveTo(x(from), AXIS - 4);
        pen.lineTo(x(from), height);
        pen.stroke();
      }
      pen.setLineDash([]);
    }

    function labels() {
      pen.textBaseline = "middle";
      pen.textAlign = "left";
      pen.font = "600 12px system-ui, sans-serif";
      pen.fillStyle = color.ink;
      pen.fillText("critical path", 0, AXIS + PATH / 2);
      data.rows.forEach((one, i) => {
        if (!i || data.rows[i - 1].rank !== one.rank) {
          pen.font = "600 12px system-ui, sans-serif";
          pen.fillStyle = color.ink;
          pen.fillText(`rank ${one.rank}`, 0, top[i] + ROW / 2);
        }
        pen.font = "11.5px system-ui, sans-serif";
        pen.fillStyle = color.soft;
        const lane = one.lane.length > 14 ? `${one.lane.slice(0, 13)}…` : one.lane;
        pen.fillText(lane, 62, top[i] + ROW / 2);
      });
    }

    function segments() {
      for (let r = 0; r < data.rows.length; r++) {
        let drawnTo = -9;
        for (let i = first[r]; i < first[r + 1]; i++) {
          const from = start[i] * tick, to = end[i] * tick;
          if (to < low || from > high) continue;
          drawnTo = box(from, to, top[r] + 1, ROW - 2, kind[i], data.names[name[i]], drawnTo);
        }
      }
    }

    function path() {
      pen.strokeStyle = color.ink;
      pen.lineWidth = 1.6;
      let before = null, drawnTo = -9;
      for (const [where, which, from, to, label] of data.path) {
        if (to < low || from > high) { before = null; continue; }
        drawnTo = box(from, to, AXIS + 2, PATH - 4, which, label, drawnTo);
        if (where < 0) continue;
        const y = top[where] + ROW - 1, a = Math.max(x(from), GUTTER), b = Math.min(x(to), width);
        pen.beginPath();
        if (before !== null && from >= low) {
          pen.moveTo(a, before);
          pen.lineTo(a, y);
        } else {
          pen.moveTo(a, y);
        }
        pen.lineTo(b, y);
        pen.stroke();
        before = y;
      }
    }

    function draw() {
      pen.clearRect(0, 0, width, height);
      axis();
      segments();
      path();
      labels();
      if (drag && drag.to !== null) {
        pen.fillStyle = "rgba(59,111,212,0.18)";
        pen.fillRect(Math.min(drag.from, drag.to), AXIS, Math.abs(drag.to - drag.from), height - AXIS);
      }
    }

    let waiting = false;
    function later() {
      if (waiting) return;
      waiting = true;
      requestAnimationFrame(() => { waiting = false; draw(); });
    }

    function view(from, to) {
      const least = Math.max(data.seconds * 1e-8, 1e-8);
      const wide = Math.min(Math.max(to - from, least), data.seconds * 1.02);
      low = Math.min(Math.max(from, -0.01 * data.seconds), 1.01 * data.seconds - wide);
      high = low + wide;
      later();
    }

    const zoom = (factor, at = (low + high) / 2) => view(at - (at - low) * factor, at + (high - at) * factor);
    const pan = (share) => view(low + share * (high - low), high + share * (high - low));

    function find(at, y) {
      if (y >= AXIS && y < AXIS + PATH) {
        const piece = data.path.find((one) => one[2] <= at && at < one[3]);
        return piece && { path: piece };
      }
      const r = top.findIndex((one) => y >= one && y < one + ROW);
      if (r < 0) return null;
      const slack = ((high - low) / (width - GUTTER)) * 1.5;
      let a = first[r], b = first[r + 1];
      while (a < b) {
        const middle = (a + b) >> 1;
        if (start[middle] * tick <= at + slack) a = middle + 1;
        else b = middle;
      }
      for (let i = a - 1; i >= Math.max(first[r], a - 4); i--) {
        if (end[i] * tick >= at - slack) return { index: i, row: r };
      }
      return null;
    }

    function tell(found) {
      const line = (text, strong) => {
        const element = document.createElement(strong ? "b" : "span");
        element.textContent = text;
        tip.append(element);
        if (!strong) tip.append(document.createElement("br"));
      };
      tip.replaceChildren();
      if (found.path) {
        const [, which, from, to, label] = found.path;
        line(which < 0 ? "gap: nothing recorded" : label, true);
        line(`on the critical path for ${words(to - from)}`);
        return;
      }
      const i = found.index, one = data.rows[found.row], from = start[i] * tick, to = end[i] * tick;
      const several = count && count[i] > 1;
      line(several ? `${count[i].toLocaleString()} short spans` : data.names[name[i]], true);
      line(`${data.kinds[kind[i]]} for ${words(to - from)}, from ${words(from - zero)}`);
      if (!several && module && module[i]) line(data.modules[module[i] - 1]);
      if (!several && bytes && !Number.isNaN(bytes[i])) {
        const rate = data.kinds[kind[i]] === "communication" ? `, ${digits((bytes[i] * 8) / (to - from) / 1e9, 3)} Gbit/s` : "";
        line(`${size(bytes[i])}${rate}`);
      }
      line(`rank ${one.rank}${one.host ? ` on ${one.host}` : ""}, ${one.lane}`);
    }

    canvas.addEventListener("pointerdown", (event) => {
      if (event.pointerType === "touch") return;
      drag = { from: event.offsetX, to: null, shift: event.shiftKey, low, high };
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      if (drag && drag.shift) {
        const moved = ((event.offsetX - drag.from) / (width - GUTTER)) * (drag.high - drag.low);
        view(drag.low - moved, drag.high - moved);
        return;
      }
      if (drag) {
        if (Math.abs(event.offsetX - drag.from) > 4 || drag.to !== null) drag.to = event.offsetX;
        later();
        return;
      }
      const found = event.offsetX > GUTTER ? find(seconds(event.offsetX), event.offsetY) : null;
      tip.style.display = found ? "block" : "none";
      if (!found) return;
      tell(found);
      tip.style.left = `${Math.max(0, Math.min(event.offsetX + 14, width - tip.offsetWidth - 4))}px`;
      tip.style.top = `${event.offsetY + 16}px`;
    });
    canvas.addEventListener("pointerup", () => {
      if (drag && drag.to !== null && !drag.shift) {
        const from = Math.max(Math.min(drag.from, drag.to), GUTTER);
        view(seconds(from), seconds(Math.max(drag.from, drag.to)));
      }
      drag = null;
      later();
    });
    canvas.addEventListener("pointerleave", () => { tip.style.display = "none"; });
    canvas.addEventListener("dblclick", () => view(...home));
    canvas.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      zoom(Math.exp(event.deltaY / 300), seconds(Math.max(event.offsetX, GUTTER)));
    }, { passive: false });
    const acts = {
      in: () => zoom(0.5), out: () => zoom(2), left: () => pan(-0.25), right: () => pan(0.25),
      home: () => view(...home), all: () => view(-0.01 * data.seconds, 1.01 * data.seconds),
    };
    const keys = { "+": "in", "=": "in", "-": "out", ArrowLeft: "left", ArrowRight: "right", Home: "home", End: "all" };
    place.addEventListener("keydown", (event) => {
      const act = keys[event.key];
      if (!act || event.ctrlKey || event.metaKey) return;
      event.preventDefault();
      acts[act]();
    });
    for (const button of place.closest("section").querySelectorAll("button[data-act]")) {
      button.addEventListener("click", () => acts[button.dataset.act]());
    }
    const again = () => { theme(); fit(); draw(); };
    new ResizeObserver(() => { fit(); draw(); }).observe(place);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
    again();
    place.dataset.drawn = String(data.length);
  }
  for (const place of document.querySelectorAll(".viewer")) {
    try {
      viewer(place);
    } catch (error) {
      root.dataset.errors = `${root.dataset.errors || ""}\n${place.dataset.source}: ${error}`;
      throw error;
    }
  }
})();
