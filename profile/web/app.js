// The page: what is shown, and how that changes.

class App {
  constructor(model) {
    this.model = model;
    this.tooltip = new Tooltip(byID("tooltip"));
    this.search = new Search(model);
    this.filter = new Filter(
      model,
      { button: byID("processes"), panel: byID("process-panel"), tabs: byID("filter-by"), list: byID("process-list"), input: byID("process-search"), clear: byID("process-clear") },
      () => this.refilter(),
    );
    this.controls = new Controls(this);
    this.callers = false;
    this.flame = false;
    this.counts = false; // widths are counts, though there are values
    this.theme = "";
    this.hovered = null;
    this.selected = null; // by keyboard
    this.hit = null; // that nextHit went to
    this.stage = new Stage(this);
    this.keys = new Keys(this);
    this.listen();
    this.applyLink();
  }

  listen() {
    const { canvas } = this.stage;
    canvas.addEventListener("pointermove", (e) => this.hover(e));
    canvas.addEventListener("pointerleave", () => this.unhover());
    canvas.addEventListener("click", (e) => {
      const frame = this.stage.frameAt(e);
      if (frame) this.zoom(frame);
    });
    window.addEventListener("hashchange", () => this.applyLink());
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.retheme());
    window.addEventListener("beforeprint", () => this.print(true)); // dark ink on white paper
    window.addEventListener("afterprint", () => this.print(false));
    byID("search").addEventListener("input", () => this.find(byID("search").value));

    const click = (id, action) => byID(id)?.addEventListener("click", action);
    click("next", () => this.nextHit(1));
    click("previous", () => this.nextHit(-1));
    click("callees", () => this.setView(false));
    click("callers", () => this.setView(true));
    click("icicle", () => this.setFlame(false));
    click("flame", () => this.setFlame(true));
    click("by-value", () => this.setCounts(false));
    click("by-count", () => this.setCounts(true));
    for (const widths of WIDTHS) click("width-" + widths, () => this.setWidths(widths));
    click("theme", () => this.toggleTheme());
    click("keys", () => byID("help").showModal());
    for (const id of ["show-details", "lost", "close-details"]) click(id, () => this.toggleDetails());
  }

  // --- What is shown ---

  /** Takes the view from the address. */
  applyLink() {
    const link = readLink(location.hash);
    this.callers = link.callers;
    this.flame = link.flame;
    this.counts = link.counts && this.model.tables.byValue && !this.model.tables.diff;
    this.theme = link.theme;
    this.widths = link.widths;
    this.model.setWidths(this.widths, this.counts);
    this.filter.weigh();
    byID("search").value = link.search;
    this.search.set(link.search);
    this.filter.restore(link.filter);
    this.model.filter(this.filter.shown());
    this.retheme();
    this.grow(link.zoom);
  }

  /** Makes the tree anew and zooms to a path. */
  grow(path) {
    this.tree = this.callers ? new CallerTree(this.model) : new CalleeTree(this.model);
    this.zoomed = followPath(this.tree, path);
    this.hovered = null;
    this.selected = null;
    this.hit = null;
    this.refresh();
  }

  /** Shows the tree, from the zoomed frame on. */
  refresh() {
    this.tooltip.hide();
    this.controls.show();
    this.stage.relayout();
    this.stage.scrollToZoomed();
  }

  /** Writes the view to the address; push makes it a step to go back to. */
  saveLink(push) {
    const link = writeLink({
      callers: this.callers,
      flame: this.flame,
      search: this.search.text,
      zoom: pathOf(this.zoomed),
      filter: this.filter.selection(),
      counts: this.counts,
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
    this.reweigh();
  }

  /** Makes the widths counts, or values. */
  setCounts(counts) {
    this.counts = counts;
    this.reweigh();
  }

  /** What widths show next; false if they show one thing only. */
  nextWidths() {
    const { diff, byValue } = this.model.tables;
    if (diff) this.setWidths(WIDTHS[(WIDTHS.indexOf(this.widths) + 1) % WIDTHS.length]);
    else if (byValue) this.setCounts(!this.counts);
    return Boolean(diff || byValue);
  }

  reweigh() {
    this.model.setWidths(this.widths, this.counts);
    this.filter.weigh();
    this.refilter();
  }

  refilter() {
    this.model.filter(this.filter.shown());
    this.grow(pathOf(this.zoomed));
    this.saveLink(true);
  }

  setFlame(flame) {
    this.flame = flame;
    this.refresh();
    this.saveLink(false);
  }

  zoom(frame) {
    this.zoomed = frame;
    this.refresh();
    this.saveLink(true);
  }

  find(text) {
    byID("search").value = text;
    this.search.set(text);
    this.hit = null;
    this.controls.show();
    this.stage.redraw();
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
    this.stage.retheme();
  }

  /** Takes light colours to print, and gives them back. */
  print(begins) {
    const { theme } = this;
    if (begins) this.theme = "light";
    this.retheme();
    this.stage.draw();
    this.theme = theme;
  }

  toggleDetails() {
    const open = document.body.classList.toggle("details");
    byID("show-details").setAttribute("aria-expanded", String(open));
  }

  // --- Frames that are pointed at ---

  hover(event) {
    const { stage } = this;
    const frame = stage.frameAt(event);
    const gap = frame ? null : stage.gapAt(event);
    this.selected = null;
    stage.canvas.style.cursor = frame ? "pointer" : "default";
    if (frame) this.tooltip.showFrame(this.model, this.tree, frame, event.clientX, event.clientY);
    else if (gap) this.tooltip.showGap(this.model, gap, event.clientX, event.clientY);
    else this.tooltip.hide();
    if (frame === this.hovered) return;
    this.hovered = frame;
    this.controls.say(frame ? frameLine(this.model, this.tree, frame) : "");
    stage.redraw();
  }

  unhover() {
    this.hovered = null;
    this.selected = null;
    this.tooltip.hide();
    this.controls.say("");
    this.stage.redraw();
  }

  /** Selects a frame by keyboard. */
  choose(frame) {
    if (!frame) return;
    this.selected = frame;
    this.hovered = null;
    this.stage.scrollIntoView(frame);
    this.controls.say(frameLine(this.model, this.tree, frame));
    this.tooltip.showFrame(this.model, this.tree, frame, ...this.stage.pointOf(frame));
    this.stage.redraw();
  }

  // --- Hits of the search ---

  /** Goes to the next hit, heaviest first. */
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
    const shown = this.stage.layout.rows.flat().filter((f) => f.fn >= 0 && matched[f.fn] === 1);
    return shown.sort((a, b) => b.width - a.width || a.depth - b.depth || a.left - b.left);
  }

  /** Zooms until a frame is wide enough to be seen. */
  uncover(frame) {
    const inside = (f) => f === this.zoomed || (f.parent !== null && inside(f.parent));
    if (inside(frame) && frame.total * this.stage.layout.scale >= MIN_LABEL / 4) return;
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
