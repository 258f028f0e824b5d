// Draws the figures that the page carries as JSON, in the colours of the theme, and runs the level and tensor switches.
(() => {
  "use strict";
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  // Plotly's bar offers to send a chart to its makers' server; this page sends nothing anywhere.
  const unwanted = ["sendChartToCloud", "select2d", "lasso2d", "autoScale2d"];
  const config = { displaylogo: false, modeBarButtonsToRemove: unwanted };
  const hidden = new Set();
  const timelines = figures.filter((figure) => figure.kind === "timeline");
  let level = "dram_read";
  let sameScale = false;

  // A copy of `value` with every "var(--x)" replaced by the theme's colour or font.
  function themed(value, style) {
    if (typeof value === "string") {
      return value.replace(/var\((--[\w-]+)\)/g, (_, name) => style.getPropertyValue(name).trim());
    }
    if (Array.isArray(value)) return typeof value[0] === "number" ? value : value.map((item) => themed(item, style));
    if (value && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, themed(item, style)]));
    }
    return value;
  }

  // Kernel names only where they fit before the next kernel starts.
  function labelSpans(figure, layout, end) {
    const { spans } = figure.meta;
    const plot = layout.width - layout.margin.l - layout.margin.r;
    layout.annotations.forEach((note, i) => {
      const room = ((spans[i][2] - spans[i][1]) / end) * plot - 4;
      const fits = Math.floor(room / 6.2);
      const name = spans[i][0];
      note.text = (fits >= name.length ? name : fits >= 4 ? name.slice(0, fits - 1) + "…" : "").replace(/</g, "&lt;");
    });
  }

  // The highest stack (GB/s) of a timeline at the chosen level.
  function tallest(figure) {
    const shown = figure.data.filter((trace) => trace.meta.level === level && !hidden.has(trace.meta.tensor));
    return shown.length ? Math.max(...shown[0].y.map((_, i) => shown.reduce((sum, trace) => sum + trace.y[i], 0))) : 0;
  }

  function prepare(figure, element) {
    const style = getComputedStyle(document.documentElement);
    const data = themed(figure.data, style);
    const layout = themed(figure.layout, style);
    const width = element.clientWidth;
    layout.width = width;
    if (figure.kind === "timeline") {
      data.forEach((trace) => {
        if (trace.meta.level) trace.visible = trace.meta.level === level && !hidden.has(trace.meta.tensor);
      });
      layout.yaxis.title.text = `${figure.meta.levels[level]} (GB/s)`;
      const end = sameScale ? Math.max(...timelines.map((other) => other.meta.end)) : figure.meta.end;
      layout.xaxis.range = [0, end];
      if (sameScale) layout.yaxis.range = [0, 1.05 * Math.max(...timelines.map(tallest)) || 1];
      labelSpans(figure, layout, end);
    }
    if (figure.kind === "flow" && width < 520) {
      const style = getComputedStyle(document.documentElement);
      data.forEach((trace) => {
        trace.orientation = "v";
        Object.assign(trace.node, { pad: 104, thickness: 17, color: style.getPropertyValue("--line").trim() });
        trace.textfont.size = 11;
      });
      Object.assign(layout, { height: 540, margin: { ...layout.margin, r: 84 } });
    } else if (figure.kind === "flow" && width < 960) {
      data.forEach((trace) => { trace.node.label = figure.meta.short; });
    }
    if (figure.kind === "roofline" && width < 700) {
      const rows = figure.data.length;
      layout.legend.y = -0.16;
      layout.height = 380 + rows * 19;
    }
    return [data, layout];
  }

  function draw(figure) {
    const element = document.getElementById(figure.id);
    if (element && figure.data.length) {
      const [data, layout] = prepare(figure, element);
      element.dataset.width = element.clientWidth;
      return Plotly.react(element, data, layout, config);
    }
    return null;
  }

  const drawAll = (kind) => Promise.all(figures.filter((f) => !kind || f.kind === kind).map(draw));

  // The bins of one timeline as a table, made when its <details> is opened.
  function fillBins(details) {
    const figure = figures.find((item) => item.id === details.dataset.figure);
    const shown = figure.data.filter((trace) => (trace.meta.level || level) === level);
    const edges = figure.data[0].x;
    const table = document.createElement("table");
    const head = table.createTHead().insertRow();
    const units = (trace) => (trace.meta.level ? `${trace.name} (GB/s)` : `${trace.name} (%)`);
    ["Start (µs)", ...shown.map(units)].forEach((text) => {
      const cell = head.appendChild(document.createElement("th"));
      cell.scope = "col";
      cell.textContent = text;
    });
    const body = table.createTBody();
    for (let bin = 0; bin + 1 < edges.length; bin += 1) {
      const row = body.insertRow();
      row.insertCell().textContent = edges[bin].toFixed(2);
      shown.forEach((trace) => {
        const value = trace.y[bin];
        row.insertCell().textContent = value === null ? "–" : (trace.meta.level ? value : 100 * value).toFixed(1);
      });
    }
    const caption = table.createCaption();
    caption.textContent = `${figure.meta.levels[level]} per bin`;
    details.querySelector(".scroll").replaceChildren(table);
  }

  function refreshTimelines() {
    document.querySelectorAll("details[data-figure][open]").forEach(fillBins);
    return drawAll("timeline");
  }

  document.querySelectorAll("button[data-level]").forEach((button) => {
    button.addEventListener("click", () => {
      level = button.dataset.level;
      document.querySelectorAll("button[data-level]").forEach((other) => {
        other.setAttribute("aria-pressed", String(other === button));
      });
      refreshTimelines();
    });
  });
  document.querySelectorAll("button[data-tensor]").forEach((button) => {
    button.addEventListener("click", () => {
      const name = button.dataset.tensor;
      if (!hidden.delete(name)) hidden.add(name);
      button.setAttribute("aria-pressed", String(!hidden.has(name)));
      refreshTimelines();
    });
  });
  document.querySelectorAll("button[data-same-scale]").forEach((button) => {
    button.addEventListener("click", () => {
      sameScale = !sameScale;
      button.setAttribute("aria-pressed", String(sameScale));
      refreshTimelines();
    });
  });
  document.querySelectorAll("details[data-figure]").forEach((details) => {
    details.addEventListener("toggle", () => { if (details.open) fillBins(details); });
  });
  dark.addEventListener("change", () => drawAll());
  let timer = 0;
  window.addEventListener("resize", () => {
    clearTimeout(timer);
    timer = setTimeout(() => figures.forEach((figure) => {
      const element = document.getElementById(figure.id);
      if (element && String(element.clientWidth) !== element.dataset.width) draw(figure);
    }), 120);
  });
  drawAll().then(() => { document.documentElement.dataset.drawn = "true"; });
})();
