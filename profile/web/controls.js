// What the head of the page tells of the view: where it is zoomed to, what
// the colours are, how much a search has matched.

/** How the looks are called in the legend. */
const LOOK_LABELS = { native: "native", inlined: "inlined", go: "Go", jit: "JIT", kernel: "kernel", unknown: "no name", state: "waiting", marker: "incomplete" };

const LOOK_TITLES = {
  state: "What threads waited for, off the CPU; click to highlight that",
  marker: "Stacks of which a part, or all, is missing; click to highlight them",
};

/** What the widths of a diff can show. */
const WIDTHS = ["before", "both", "after"];

const DIFF_LEGEND = [["shrank", "shrank"], ["grew", "grew"], ["same", "no sure change"]];

const CRUMBS = 6; // shown; if there are more, those in the middle are left out

const byID = (id) => document.getElementById(id);

class Controls {
  constructor(app) {
    this.app = app;
    this.model = app.model;
  }

  show() {
    const { app } = this;
    const press = (id, pressed) => byID(id)?.setAttribute("aria-pressed", String(pressed));
    press("callees", !app.callers);
    press("callers", app.callers);
    press("icicle", !app.flame);
    press("flame", app.flame);
    press("by-value", !app.counts);
    press("by-count", app.counts);
    for (const widths of WIDTHS) press("width-" + widths, app.widths === widths);
    this.showCrumbs();
    if (this.model.tables.diff) this.showDiffLegend();
    else this.showLegend();
    this.showMatches();
    this.say("");
  }

  say(text) {
    byID("status").textContent = text || "Click a frame to zoom, / to search, ? for keys";
  }

  frameName(frame) {
    return frame.fn < 0 ? "all" : this.model.name(frame.fn);
  }

  showCrumbs() {
    const path = [];
    for (let f = this.app.zoomed; f; f = f.parent) path.unshift(f);
    const shown = path.length > CRUMBS ? [...path.slice(0, 2), null, ...path.slice(-3)] : path;
    byID("crumbs").replaceChildren(
      ...shown.map((frame) => {
        const li = document.createElement("li");
        if (!frame) {
          li.className = "left-out";
          li.textContent = "…";
          li.title = path.slice(2, -3).map((f) => this.frameName(f)).join("\n");
          return li;
        }
        const button = document.createElement("button");
        button.textContent = plainName(this.frameName(frame));
        button.title = this.frameName(frame);
        button.disabled = frame === this.app.zoomed;
        button.addEventListener("click", () => this.app.zoom(frame));
        li.append(button);
        return li;
      }),
    );
    const about = this.functionLink(this.app.zoomed);
    if (about) byID("crumbs").append(about);
  }

  /** A link to the page about a frame's function, where there is such a page. */
  functionLink(frame) {
    const { functions } = document.body.dataset;
    if (!functions || frame.fn < 0 || this.model.isProcess(frame.fn) || this.model.look(frame.fn) === "marker") return null;
    const li = document.createElement("li");
    const link = document.createElement("a");
    link.href = functions + (functions.includes("?") ? "&" : "?") + this.model.query(frame.fn);
    link.textContent = "callers, callees, source";
    link.id = "about-function";
    li.className = "about";
    li.append(link);
    return li;
  }

  showLegend() {
    const sums = this.model.weightByLook();
    const { search } = this.app;
    const items = LOOKS.filter((look) => look in LOOK_LABELS && look in sums).map((look) => {
      const li = document.createElement("li");
      const button = document.createElement("button");
      const query = "kind:" + look;
      button.className = "look " + look;
      button.setAttribute("aria-pressed", String(search.text === query));
      button.title = LOOK_TITLES[look] || `What ran in ${LOOK_LABELS[look]} functions themselves; click to highlight them`;
      button.addEventListener("click", () => this.app.find(search.text === query ? "" : query));
      const swatch = document.createElement("i");
      button.append(swatch, `${LOOK_LABELS[look]} `);
      const share = document.createElement("span");
      share.textContent = formatShare(sums[look], this.model.total[0]);
      button.append(share);
      li.append(button);
      return li;
    });
    byID("legend").replaceChildren(...items);
  }

  showDiffLegend() {
    const items = DIFF_LEGEND.map(([look, label]) => {
      const li = document.createElement("li");
      li.className = "look " + look;
      const swatch = document.createElement("i");
      li.append(swatch, label);
      return li;
    });
    byID("legend").replaceChildren(...items);
    byID("legend").title = `Coloured is what has changed by more than sampling error: p ≤ ${this.model.tables.diff.threshold.toPrecision(2)} in an exact test, which is 5 % corrected for the number of frames`;
  }

  showMatches() {
    const output = byID("matched");
    const { search, zoomed } = this.app;
    const active = search.matched !== null;
    byID("next").disabled = byID("previous").disabled = !active || search.count === 0;
    output.classList.toggle("none", active && search.count === 0);
    if (!active || search.count === 0) {
      output.textContent = active ? "no match" : "";
      return;
    }
    let text = formatShare(search.weightBelow(0), this.model.total[0]) + " matched";
    if (!this.app.callers && zoomed.parent) text += `, here ${formatShare(search.weightAt(zoomed.source), zoomed.total)}`;
    output.textContent = text;
    output.title = `${formatWeight(this.model, search.weightBelow(0))} in stacks with one of ${grouped.format(search.count)} matching functions`;
  }
}
