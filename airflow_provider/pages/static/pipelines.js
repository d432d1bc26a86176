// The one script of the pipelines page: draws plots, refreshes the page, and starts runs of a control DAG by Airflow's own REST API.
"use strict";
(() => {
  const REFRESH_MS = 5000;
  const ARMED_MS = 6000;
  const COLOURS = ["#4c78a8", "#f58518", "#54a24b", "#b279a2", "#9d755d", "#72b7b2", "#eeca3b", "#ff9da6"];
  const FAILED = "#e45756";
  const news = document.getElementById("news");

  const formats = {
    s: (value) => `${value.toFixed(value < 10 ? 2 : 0)} s`,
    rows: (value) => Math.round(value).toLocaleString("en"),
    bytes: (value) => {
      let unit = 0;
      for (; value >= 1000 && unit < 4; unit += 1) value /= 1000;
      return `${value.toFixed(unit && value < 10 ? 1 : 0)} ${["B", "kB", "MB", "GB", "TB"][unit]}`;
    },
  };

  function draw(place) {
    const plot = JSON.parse(place.dataset.plot);
    const format = (_, value) => (value == null ? "" : formats[plot.unit](value));
    const ink = () => getComputedStyle(document.documentElement).color;
    const grid = { stroke: "#8884", width: 1 };
    const options = {
      width: place.clientWidth || 320,
      height: 200,
      series: [{}].concat(plot.series.map((series, number) => ({
        label: series.label,
        stroke: series.points ? FAILED : COLOURS[number % COLOURS.length],
        value: format,
        paths: series.points ? () => null : undefined,
        points: series.points ? { show: true, size: 8, fill: FAILED } : undefined,
      }))),
      axes: [
        { stroke: ink, grid, ticks: grid },
        { stroke: ink, grid, ticks: grid, size: 70, values: (_, values) => values.map((value) => formats[plot.unit](value)) },
      ],
    };
    place.plot = new uPlot(options, [plot.x].concat(plot.series.map((series) => series.values)), place);
  }

  // Airflow shows the page in a frame that may not lead out of it: such links would show an Airflow inside Airflow.
  function unlink() {
    if (window.top === window) return;
    for (const link of document.querySelectorAll("a.outside")) link.removeAttribute("href");
  }

  function drawAll() {
    for (const place of document.querySelectorAll("[data-plot]")) if (!place.querySelector(".uplot")) draw(place);
    unlink();
  }

  // The theme has changed, in Airflow or in the system.
  function drawAgain() {
    for (const place of document.querySelectorAll("[data-plot]")) place.plot.redraw(false);
  }

  function name(element) {
    return element.getAttribute("href") ?? `${element.dataset.action} ${element.dataset.savepoint}`;
  }

  async function refresh() {
    if (document.hidden || document.querySelector(".armed, [aria-busy]") || !getSelection().isCollapsed) return;
    const answer = await fetch(location.href, { credentials: "same-origin" }).catch(() => null);
    if (answer === null || !answer.ok) {
      news.textContent = answer === null ? "Airflow does not answer. This page is not up to date." : `This page is not up to date: Airflow answers with ${answer.status}.`;
      return;
    }
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html").querySelector("main");
    const main = document.querySelector("main");
    if (fresh === null) return;
    const focused = main.contains(document.activeElement) ? name(document.activeElement) : null;
    const old = new Map([...main.querySelectorAll("[data-plot]")].map((place) => [place.dataset.plot, place]));
    for (const place of fresh.querySelectorAll("[data-plot]")) {
      const same = old.get(place.dataset.plot);
      if (same) place.replaceWith(same);
    }
    main.replaceWith(document.adoptNode(fresh));
    if (focused !== null) [...document.querySelectorAll("main a, main button")].find((each) => name(each) === focused)?.focus({ preventScroll: true });
    drawAll();
    if (news.textContent.startsWith("Airflow does not") || news.textContent.startsWith("This page is not")) news.textContent = "";
  }

  function arm(button) {
    const label = button.textContent;
    button.textContent = button.dataset.asks;
    button.classList.add("armed");
    setTimeout(() => {
      button.textContent = label;
      button.classList.remove("armed");
    }, ARMED_MS);
  }

  async function act(button) {
    const { dagRuns, runs } = button.closest("[data-dag-runs]").dataset;
    const conf = { action: button.dataset.action };
    if (button.dataset.savepoint) conf.savepoint = button.dataset.savepoint;
    button.setAttribute("aria-busy", "true");
    news.textContent = `Asking Airflow for a run: ${conf.action}.`;
    try {
      const answer = await fetch(dagRuns, {
        method: "POST",
        credentials: "same-origin",
        headers: { "Content-Type": "application/json" },
        body: JSON.stringify({ logical_date: null, conf }),
      });
      const found = await answer.json().catch(() => ({}));
      if (!answer.ok) {
        const detail = typeof found.detail === "string" ? found.detail : JSON.stringify(found.detail ?? "");
        news.textContent = `Airflow has refused it (${answer.status}). ${detail}`;
      } else if (window.top === window) {
        location.assign(runs + encodeURIComponent(found.dag_run_id));
      } else {
        news.textContent = `Run ${found.dag_run_id} of DAG ${found.dag_id} has started.`;
      }
    } catch {
      news.textContent = "Airflow does not answer. Look at the runs of the control DAG before you try again.";
    } finally {
      button.removeAttribute("aria-busy");
      button.blur();
    }
  }

  document.addEventListener("click", (event) => {
    const button = event.target.closest("button[data-action]");
    if (button === null || button.hasAttribute("aria-busy")) return;
    if (button.dataset.asks && !button.classList.contains("armed")) arm(button);
    else act(button);
  });
  drawAll();
  addEventListener("storage", drawAgain);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAgain);
  setInterval(refresh, REFRESH_MS);
})();
