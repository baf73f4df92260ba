// Draws the charts of the page: replaces names of colours by the theme's, and follows its changes.
"use strict";
(() => {
  const charts = JSON.parse(document.getElementById("charts").textContent);
  const root = document.documentElement;
  const STRIP = 30;
  const errors = [];
  const fail = (what) => {
    errors.push(String(what));
    root.dataset.errors = errors.join("\n");
  };
  window.addEventListener("error", (event) => fail(event.message));
  window.addEventListener("unhandledrejection", (event) => fail(event.reason));

  const touch = matchMedia("(pointer: coarse)").matches;
  const narrow = () => innerWidth < 620;
  const config = (card) => {
    const zoomed = card.querySelector("select") !== null;
    const hidden = card.parentElement.matches(".grid") || (narrow() && !zoomed);
    return {
      responsive: true, displaylogo: false, displayModeBar: hidden ? false : "hover",
      modeBarButtons: [["toImage"], ["zoom2d", "pan2d"], ["zoomIn2d", "zoomOut2d", "resetScale2d"]],
    };
  };

  function themed(value, style) {
    if (typeof value === "string") return value.startsWith("--") ? style.getPropertyValue(value).trim() : value;
    if (Array.isArray(value)) {
      return typeof value.at(-1) === "number" ? value : value.map((item) => themed(item, style));
    }
    if (value === null || typeof value !== "object") return value;
    return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, themed(item, style)]));
  }

  function axis(own) {
    return {
      gridcolor: "--line", linecolor: "--line", zerolinecolor: "--soft", zeroline: false, automargin: true,
      tickfont: { color: "--soft", size: 12 }, ...own,
      title: { standoff: 10, font: { color: "--soft", size: 12.5 }, ...own.title },
    };
  }

  // Below on a phone; else above, under the strip in which the buttons appear.
  function legend(height) {
    const place = narrow() ? { y: 0, yanchor: "bottom" } : { y: 1 - STRIP / height, yanchor: "top" };
    const font = { color: "--ink", size: narrow() ? 11 : 12.5 };
    return { orientation: "h", x: 0, xanchor: "left", yref: "container", font, ...place };
  }

  function whole(layout, card, height) {
    const strip = !card.parentElement.matches(".grid") && !(narrow() && !card.querySelector("select"));
    return {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", height,
      margin: { l: 8, r: 14, t: strip ? STRIP + 4 : 8, b: 36 }, dragmode: touch ? false : "zoom",
      hoverlabel: { bgcolor: "--paper", bordercolor: "--line", font: { color: "--ink", size: 13 }, align: "left" },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: "--soft", activecolor: "--accent" },
      ...layout,
      font: { family: getComputedStyle(document.body).fontFamily, color: "--ink", size: 13 },
      legend: { ...legend(height), ...layout.legend },
      xaxis: axis(layout.xaxis), yaxis: axis(layout.yaxis),
    };
  }

  function draw(card) {
    const drawings = charts[card.dataset.chart];
    const choice = card.querySelector("select");
    const chosen = drawings[choice ? choice.selectedIndex : 0];
    const place = card.querySelector(".chart");
    const style = getComputedStyle(root);
    const layout = whole(chosen.layout, card, place.clientHeight);
    return Plotly.react(place, themed(chosen.data, style), themed(layout, style), config(card))
      .then(() => { card.dataset.drawn = "yes"; })
      .catch((error) => fail(`${card.dataset.chart}: ${error}`));
  }

  const cards = [...document.querySelectorAll("[data-chart]")];
  const pause = () => new Promise((done) => setTimeout(done, 0));
  async function drawAll() {
    for (const card of cards) {
      await draw(card);
      await pause();
    }
    root.dataset.drawn = String(cards.filter((card) => card.dataset.drawn).length);
  }

  for (const card of cards) card.querySelector("select")?.addEventListener("change", () => draw(card));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  drawAll();
})();
