// The page: what is shown, and what keys and pointer do.

/** How the looks are called in the legend. */
const LOOK_LABELS = { native: "native", inlined: "inlined", go: "Go", jit: "JIT", kernel: "kernel", unknown: "no name", marker: "truncated" };

/** What the widths of a diff can show. */
const WIDTHS = ["before", "both", "after"];

const DIFF_LEGEND = [["shrank", "shrank"], ["grew", "grew"], ["same", "no sure change"]];

const ROWS_ABOVE = 3; // rows of callers that stay in view above a zoomed frame

const byID = (id) => document.getElementById(id);

class App {
  constructor(model) {
    this.model = model;
    this.graph = byID("graph");
    this.stage = byID("stage");
    this.canvas = byID("canvas");
    this.painter = new Painter(this.canvas, model);
    this.tooltip = new Tooltip(byID("tooltip"));
    this.search = new Search(model);
    this.filter = new ProcessFilter(
      model,
      { button: byID("processes"), panel: byID("process-panel"), list: byID("process-list"), input: byID("process-search"), clear: byID("process-clear") },
      () => this.refilter(),
    );
    this.callers = false;
    this.flame = false;
    this.theme = "";
    this.hovered = null;
    this.selected = null; // by keyboard
    this.hit = null; // that nextHit went to
    this.frameRequest = 0;
    this.listen();
    this.applyLink();
    new ResizeObserver(() => this.relayout()).observe(this.graph);
  }

  listen() {
    this.graph.addEventListener("scroll", () => this.redraw());
    this.canvas.addEventListener("pointermove", (e) => this.hover(e));
    this.canvas.addEventListener("pointerleave", () => this.unhover());
    this.canvas.addEventListener("click", (e) => {
      const frame = this.frameAt(e);
      if (frame) this.zoom(frame);
    });
    document.addEventListener("keydown", (e) => this.key(e));
    window.addEventListener("hashchange", () => this.applyLink());
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.retheme());

    const input = byID("search");
    input.addEventListener("input", () => this.find(input.value));
    input.addEventListener("keydown", (e) => {
      if (e.key === "Enter") this.nextHit(e.shiftKey ? -1 : 1);
      else if (e.key === "Escape") {
        this.find("");
        this.graph.focus();
      } else return;
      e.preventDefault();
      e.stopPropagation();
    });
    byID("next").addEventListener("click", () => this.nextHit(1));
    byID("previous").addEventListener("click", () => this.nextHit(-1));
    byID("callees").addEventListener("click", () => this.setView(false));
    byID("callers").addEventListener("click", () => this.setView(true));
    for (const widths of WIDTHS) byID("width-" + widths)?.addEventListener("click", () => this.setWidths(widths));
    byID("icicle").addEventListener("click", () => this.setFlame(false));
    byID("flame").addEventListener("click", () => this.setFlame(true));
    byID("theme").addEventListener("click", () => this.toggleTheme());
    byID("keys").addEventListener("click", () => byID("help").showModal());
    for (const id of ["show-details", "lost"]) byID(id)?.addEventListener("click", () => this.toggleDetails());
    byID("close-details").addEventListener("click", () => this.toggleDetails());
  }

  // --- What is shown ---

  /** Takes the view from the address. */
  applyLink() {
    const link = readLink(location.hash);
    this.callers = link.callers;
    this.flame = link.flame;
    this.theme = link.theme;
    this.widths = link.widths;
    if (this.model.tables.diff) this.model.setWidths(this.widths);
    byID("search").value = link.search;
    this.search.set(link.search);
    this.filter.restore(link.filter);
    this.model.filter(this.filter.shown());
    this.grow(link.zoom);
    this.retheme();
  }

  /** Makes the tree anew and zooms to a path. */
  grow(path) {
    this.tree = this.callers ? new CallerTree(this.model) : new CalleeTree(this.model);
    this.zoomed = followPath(this.tree, path);
    this.painter.tree = this.tree;
    this.hovered = null;
    this.selected = null;
    this.hit = null;
    this.tooltip.hide();
    this.showControls();
    this.relayout();
    this.scrollToZoomed();
  }

  /** Writes the view to the address; push makes it a step to go back to. */
  saveLink(push) {
    const link = writeLink({
      callers: this.callers,
      flame: this.flame,
      search: this.search.text,
      zoom: pathOf(this.zoomed),
      filter: [...this.filter.selected],
      theme: this.theme,
      widths: this.widths,
    });
    if (link === (location.hash || "#")) return;
    if (push) history.pushState(null, "", link);
    else history.replaceState(null, "", link);
  }

  setView(callers) {
    if (callers === this.callers) return;
    this.callers = callers;
    this.grow([]);
    this.saveLink(true);
  }

  /** Makes the widths of a diff those of a side, or of both. */
  setWidths(widths) {
    this.widths = widths;
    this.model.setWidths(widths);
    this.refilter();
  }

  setFlame(flame) {
    this.flame = flame;
    this.showControls();
    this.relayout();
    this.scrollToZoomed();
    this.saveLink(false);
  }

  refilter() {
    this.model.filter(this.filter.shown());
    this.grow(pathOf(this.zoomed));
    this.saveLink(true);
  }

  zoom(frame) {
    this.zoomed = frame;
    this.tooltip.hide();
    this.showControls();
    this.relayout();
    this.scrollToZoomed();
    this.saveLink(true);
  }

  find(text) {
    byID("search").value = text;
    this.search.set(text);
    this.hit = null;
    this.showControls();
    this.redraw();
    this.saveLink(false);
  }

  toggleTheme() {
    const dark = this.theme ? this.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    this.theme = dark ? "light" : "dark";
    this.retheme();
    this.saveLink(false);
  }

  retheme() {
    if (this.theme) document.documentElement.dataset.theme = this.theme;
    else delete document.documentElement.dataset.theme;
    this.painter.readTheme();
    this.redraw();
  }

  toggleDetails() {
    const open = document.body.classList.toggle("details");
    byID("show-details").setAttribute("aria-expanded", String(open));
  }

  // --- Controls that tell the state ---

  showControls() {
    byID("callees").setAttribute("aria-pressed", String(!this.callers));
    byID("callers").setAttribute("aria-pressed", String(this.callers));
    byID("icicle").setAttribute("aria-pressed", String(!this.flame));
    byID("flame").setAttribute("aria-pressed", String(this.flame));
    for (const widths of WIDTHS) byID("width-" + widths)?.setAttribute("aria-pressed", String(this.widths === widths));
    this.showCrumbs();
    if (this.model.tables.diff) this.showDiffLegend();
    else this.showLegend();
    this.showMatches();
    this.say("");
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

  showCrumbs() {
    const path = [];
    for (let f = this.zoomed; f; f = f.parent) path.unshift(f);
    const shown = path.length > 6 ? [...path.slice(0, 2), null, ...path.slice(-3)] : path;
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
        button.disabled = frame === this.zoomed;
        button.addEventListener("click", () => this.zoom(frame));
        li.append(button);
        return li;
      }),
    );
    const about = this.functionLink(this.zoomed);
    if (about) byID("crumbs").append(about);
  }

  /** A link to the page about a frame's function, where there is such a page. */
  functionLink(frame) {
    const { functions } = document.body.dataset;
    if (!functions || frame.fn < 0 || this.model.isProcess(frame.fn) || this.model.look(frame.fn) === "marker") return null;
    const li = document.createElement("li");
    const link = document.createElement("a");
    link.href = functions + "?" + new URLSearchParams({ name: this.model.name(frame.fn), module: this.model.module(frame.fn) });
    link.textContent = "callers, callees, source";
    link.id = "about-function";
    li.className = "about";
    li.append(link);
    return li;
  }

  showLegend() {
    const sums = this.model.weightByLook();
    const items = LOOKS.filter((look) => look in LOOK_LABELS && look in sums).map((look) => {
      const li = document.createElement("li");
      const button = document.createElement("button");
      const query = "kind:" + look;
      button.className = "look " + look;
      button.setAttribute("aria-pressed", String(this.search.text === query));
      button.title = look === "marker" ? "Stacks with a part missing" : `What ran in ${LOOK_LABELS[look]} functions themselves; click to highlight them`;
      button.addEventListener("click", () => this.find(this.search.text === query ? "" : query));
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

  showMatches() {
    const output = byID("matched");
    const active = this.search.matched !== null;
    byID("next").disabled = byID("previous").disabled = !active || this.search.count === 0;
    output.classList.toggle("none", active && this.search.count === 0);
    if (!active) {
      output.textContent = "";
      return;
    }
    if (this.search.count === 0) {
      output.textContent = "no match";
      return;
    }
    let text = formatShare(this.search.weightBelow(0), this.model.total[0]) + " matched";
    if (!this.callers && this.zoomed.parent) {
      text += `, here ${formatShare(this.search.weightAt(this.zoomed.source), this.zoomed.total)}`;
    }
    output.textContent = text;
    output.title = `${formatWeight(this.model, this.search.weightBelow(0))} in stacks with one of ${grouped.format(this.search.count)} matching functions`;
  }

  frameName(frame) {
    return frame.fn < 0 ? "all" : this.model.name(frame.fn);
  }

  say(text) {
    byID("status").textContent = text || "Click a frame to zoom, / to search, ? for keys";
  }

  // --- Geometry ---

  relayout() {
    const width = this.graph.clientWidth;
    const height = this.graph.clientHeight;
    if (width === 0 || height === 0) return;
    this.painter.resize(width, height);
    this.layout = new Layout(this.tree, this.zoomed, width);
    this.contentHeight = Math.max(this.layout.rows.length * ROW + 1, this.flame ? height : 0);
    this.stage.style.height = this.contentHeight + "px";
    this.redraw();
  }

  /** The top of a row in the canvas. */
  rowTop(row) {
    const y = this.flame ? this.contentHeight - (row + 1) * ROW : row * ROW;
    return y - this.graph.scrollTop;
  }

  scrollToZoomed() {
    const above = Math.max(0, this.zoomed.depth - ROWS_ABOVE) * ROW;
    this.graph.scrollTop = this.flame ? this.contentHeight - above - this.graph.clientHeight : above;
  }

  scrollIntoView(frame) {
    const y = this.rowTop(frame.depth);
    if (y < 0) this.graph.scrollTop += y - ROW;
    else if (y + ROW > this.graph.clientHeight) this.graph.scrollTop += y + 2 * ROW - this.graph.clientHeight;
  }

  /** The row and the x of a pointer. */
  place(event) {
    const box = this.canvas.getBoundingClientRect();
    const y = event.clientY - box.top + this.graph.scrollTop;
    return [Math.floor((this.flame ? this.contentHeight - y : y) / ROW), event.clientX - box.left];
  }

  frameAt(event) {
    return this.layout ? this.layout.at(...this.place(event)) : null;
  }

  redraw() {
    if (this.frameRequest !== 0) return;
    this.frameRequest = requestAnimationFrame(() => {
      this.frameRequest = 0;
      if (!this.layout) return;
      const label = `all · ${formatWeight(this.model, this.model.total[0])}`;
      this.painter.draw(this.layout, (row) => this.rowTop(row), this.zoomed, this.selected || this.hovered, this.search, label);
      performance.mark("drawn");
    });
  }

  // --- Pointer ---

  hover(event) {
    const frame = this.frameAt(event);
    const gap = frame ? null : this.layout?.gapAt(...this.place(event));
    this.selected = null;
    this.canvas.style.cursor = frame ? "pointer" : "default";
    if (frame) this.tooltip.showFrame(this.model, this.tree, frame, event.clientX, event.clientY);
    else if (gap) this.tooltip.showGap(this.model, gap, event.clientX, event.clientY);
    else this.tooltip.hide();
    if (frame === this.hovered) return;
    this.hovered = frame;
    this.say(frame ? frameLine(this.model, this.tree, frame) : "");
    this.redraw();
  }

  unhover() {
    this.hovered = null;
    this.selected = null;
    this.tooltip.hide();
    this.say("");
    this.redraw();
  }

  // --- Keys ---

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || byID("help").open) return;
    const typing = event.target instanceof HTMLInputElement;
    if (event.key === "Escape") this.escape();
    else if (typing) return;
    else if (event.key === "Enter" && event.target instanceof HTMLButtonElement) return;
    else if (!this.shortcut(event.key)) return;
    event.preventDefault();
  }

  /** Does what a key stands for and reports whether it stands for something. */
  shortcut(key) {
    switch (key) {
      case "/":
        byID("search").focus();
        byID("search").select();
        return true;
      case "n": this.nextHit(1); return true;
      case "N": this.nextHit(-1); return true;
      case "c": this.setView(!this.callers); return true;
      case "w":
        if (this.model.tables.diff) this.setWidths(WIDTHS[(WIDTHS.indexOf(this.widths) + 1) % WIDTHS.length]);
        return true;
      case "f": this.setFlame(!this.flame); return true;
      case "p": this.filter.toggle(); return true;
      case "d": this.toggleDetails(); return true;
      case "t": this.toggleTheme(); return true;
      case "?": byID("help").showModal(); return true;
      case "Home": this.zoom(this.tree.root); return true;
      case "Backspace":
        if (this.zoomed.parent) this.zoom(this.zoomed.parent);
        return true;
      case "Enter":
        if (this.selected) this.zoom(this.selected);
        return true;
      case "ArrowUp": this.step(this.flame ? 1 : -1); return true;
      case "ArrowDown": this.step(this.flame ? -1 : 1); return true;
      case "ArrowLeft": this.sidestep(-1); return true;
      case "ArrowRight": this.sidestep(1); return true;
    }
    return false;
  }

  /** Closes or undoes what is uppermost. */
  escape() {
    if (!byID("process-panel").hidden) this.filter.toggle(false);
    else if (document.body.classList.contains("details")) this.toggleDetails();
    else if (this.search.text) this.find("");
    else if (this.zoomed.parent) this.zoom(this.tree.root);
    else this.unhover();
  }

  step(down) {
    const from = this.current();
    this.choose(down > 0 ? this.layout.widestChild(from) : from.parent);
  }

  sidestep(by) {
    this.choose(this.layout.neighbour(this.current(), by));
  }

  /** The frame that keys start from. */
  current() {
    const frame = this.selected || this.hovered;
    return frame && this.layout.has(frame) ? frame : this.zoomed;
  }

  choose(frame) {
    if (!frame) return;
    this.selected = frame;
    this.hovered = null;
    this.scrollIntoView(frame);
    this.say(frameLine(this.model, this.tree, frame));
    const box = this.canvas.getBoundingClientRect();
    const x = Math.max(frame.left, 0) + Math.min(frame.width / 2, 200);
    this.tooltip.showFrame(this.model, this.tree, frame, box.left + x, box.top + this.rowTop(frame.depth) + ROW / 2);
    this.redraw();
  }

  /** Goes to the next hit of the search, heaviest first. */
  nextHit(step) {
    if (this.search.matched === null) return;
    const hits = this.hits();
    if (hits.length === 0) return;
    const at = hits.indexOf(this.hit);
    this.hit = hits[at < 0 ? (step > 0 ? 0 : hits.length - 1) : (at + step + hits.length) % hits.length];
    const frame = this.callers ? this.hit : frameOfNode(this.tree, this.hit);
    this.uncover(frame);
    this.choose(frame);
  }

  /** What nextHit goes through: nodes, or in the tree of callers those frames that are shown. */
  hits() {
    if (!this.callers) return this.search.hits();
    const { matched } = this.search;
    const shown = this.layout.rows.flat().filter((f) => f.fn >= 0 && matched[f.fn] === 1);
    return shown.sort((a, b) => b.width - a.width || a.depth - b.depth || a.left - b.left);
  }

  /** Zooms until a frame is wide enough to be seen. */
  uncover(frame) {
    const inside = (f) => f === this.zoomed || (f.parent !== null && inside(f.parent));
    if (inside(frame) && frame.total * this.layout.scale >= MIN_LABEL / 4) return;
    let around = frame;
    while (around.parent && around.parent.total <= frame.total * 20) around = around.parent;
    this.zoom(around);
  }
}

function main() {
  const data = byID("data");
  document.body.classList.add("live");
  try {
    const model = decodeModel(data.textContent);
    data.remove();
    new App(model);
  } catch (error) {
    byID("graph").textContent = "The flame graph cannot be shown: " + error.message;
  }
}
