// Two profiles at once: what changed, and whether by more than chance.

const SIDES = ["before", "after"];

const logFactorials = [0];

/** The logarithm of n!, by a table and from 256 on by Stirling's series. */
function logFactorial(n) {
  if (n < 256) {
    for (let i = logFactorials.length; i <= n; i++) logFactorials.push(logFactorials[i - 1] + Math.log(i));
    return logFactorials[n];
  }
  const x = n + 1;
  return (x - 0.5) * Math.log(x) - x + 0.5 * Math.log(2 * Math.PI) + 1 / (12 * x) - 1 / (360 * x ** 3);
}

function logChoose(n, k) {
  return logFactorial(n) - logFactorial(k) - logFactorial(n - k);
}

const EXACT_LIMIT = 2000; // outcomes that are summed; beyond, the normal distribution does

/** 1 - erf(x) for x >= 0, to some 1e-7 of itself (Numerical Recipes' rational form). */
function erfc(x) {
  const t = 1 / (1 + x / 2);
  const terms = [-1.26551223, 1.00002368, 0.37409196, 0.09678418, -0.18628806, 0.27886807, -1.13520398, 1.48851587, -0.82215223, 0.17087277];
  let sum = 0;
  for (let i = terms.length - 1; i >= 0; i--) sum = sum * t + terms[i];
  return t * Math.exp(-x * x + sum);
}

/** The two-sided p-value of two counts: Fisher's exact test of shares, or the exact test of two Poisson rates. */
function compareCounts(diff, before, after) {
  const n = before + after;
  if (n === 0) return 1;
  const { beforeExposure: eb, afterExposure: ea, rates } = diff;
  let low = 0;
  let high = n;
  let logP = (k) => logChoose(n, k) + k * Math.log(eb / (eb + ea)) + (n - k) * Math.log(ea / (eb + ea));
  if (!rates) {
    low = Math.max(0, n - ea);
    high = Math.min(n, eb);
    const all = logChoose(eb + ea, n);
    logP = (k) => logChoose(eb, k) + logChoose(ea, n - k) - all;
  }
  if (low === high) return 1;
  if (high - low > EXACT_LIMIT) {
    const q = eb / (eb + ea);
    const variance = n * q * (1 - q) * (rates ? 1 : 1 - n / (eb + ea));
    return variance > 0 ? erfc(Math.abs(before - n * q) / Math.sqrt(2 * variance)) : 1;
  }
  const seen = logP(before);
  let p = 0;
  for (let k = low; k <= high; k++) {
    const l = logP(k);
    if (l <= seen + 1e-7) p += Math.exp(l);
  }
  return Math.min(p, 1);
}

function variance(diff, count, weight, exposure) {
  if (count === 0) return 1 / (exposure * exposure);
  return ((weight * weight) / count) * (diff.rates ? 1 : Math.max(0, 1 - count / exposure));
}

const ROUNDING = 1e-3; // more than what weights are off by, in samples

/** The weight of each of equal samples that are as uncertain as those of a frame: see profile/weights.go. */
function equalSample(diff, weights, squares) {
  const weight = weights[0] + weights[1];
  const square = squares[0] + squares[1];
  const rest = diff.whole[0] + diff.whole[1] - weight;
  if (weight <= 0) return 0;
  const unit = square / weight;
  if (diff.rates || rest <= 0) return unit;
  const r = weight / (weight + rest);
  return (1 - r) * unit + (r * (diff.squares[0] + diff.squares[1] - square)) / rest;
}

/** The p-value of a frame's weights on both sides, and the variances of these, as of equal samples. */
function compareWeights(diff, sides) {
  const weights = sides.weights.map((w, side) => w / diff.per[side]);
  const squares = sides.squares.map((s, side) => s / diff.per[side] ** 2);
  const unit = equalSample(diff, weights, squares);
  if (unit <= 0) return { p: 1, variances: [0, 0] };
  let [before, after] = weights.map((w) => w / unit);
  const e = { rates: diff.rates };
  if (diff.rates) [e.beforeExposure, e.afterExposure] = diff.per.map((per) => diff.scale / (per * unit));
  else [e.beforeExposure, e.afterExposure] = diff.whole.map((w) => Math.ceil(w / unit - ROUNDING));
  if (before * e.afterExposure > after * e.beforeExposure) [before, after] = [Math.floor(before + ROUNDING), Math.ceil(after - ROUNDING)];
  else [before, after] = [Math.ceil(before - ROUNDING), Math.floor(after + ROUNDING)];
  const variances = weights.map((w, side) => {
    const scale = (diff.per[side] / diff.scale) ** 2;
    if (w === 0) return unit ** 2 * scale;
    if (diff.rates) return squares[side] * scale;
    const r = w / diff.whole[side];
    return ((1 - r) ** 2 * squares[side] + r ** 2 * Math.max(0, diff.squares[side] - squares[side])) * scale;
  });
  return { p: compareCounts(e, before, after), variances };
}

/** What changed between the sides of a frame. Weights become shares of 1, or rates. */
function judge(diff, sides) {
  const [b, a] = sides.weights.map((w) => w / diff.scale);
  const [cb, ca] = sides.counts;
  const { p, variances } = diff.weighted
    ? compareWeights(diff, sides)
    : { p: compareCounts(diff, cb, ca), variances: [variance(diff, cb, b, diff.beforeExposure), variance(diff, ca, a, diff.afterExposure)] };
  const error = 1.96 * Math.sqrt(variances[0] + variances[1]);
  return { before: b, after: a, counts: sides.counts, delta: a - b, error, p, significant: p <= diff.threshold };
}

/** What changed in a frame of a tree. */
function changeOf(tree, frame) {
  if (!frame.change) frame.change = judge(tree.model.tables.diff, tree.sides(frame));
  return frame.change;
}

/** Prints a weight of a diff, or with a sign a difference. */
function formatDiffValue(diff, value, signed) {
  const sign = value < 0 ? "−" : signed && value > 0 ? "+" : "";
  const v = Math.abs(value);
  if (diff.absolute) return sign + (v === 0 ? "0" : v.toPrecision(3)) + " " + diff.unit;
  const percent = 100 * v;
  return sign + (percent === 0 ? "0" : percent >= 0.1 ? percent.toFixed(1) : percent.toPrecision(1)) + " %";
}

/** The facts of a frame of a diff, as pairs of a name and a text. */
function diffFacts(model, tree, frame) {
  const { diff } = model.tables;
  const c = changeOf(tree, frame);
  const side = (value, count) => `${formatDiffValue(diff, value)}, ${formatCount(model, count)}`;
  const facts = [["Before", side(c.before, c.counts[0])], ["After", side(c.after, c.counts[1])]];
  const points = (text) => (diff.absolute ? text : text.replace(" %", " points"));
  let change = points(formatDiffValue(diff, c.delta, true)) + " ± " + points(formatDiffValue(diff, c.error));
  if (c.before > 0 && c.after > 0) change += `, × ${(c.after / c.before).toPrecision(3)}`;
  facts.push(["Change", change]);
  const p = c.p < 0.001 ? c.p.toExponential(0) : c.p.toPrecision(2);
  facts.push(["", c.significant ? `significant, p = ${p}` : `within sampling error, p = ${p}`]);
  return facts;
}

/** The colour of a frame: grey where nothing has changed for sure, else stronger with the relative change. */
function diffFill(colors, change) {
  if (!change.significant || change.delta === 0) return colors.same;
  const strength = Math.abs(change.delta) / (change.before + change.after);
  const steps = change.delta > 0 ? colors.grew : colors.shrank;
  return steps[strength < 0.15 ? 0 : strength < 0.5 ? 1 : 2];
}
