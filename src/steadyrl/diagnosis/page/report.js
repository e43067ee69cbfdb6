"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const NS = "http://www.w3.org/2000/svg";
const hues = { nothing: "--raw", "recursive-epsilon": "--accent", anytime: "--good", stagger: "#3f7fbf", "pre-roll": "#8f6bb3", "uniform-pre-roll": "#b08900" };
const colour = (name) => ((hues[name] || "").startsWith("--") ? css(hues[name]) : hues[name] || "#8a8f94");

function node(name, attributes, parent, text) {
  const made = document.createElementNS(NS, name);
  for (const [key, value] of Object.entries(attributes || {})) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  if (parent) parent.appendChild(made);
  return made;
}

// One picture: series are {x, y, low, high, colour, dash}; marks are horizontal lines {y, text}.
function chart(holder, options) {
  const width = Math.max(260, holder.clientWidth || 640), height = options.height || 300;
  const left = 52, right = 14, top = 12, bottom = 40;
  const svg = node("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": options.label });
  const xs = options.series.flatMap((s) => [s.x[0], s.x[s.x.length - 1]]);
  const xmin = options.xmin !== undefined ? options.xmin : Math.min(...xs), xmax = options.xmax !== undefined ? options.xmax : Math.max(...xs);
  const log = options.log;
  let [ymin, ymax] = options.range;
  const fy = (y) => (log ? Math.log10(Math.max(y, ymin)) : y);
  const X = (x) => left + ((x - xmin) / (xmax - xmin || 1)) * (width - left - right);
  const Y = (y) => top + ((fy(ymax) - fy(Math.min(Math.max(y, ymin), ymax))) / (fy(ymax) - fy(ymin) || 1)) * (height - top - bottom);
  for (const y of ticks(ymin, ymax, log)) {
    node("line", { x1: left, x2: width - right, y1: Y(y), y2: Y(y), class: "axis" }, svg);
    node("text", { x: left - 6, y: Y(y) + 4, "text-anchor": "end" }, svg, short(y));
  }
  for (const x of ticks(xmin, xmax, false, Math.max(2, Math.floor(width / 110)))) {
    node("text", { x: X(x), y: height - bottom + 16, "text-anchor": "middle" }, svg, short(x));
  }
  node("text", { x: (left + width - right) / 2, y: height - 4, "text-anchor": "middle" }, svg, options.xlabel);
  for (const mark of options.marks || []) {
    node("line", { x1: left, x2: width - right, y1: Y(mark.y), y2: Y(mark.y), stroke: css("--soft"), "stroke-dasharray": "5 4" }, svg);
    node("text", { x: width - right, y: Y(mark.y) - 4, "text-anchor": "end" }, svg, mark.text);
  }
  if (options.bound) {
    const b = options.bound, edge = b.x.map((x, i) => `${X(x).toFixed(1)},${Y(b.y[i]).toFixed(1)}`);
    const floor = [`${X(b.x[b.x.length - 1]).toFixed(1)},${Y(ymin)}`, `${X(b.x[0]).toFixed(1)},${Y(ymin)}`];
    node("polygon", { points: edge.concat(floor).join(" "), fill: css("--soft"), opacity: 0.22, class: "bound" }, svg);
  }
  for (const s of options.series) {
    if (s.bars) {
      const w = Math.max(1, 0.92 * (X(xmin + s.bars) - X(xmin)));
      s.x.forEach((x, i) => node("rect", { x: X(x) - w / 2, y: Y(s.y[i]), width: w, height: Math.max(0, Y(ymin) - Y(s.y[i])), fill: s.colour }, svg));
      continue;
    }
    if (s.low) {
      const up = s.x.map((x, i) => `${X(x).toFixed(1)},${Y(s.high[i]).toFixed(1)}`);
      const down = s.x.map((x, i) => `${X(x).toFixed(1)},${Y(s.low[i]).toFixed(1)}`).reverse();
      node("polygon", { points: up.concat(down).join(" "), fill: s.colour, opacity: 0.18 }, svg);
    }
    const path = s.x.map((x, i) => `${X(x).toFixed(1)},${Y(s.y[i]).toFixed(1)}`).join(" ");
    node("polyline", { points: path, class: "curve", stroke: s.colour, "stroke-dasharray": s.dash || "none" }, svg);
  }
  holder.replaceChildren(svg);
}

function ticks(low, high, log, count) {
  if (log) {
    const found = [];
    for (let e = Math.ceil(Math.log10(low) - 1e-9); e <= Math.log10(high) + 1e-9; e++) found.push(10 ** e);
    return found;
  }
  const raw = (high - low) / (count || 5) || 1, unit = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((m) => m * unit).find((s) => s >= raw);
  const found = [];
  for (let x = Math.ceil(low / step) * step; x <= high + 1e-9 * step; x += step) found.push(Math.abs(x) < 1e-12 ? 0 : x);
  return found;
}

function short(x) {
  const size = Math.abs(x);
  if (size !== 0 && (size < 0.001 || size >= 1e5)) return x.toExponential(0);
  return String(Number(x.toPrecision(4)));
}

// The renewal recursion with a geometric detour, in units of `unit` steps: u(t) = e u(t-1) + (1-e) v(t), v = f * u.
function perturbed(epsilon, horizon) {
  const f = data.lengths.f, n = f.length - 1, unit = data.lengths.unit;
  const detour = epsilon / (1 - epsilon) / unit, e = detour / (1 + detour);
  const survival = new Float64Array(n + 2);
  for (let k = n; k >= 1; k--) survival[k] = survival[k + 1] + f[k];
  let mean = 0;
  for (let k = 1; k <= n; k++) mean += survival[k];
  const support = [];
  f.forEach((p, k) => { if (p > 0) support.push(k); });
  const u = new Float64Array(horizon + 1), real = new Float64Array(horizon + 1), distance = new Float64Array(horizon + 1);
  for (let t = 0; t <= horizon; t++) {
    let v = t === 0 ? 1 : 0;
    for (const k of support) { if (k > t) break; v += f[k] * u[t - k]; }
    u[t] = (t ? e * u[t - 1] : 0) + (1 - e) * v;
    const last = Math.min(t, n);
    for (let k = 1; k <= last; k++) real[t] += u[t - k] * survival[k];
    let total = 0;
    if (t > 0 && real[t] > 0) {
      for (let k = 1; k <= n; k++) total += Math.abs((k <= t ? u[t - k] / real[t] : 0) - 1 / mean) * survival[k];
      distance[t] = Math.min(total / 2, 1);
    } else distance[t] = 1;
  }
  return { u, distance, mean };
}

const state = { epsilon: data.epsilon, hidden: new Set(data.strategies.filter((s) => s.hidden).map((s) => s.name)) };
const AEL = 10;

function live() {
  if (state.epsilon === null) return null;
  const unit = data.lengths.unit, horizon = Math.ceil((AEL * data.mean) / unit);
  return { ...perturbed(state.epsilon, horizon), horizon };
}

function drawDistance() {
  const holder = document.getElementById("distance");
  if (!holder) return;
  drawCurves(holder, data.strategies.filter((s) => !state.hidden.has(s.name)), null, "Distance to the long run over time", data.bound);
}

function drawPaper(now) {
  const holder = document.getElementById("paper-distance");
  if (holder) drawCurves(holder, data.strategies.filter((s) => s.beside), now, "Distance to the steady state, perturbed");
}

function drawCurves(holder, shown, now, label, bound) {
  // The best-ranked comes last, on top of those that it equals.
  const series = shown.map((s) => ({ x: s.x, y: s.y, low: s.low, high: s.high, colour: colour(s.name) })).reverse();
  const floor = data.tolerance / 20;
  if (now) {
    const scale = data.lengths.unit / data.mean, x = [], y = [];
    const stride = Math.max(1, Math.floor(now.horizon / 400));
    for (let t = 1; t <= now.horizon; t += stride) { x.push(t * scale); y.push(now.distance[t]); }
    series.push({ x, y, colour: css("--ink"), dash: "7 4" });
  }
  if (!series.length) series.push({ x: [0, AEL], y: [1, 1], colour: "none" });
  chart(holder, {
    series, bound, log: true, range: [floor, 1], xmin: 0, xlabel: "time in mean episode lengths", height: 360, label, marks: [{ y: data.tolerance, text: "tolerance " + short(data.tolerance) }],
  });
}

function showKnob(now) {
  if (!now) return;
  let last = 0;
  for (let t = 1; t <= now.horizon; t++) if (now.distance[t] >= data.tolerance) last = t;
  const steps = (last + 1) * data.lengths.unit, detour = state.epsilon / (1 - state.epsilon);
  document.getElementById("epsilon-value").textContent = state.epsilon.toFixed(4);
  document.getElementById("epsilon").setAttribute("aria-valuetext", "epsilon " + state.epsilon.toFixed(4));
  document.getElementById("tstar").textContent =
    last >= now.horizon ? `more than ${AEL} E[T]` : `${Math.round(steps).toLocaleString("en")} steps = ${(steps / data.mean).toPrecision(3)} E[T]`;
  document.getElementById("null-share").textContent = ((100 * detour) / (detour + data.mean)).toFixed(1) + "%";
}

function drawMarginals(now, prefix) {
  const holder = document.getElementById(prefix + "marginals");
  if (!data.marginals || !holder) return;
  data.marginals.dimensions.forEach((d, j) => {
    const place = document.getElementById(prefix + "marginal-" + j);
    const series = [{ x: data.marginals.x, y: d.raw, low: d.low, high: d.high, colour: css("--raw") }];
    if (prefix) series.push({ x: data.marginals.x, y: d.perturbed, low: d.perturbedLow, high: d.perturbedHigh, colour: css("--accent") });
    if (now) {
      const n = d.g.length - 1, unit = data.lengths.unit, x = [], y = [];
      const stride = Math.max(1, Math.floor(now.horizon / 150));
      for (let t = stride; t <= now.horizon; t += stride) {
        let top = 0, share = 0;
        for (let k = 1; k <= Math.min(t, n); k++) { top += now.u[t - k] * d.g[k]; share += now.u[t - k] * data.marginals.survival[k]; }
        if (share > 0) { x.push((t * unit) / data.mean); y.push(top / share); }
      }
      series.push({ x, y, colour: css("--ink"), dash: "7 4" });
    }
    const all = series.flatMap((s) => s.y.filter((v) => Number.isFinite(v)));
    const low = Math.min(...all), high = Math.max(...all), pad = 0.08 * (high - low || 1);
    series.forEach((s) => { s.y = s.y.map((v) => (Number.isFinite(v) ? v : d.mean)); });
    chart(place, {
      series, range: [low - pad, high + pad], xmin: 0, height: 200, xlabel: "time in mean episode lengths",
      label: `Mean of observed value ${d.index} over time`, marks: [{ y: d.mean, text: "" }],
    });
  });
  holder.setAttribute("data-drawn", "yes");
}

function drawLengths() {
  const h = data.histogram;
  chart(document.getElementById("lengths"), {
    series: [{ x: h.x, y: h.y, bars: h.width, colour: css("--accent") }], range: [0, Math.max(...h.y) * 1.05], height: 220,
    xmin: h.x[0] - h.width, xmax: h.x[h.x.length - 1] + h.width, xlabel: "steps of an episode, the reset included", label: "Distribution of episode lengths",
  });
}

function drawLog() {
  const holder = document.getElementById("log");
  if (!holder || !data.log || !data.log.together.x.length) return;
  const series = [{ ...data.log.together, colour: css("--raw") }];
  if (data.log.steady.x.length) series.push({ ...data.log.steady, colour: css("--raw"), dash: "7 4" });
  const top = Math.max(1, ...series.flatMap((s) => s.y));
  chart(holder, {
    series, range: [0, 1.08 * top], xmin: 0, height: 240, xlabel: "time in mean episode lengths", marks: [{ y: 1, text: "truth" }],
    label: "Mean over finished episodes, relative to the truth, over time",
  });
}

function legend() {
  const holder = document.getElementById("legend");
  if (!holder) return;
  data.strategies.filter((s) => !s.paper).forEach((s) => {
    const label = document.createElement("label"), box = document.createElement("input"), swatch = document.createElement("span");
    box.type = "checkbox";
    box.checked = !state.hidden.has(s.name);
    box.addEventListener("change", () => { box.checked ? state.hidden.delete(s.name) : state.hidden.add(s.name); drawDistance(); });
    swatch.className = "swatch";
    swatch.style.background = colour(s.name);
    label.append(box, swatch, document.createTextNode(s.title));
    holder.append(label);
  });
}

function draw() {
  const now = live();
  drawLengths();
  drawDistance();
  drawLog();
  drawMarginals(null, "");
  drawPaperPart(now);
}

function drawPaperPart(now) {
  if (!document.getElementById("paper")) return;
  drawPaper(now);
  showKnob(now);
  drawMarginals(now, "paper-");
}

legend();
const knob = document.getElementById("epsilon");
if (knob) {
  // The knob's place is the logarithm of the mean detour, from a thousandth of E[T] to ten.
  const place = (epsilon) => (Math.log10(epsilon / (1 - epsilon) / data.mean) + 3) * 250;
  knob.value = String(Math.round(place(state.epsilon)));
  knob.addEventListener("input", () => {
    const detour = data.mean * 10 ** (Number(knob.value) / 250 - 3);
    state.epsilon = detour / (1 + detour);
    drawPaperPart(live());
  });
}
draw();
let width = window.innerWidth;
window.addEventListener("resize", () => { if (window.innerWidth !== width) { width = window.innerWidth; draw(); } });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { const old = document.getElementById("legend"); if (old) old.replaceChildren(); legend(); draw(); });
