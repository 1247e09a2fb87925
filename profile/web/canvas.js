// Drawing.

const ROW = 19; // height of a row in pixels
const FONT = "12px system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif";
const MIN_LABEL = 26; // pixels; narrower frames have no label

/** What frames are coloured by, in the order of the legend. */
const LOOKS = ["native", "inlined", "go", "jit", "kernel", "unknown", "state", "marker", "process"];

/** Shades of a colour, by which neighbours of one kind are told apart. */
const SHADES = [0, 0.07, 0.14, -0.05];

/** Returns "#rrggbb" made lighter (amount > 0) or darker. */
function shade(color, amount) {
  const to = amount > 0 ? 255 : 0;
  const part = (i) => {
    const v = parseInt(color.slice(i, i + 2), 16);
    return Math.round(v + (to - v) * Math.abs(amount));
  };
  return `rgb(${part(1)},${part(3)},${part(5)})`;
}

class Painter {
  constructor(canvas, model) {
    this.canvas = canvas;
    this.model = model;
    this.context = canvas.getContext("2d");
    this.fitter = new NameFitter(this.context, (fn) => model.name(fn));
    this.looks = Array.from({ length: model.functionCount }, (_, fn) => LOOKS.indexOf(model.look(fn)));
  }

  /** Reads the colours from the style sheet. */
  readTheme() {
    const style = getComputedStyle(document.documentElement);
    const color = (name) => style.getPropertyValue("--" + name).trim();
    this.fills = LOOKS.map((look) => SHADES.map((amount) => shade(color(look), amount)));
    this.diffFills = {
      same: color("same"),
      grew: [1, 2, 3].map((i) => color("grew-" + i)),
      shrank: [1, 2, 3].map((i) => color("shrank-" + i)),
    };
    this.background = color("background");
    this.text = color("frame-text");
    this.faint = color("faint");
    this.faintText = color("faint-text");
    this.root = color("root");
    this.hit = color("hit");
    this.hitText = color("hit-text");
    this.gap = color("gap");
    this.outline = color("outline");
  }

  resize(width, height) {
    const ratio = window.devicePixelRatio || 1;
    this.width = width;
    this.height = height;
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(height * ratio);
    this.canvas.style.width = width + "px";
    this.canvas.style.height = height + "px";
    this.context.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.context.font = FONT;
    this.context.textBaseline = "middle";
    this.fitter.reset();
  }

  /** Draws what of a layout is in view. rowTop gives the place of a row. */
  draw(layout, rowTop, zoomed, selected, search, rootLabel) {
    const matched = search.count > 0 ? search.matched : null;
    const c = this.context;
    c.globalAlpha = 1;
    c.fillStyle = this.background;
    c.fillRect(0, 0, this.width, this.height);
    layout.rows.forEach((frames, row) => {
      const y = rowTop(row);
      if (y + ROW < 0 || y > this.height) return;
      c.globalAlpha = row < zoomed.depth ? 0.6 : 1;
      for (const frame of frames) this.drawFrame(frame, y, matched, rootLabel);
      for (const gap of layout.gaps[row]) {
        const isHit = matched !== null && gap.frames.some((frame) => search.concerns(frame));
        c.globalAlpha = isHit ? 1 : 0.35;
        c.fillStyle = isHit ? this.hit : this.gap;
        c.fillRect(gap.left, y, isHit ? Math.max(gap.width, 1) : gap.width, isHit ? 4 : ROW - 1);
      }
      c.globalAlpha = 1;
    });
    if (selected) {
      const y = rowTop(selected.depth);
      c.lineWidth = 2;
      c.strokeStyle = this.outline;
      c.strokeRect(selected.left + 1, y + 1, Math.max(selected.width - 2, 1), ROW - 3);
    }
  }

  drawFrame(frame, y, matched, rootLabel) {
    const c = this.context;
    const { left, width, fn } = frame;
    const isHit = matched !== null && fn >= 0 && matched[fn] === 1;
    if (fn < 0) c.fillStyle = this.root;
    else if (isHit) c.fillStyle = this.hit;
    else if (matched !== null) c.fillStyle = this.faint;
    else if (this.model.tables.diff) c.fillStyle = diffFill(this.diffFills, changeOf(this.tree, frame));
    else c.fillStyle = this.fills[this.looks[fn]][(Math.imul(fn + 1, 0x9e3779b1) >>> 30) & 3];
    // A gap between neighbours, as far as there is room. Hits are never faint.
    c.fillRect(left, y, width > 3 ? width - 1 : isHit ? Math.max(width, 1) : width, ROW - 1);
    if (fn >= 0 && LOOKS[this.looks[fn]] === "marker" && width > 6 && !isHit) this.hatch(left, y, width - 1);
    if (width < MIN_LABEL) return;
    const text = fn < 0 ? rootLabel : this.fitter.fit(fn, width - 8);
    if (isHit) c.fillStyle = this.hitText;
    else c.fillStyle = matched !== null && fn >= 0 ? this.faintText : this.text;
    c.fillText(text, left + 4, y + ROW / 2 - 0.5);
  }

  /** Stripes, so that markers are told from code without colour too. */
  hatch(left, y, width) {
    const c = this.context;
    c.save();
    c.beginPath();
    c.rect(left, y, width, ROW - 1);
    c.clip();
    c.strokeStyle = "#ffffff";
    c.globalAlpha *= 0.3;
    c.lineWidth = 2;
    c.beginPath();
    for (let x = left - ROW; x < left + Math.min(width, this.width); x += 8) {
      c.moveTo(x, y + ROW);
      c.lineTo(x + ROW, y);
    }
    c.stroke();
    c.restore();
  }
}
