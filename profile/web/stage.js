// Where the graph is drawn: the canvas, which stays in view while the page's
// middle scrolls, and what frame is at a place of it.

const ROWS_ABOVE = 3; // rows of callers that stay in view above a zoomed frame

class Stage {
  constructor(app) {
    this.app = app;
    this.graph = byID("graph");
    this.element = byID("stage");
    this.canvas = byID("canvas");
    this.painter = new Painter(this.canvas, app.model);
    this.layout = null;
    this.request = 0; // of a frame of animation
    this.graph.addEventListener("scroll", () => this.redraw());
    new ResizeObserver(() => this.relayout()).observe(this.graph);
  }

  /** Makes the layout anew, after the tree, the zoom or the size have changed. */
  relayout() {
    const width = this.graph.clientWidth;
    const height = this.graph.clientHeight;
    if (width === 0 || height === 0) return;
    this.painter.tree = this.app.tree;
    this.painter.resize(width, height);
    this.layout = new Layout(this.app.tree, this.app.zoomed, width);
    this.contentHeight = Math.max(this.layout.rows.length * ROW + 1, this.app.flame ? height : 0);
    this.element.style.height = this.contentHeight + "px";
    this.draw(); // at once: a canvas of new size is empty
  }

  /** Draws before the next frame that the screen shows. */
  redraw() {
    if (this.request === 0) this.request = requestAnimationFrame(() => this.draw());
  }

  draw() {
    cancelAnimationFrame(this.request);
    this.request = 0;
    if (!this.layout) return;
    const { app } = this;
    const label = `all · ${formatWeight(app.model, app.model.total[0])}`;
    this.painter.draw(this.layout, (row) => this.rowTop(row), app.zoomed, app.selected || app.hovered, app.search, label);
    performance.mark("drawn");
  }

  retheme() {
    this.painter.readTheme();
    this.redraw();
  }

  /** The top of a row in the canvas. */
  rowTop(row) {
    const y = this.app.flame ? this.contentHeight - (row + 1) * ROW : row * ROW;
    return y - this.graph.scrollTop;
  }

  scrollToZoomed() {
    const above = Math.max(0, this.app.zoomed.depth - ROWS_ABOVE) * ROW;
    this.graph.scrollTop = this.app.flame ? this.contentHeight - above - this.graph.clientHeight : above;
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
    return [Math.floor((this.app.flame ? this.contentHeight - y : y) / ROW), event.clientX - box.left];
  }

  frameAt(event) {
    return this.layout ? this.layout.at(...this.place(event)) : null;
  }

  gapAt(event) {
    return this.layout ? this.layout.gapAt(...this.place(event)) : null;
  }

  /** A point of the window in a frame, at which its tooltip is shown for keys. */
  pointOf(frame) {
    const box = this.canvas.getBoundingClientRect();
    const x = Math.max(frame.left, 0) + Math.min(frame.width / 2, 200);
    return [box.left + x, box.top + this.rowTop(frame.depth) + ROW / 2];
  }
}
