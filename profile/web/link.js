// The part of the address after "#", by which a view can be linked to.

/** The prefix of parameters that select by a label. */
const LABEL = "label.";

/** Reads a view from the address. */
function readLink(hash) {
  const params = new URLSearchParams(hash.replace(/^#/, ""));
  const list = (name) => (params.get(name) || "").split(",").filter(Boolean);
  const filter = { process: list("only"), comm: list("comm") };
  for (const name of params.keys()) if (name.startsWith(LABEL)) filter[name] = list(name);
  return {
    callers: params.get("view") === "callers",
    flame: params.get("grow") === "up",
    search: params.get("search") || "",
    zoom: (params.get("zoom") || "").split(".").filter(Boolean).map((s) => parseInt(s, 36)),
    filter,
    counts: params.get("by") === "count",
    widths: ["before", "after"].includes(params.get("width")) ? params.get("width") : "both",
    theme: ["dark", "light"].includes(params.get("theme")) ? params.get("theme") : "",
  };
}

/** Returns the address for a view, the reverse of readLink. */
function writeLink(view) {
  const params = new URLSearchParams();
  if (view.callers) params.set("view", "callers");
  if (view.flame) params.set("grow", "up");
  if (view.search) params.set("search", view.search);
  if (view.zoom.length > 0) params.set("zoom", view.zoom.map((fn) => fn.toString(36)).join("."));
  for (const [name, keys] of Object.entries(view.filter)) params.set(name === "process" ? "only" : name, keys.join(","));
  if (view.counts) params.set("by", "count");
  if (view.widths && view.widths !== "both") params.set("width", view.widths);
  if (view.theme) params.set("theme", view.theme);
  return "#" + params.toString();
}
