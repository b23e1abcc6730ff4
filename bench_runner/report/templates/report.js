"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const byId = (id) => document.getElementById(id);
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const DASHES = { measured: "solid", ideal: "dot", predicted: "dash", fit: "dash" };
  const SYMBOLS = ["square", "diamond", "circle", "triangle-up", "x", "star"];
  const coarse = matchMedia("(pointer: coarse)").matches; // a finger scrolls, it does not zoom into plots
  const MANY = 40; // above this, machines' names do not fit along an axis

  // --- Plotly: unpacked when the first plot comes into view

  let plotly;
  const load = () => (plotly ??= (async () => {
    const bytes = Uint8Array.from(atob(byId("plotly").textContent), (c) => c.charCodeAt(0));
    const unpacked = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    const script = document.createElement("script");
    script.textContent = await new Response(unpacked).text();
    document.head.append(script);
    return window.Plotly;
  })());

  // Plotly reads markup in labels; names are text.
  const plain = (text) => String(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
  const sizeName = (bytes) => {
    const units = ["B", "KiB", "MiB", "GiB", "TiB"];
    const step = Math.max(0, Math.floor(Math.log2(Math.max(bytes, 1)) / 10));
    return `${+(bytes / 1024 ** step).toPrecision(4)} ${units[step]}`;
  };

  const style = () => {
    const css = getComputedStyle(document.documentElement);
    const value = (name) => css.getPropertyValue(`--${name}`).trim();
    return { text: value("text"), line: value("line"), back: value("back"), color: (n) => value(`c${n % 6}`) };
  };

  const axis = (look, label, more) => ({
    title: { text: plain(label), standoff: 8 }, gridcolor: look.line, linecolor: look.line, zeroline: false,
    automargin: true, ...more,
  });

  const bytesAxis = (series) => {
    const sizes = [...new Set(series.flatMap((one) => one.x))].sort((a, b) => a - b);
    const step = Math.ceil(sizes.length / 6);
    const shown = sizes.filter((_, place) => place % step === 0);
    return { type: "log", tickvals: shown, ticktext: shown.map(sizeName) };
  };

  const decades = (series) => {
    const values = series.flatMap((one) => one.y);
    return Math.log10(Math.max(...values) / Math.min(...values));
  };

  const traces = (plot, look) => {
    const { kind, series } = plot;
    if (kind === "matrix") {
      const text = series.map((one) => one.y.map((v) => (v === null ? "?" : String(+v.toPrecision(3)))));
      return [{
        type: "heatmap", x: series[0].x, y: series.map((one) => one.name), z: series.map((one) => one.y), text,
        texttemplate: "%{text}", hovertemplate: "%{y}, %{x}: %{z} GiB<extra></extra>", showscale: false, zmin: 0,
        xgap: 2, ygap: 2, colorscale: [[0, look.back], [1, look.color(2)]],
      }];
    }
    if (kind === "stack") {
      return series.map((one) => ({
        type: "bar", name: plain(one.name), x: one.x.map(plain), y: one.y, marker: { color: look.color(one.color + 2) },
        hovertemplate: `%{x}<br>${plain(one.name)}: %{y:.4g} ms<extra></extra>`,
      }));
    }
    return series.map((one) => ({
      type: "scatter", name: plain(one.name), x: one.x, y: one.y,
      mode: one.role === "measured" || one.role === "predicted" ? "lines+markers" : "lines",
      line: { color: one.role === "ideal" ? look.text : look.color(one.color), dash: DASHES[one.role],
        width: one.role === "measured" ? 2.5 : 1.5 },
      marker: { symbol: SYMBOLS[one.color % SYMBOLS.length] + (one.role === "predicted" ? "-open" : ""), size: 8 },
      opacity: one.role === "ideal" ? 0.6 : 1,
      ...(plot.x_bytes ? { text: one.x.map(sizeName), hovertemplate: `%{text}: %{y:.4g} ${plain(plot.y_label)}` }
        : { hovertemplate: `%{x}: %{y:.4g} ${plain(plot.y_label)}` }),
    }));
  };

  const layout = (plot, look) => {
    const x = plot.x_bytes ? bytesAxis(plot.series)
      : plot.kind === "lines" && plot.x_label === "devices"
        ? { tickvals: [...new Set(plot.series.flatMap((one) => one.x))], range: null } : {};
    const y = plot.kind === "matrix" ? { autorange: "reversed", showgrid: false }
      : plot.y_log ? { type: "log", dtick: decades(plot.series) < 2 ? "D2" : 1 } : { rangemode: "tozero" };
    if (plot.kind === "matrix") x.showgrid = false;
    return {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", barmode: "stack", autosize: true,
      font: { color: look.text, size: 12, family: "system-ui, sans-serif" },
      margin: { l: 8, r: 12, t: 8, b: 8 }, hovermode: "closest", dragmode: coarse ? false : "zoom", showlegend: plot.kind !== "matrix",
      legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0 },
      hoverlabel: { bgcolor: look.back, font: { color: look.text } },
      xaxis: axis(look, plot.x_label, x), yaxis: axis(look, plot.kind === "matrix" ? "" : plot.y_label, y),
      ...(plot.layout ? plot.layout(look) : {}),
    };
  };

  const drawn = new Map(); // canvas → plot
  const draw = async (canvas, plot) => {
    drawn.set(canvas, plot);
    const Plotly = await load();
    const look = style();
    const made = plot.traces ? plot.traces(look) : traces(plot, look);
    await Plotly.react(canvas, made, layout(plot, look), {
      responsive: true, displayModeBar: false,
    });
    canvas.dataset.drawn = "yes";
  };
  const redraw = () => Promise.all([...drawn].map(([canvas, plot]) => draw(canvas, plot)));

  const seen = new IntersectionObserver((entries) => {
    for (const { isIntersecting, target } of entries) {
      if (isIntersecting) { seen.unobserve(target); drawFigure(target); }
    }
  }, { rootMargin: "400px" });
  const drawFigure = (figure) => {
    const plot = data.figures[figure.dataset.plot];
    const canvas = figure.querySelector(".canvas");
    if (plot.kind === "matrix") canvas.style.height = `${4 + 2 * plot.series.length}rem`;
    draw(canvas, plot);
  };
  all("figure[data-plot]").forEach((figure) => seen.observe(figure));

  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  matchMedia("print").addEventListener("change", redraw);

  // --- filter

  const visible = new Set(data.machines.keys());
  const filter = () => {
    const words = byId("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
    data.machines.forEach((machine, m) => {
      const text = machine.search;
      if (words.every((word) => text.includes(word))) visible.add(m); else visible.delete(m);
    });
    for (const element of all("[data-machine]")) element.hidden = !visible.has(+element.dataset.machine);
    byId("shown").value = `${visible.size} of ${data.machines.length}`;
    compare();
  };

  // --- machines against each other

  const compared = () => {
    const values = data.values[+byId("measure").value];
    const { direction } = data.measures[+byId("measure").value];
    const rows = Object.entries(values).map(([m, value]) => ({ ...data.machines[m], m: +m, value }));
    const sign = direction === "lower" ? 1 : -1;
    return rows.filter((row) => visible.has(row.m)).sort((a, b) => sign * (a.value - b.value));
  };
  const middle = (rows) => {
    const sorted = rows.map((row) => row.value).sort((a, b) => a - b);
    const half = sorted.length / 2;
    return sorted.length % 2 ? sorted[Math.floor(half)] : (sorted[half - 1] + sorted[half]) / 2;
  };
  const difference = (value, median) => {
    const percent = 100 * (value / median - 1);
    return `${percent < 0 ? "−" : "+"}${Math.abs(percent).toFixed(1)}%`;
  };
  const cell = (row, text, kind = "td", number = false) => {
    const element = document.createElement(kind);
    element.append(text);
    if (number) element.className = "number";
    if (kind === "th") element.scope = "row";
    row.append(element);
  };

  const compare = () => {
    if (!byId("measure")) return;
    const measure = data.measures[+byId("measure").value];
    const rows = compared();
    const median = middle(rows);
    byId("compare-unit").textContent = `${measure.unit} (${measure.direction} is better)`;
    byId("compare-table").tBodies[0].replaceChildren(...rows.map((entry) => {
      const row = document.createElement("tr");
      const link = document.createElement("a");
      link.href = `#m${entry.m}`;
      link.textContent = entry.name;
      cell(row, link, "th");
      cell(row, entry.accelerator);
      cell(row, entry.value.toLocaleString("en", { maximumSignificantDigits: 4 }), "td", true);
      cell(row, difference(entry.value, median), "td", true);
      return row;
    }));
    const canvas = byId("compare-plot").querySelector(".canvas");
    const few = rows.length <= MANY;
    canvas.style.height = few ? `${Math.max(7, 4 + 1.6 * rows.length)}rem` : "22rem";
    const places = rows.map((_, place) => place + 1);
    const names = rows.map((row) => plain(row.name));
    draw(canvas, {
      kind: "lines", x_label: few ? measure.unit : "machines, best first", y_label: few ? "" : measure.unit, series: [],
      traces: (look) => [{
        type: few ? "bar" : "scatter", mode: "markers", orientation: few ? "h" : undefined, text: names,
        x: few ? rows.map((row) => row.value) : places, y: few ? places : rows.map((row) => row.value),
        marker: { color: look.color(2), size: 7 }, textposition: "none",
        hovertemplate: `%{text}: %{${few ? "x" : "y"}:.4g} ${plain(measure.unit)}<extra></extra>`,
      }],
      layout: () => ({
        showlegend: false,
        ...(few ? { yaxis: { tickvals: places, ticktext: names, autorange: "reversed", automargin: true } } : {}),
      }),
    });
  };

  // --- downloads

  const quoted = (value) => {
    const text = value === null || value === undefined ? "" : String(value);
    return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  const csv = (rows) => rows.map((row) => row.map(quoted).join(",")).join("\r\n") + "\r\n";
  const rowsOf = (button) => {
    const id = button.dataset.csv;
    if (id === "compare") {
      const { label, unit } = data.measures[+byId("measure").value];
      return [["machine", "accelerators", "measure", "unit", "value"],
        ...compared().map((row) => [row.name, row.accelerator, label, unit, row.value])];
    }
    const plots = Array.from({ length: +button.dataset.count }, (_, place) => data.figures[`${id}-${place}`]);
    if (!plots.length) {
      const table = button.closest(".block").querySelector("table");
      return [...table.rows].map((row) => [...row.cells].map((each) => each.textContent));
    }
    return [["figure", "series", "role", "x", "y", "unit"], ...plots.flatMap((plot) => plot.series.flatMap((one) =>
      one.x.map((x, place) => [plot.title, one.name, one.role, x, one.y[place], plot.y_label])))];
  };
  document.addEventListener("click", (event) => {
    const button = event.target.closest("button.csv");
    if (!button) return;
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([csv(rowsOf(button))], { type: "text/csv" }));
    link.download = `${button.dataset.csv}.csv`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 60000);
  });

  // --- links to a machine open it

  const openTarget = () => {
    const target = location.hash.length > 1 && byId(location.hash.slice(1));
    if (target && target.tagName === "DETAILS") target.open = true;
  };
  addEventListener("hashchange", openTarget);
  byId("filter").addEventListener("input", filter);
  byId("measure")?.addEventListener("change", compare);
  openTarget();
  filter();
})();
