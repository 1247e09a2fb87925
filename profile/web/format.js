// Numbers for people.

const grouped = new Intl.NumberFormat("en-US");

function formatShare(part, whole) {
  if (whole === 0) return "0 %";
  const percent = (100 * part) / whole;
  if (part === whole) return "100 %";
  if (percent >= 99.95) return "99.9 %";
  if (percent >= 0.1) return percent.toFixed(1) + " %";
  return part === 0 ? "0 %" : percent.toPrecision(1) + " %";
}

function formatTime(ns) {
  for (const [unit, size] of [["s", 1e9], ["ms", 1e6], ["µs", 1e3]]) {
    if (ns >= 0.9995 * size) return (ns / size).toPrecision(3) + " " + unit;
  }
  return Math.round(ns) + " ns";
}

function formatDuration(ns) {
  if (ns < 1000e9) return formatTime(ns);
  const seconds = Math.round(ns / 1e9);
  if (seconds < 7200) return Math.floor(seconds / 60) + " min " + (seconds % 60) + " s";
  return (seconds / 3600).toFixed(1) + " h";
}

function formatBytes(n) {
  for (const [unit, size] of [["TiB", 2 ** 40], ["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]]) {
    if (n >= size) return (n / size).toFixed(1) + " " + unit;
  }
  return n + " B";
}

/** Prints a number of samples, or of what the profile counts instead. */
function formatCount(model, n) {
  const { counted } = model.tables;
  return grouped.format(n) + " " + (n === 1 ? counted.replace(/s$/, "") : counted);
}

/** Prints a weight with its unit: "1,234 samples", "1.5 s". */
function formatWeight(model, weight) {
  const { diff } = model.tables;
  if (diff) return formatDiffValue(diff, weight / diff.scale);
  return model.tables.byValue && !model.counts ? formatValue(model, weight) : formatCount(model, weight);
}

/** Prints a value with its unit. */
function formatValue(model, weight) {
  if (model.tables.unit === "nanoseconds") return formatDuration(weight);
  if (model.tables.unit === "bytes") return formatBytes(weight);
  return grouped.format(weight) + " " + model.tables.weight;
}
