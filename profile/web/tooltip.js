// What is known of a frame.

/** The facts of a frame as pairs of a name and a text. */
function frameFacts(model, tree, frame) {
  const t = model.tables;
  const fn = frame.fn;
  const facts = [];
  if (fn >= 0 && !model.isProcess(fn)) {
    const known = t.kinds[t.functionKind[fn]];
    const kind = known === "unknown" ? "no name" : known;
    const parts = [model.inlined(fn) ? `inlined, ${kind}` : kind];
    if (model.module(fn)) parts.push(model.module(fn));
    facts.push(["Code", parts.join(" · ")]);
    const file = model.file(fn);
    const line = tree.line(frame) || t.functionLine[fn];
    if (file) facts.push(["Source", line ? `${file}:${line}` : file]);
  }
  if (model.tables.diff) return facts.concat(diffFacts(model, tree, frame));
  facts.push(["Total", weightText(model, frame.total, tree.beside(frame))]);
  const self = tree.self(frame);
  if (fn >= 0 && self > 0 && self !== frame.total) facts.push(["Self", formatWeight(model, self) + ", " + formatShare(self, model.total[0])]);
  if (frame.parent && frame.parent.parent) {
    facts.push(["Of parent", formatShare(frame.total, frame.parent.total)]);
  }
  return facts;
}

function weightText(model, weight, beside) {
  const parts = [formatWeight(model, weight)];
  if (model.tables.byValue) parts.push(model.counts ? formatValue(model, beside) : formatCount(model, beside));
  if (model.tables.period > 0) parts.push("≈ " + formatDuration(weight * model.tables.period));
  parts.push(formatShare(weight, model.total[0]) + (model.total[0] === model.wholeWeight ? "" : " of the filtered"));
  return parts.join(", ");
}

/** One line for the status bar. */
function frameLine(model, tree, frame) {
  const name = frame.fn < 0 ? "all" : model.name(frame.fn);
  const { diff } = model.tables;
  if (diff) {
    const c = changeOf(tree, frame);
    return `${formatDiffValue(diff, c.before)} → ${formatDiffValue(diff, c.after)}  ${name}`;
  }
  return `${formatShare(frame.total, model.total[0])}  ${formatWeight(model, frame.total)}  ${name}`;
}

class Tooltip {
  constructor(element) {
    this.element = element;
  }

  hide() {
    this.element.hidden = true;
  }

  /** Shows a frame's facts beside a point of the window. */
  showFrame(model, tree, frame, x, y) {
    this.show(frame.fn < 0 ? "all" : model.name(frame.fn), frameFacts(model, tree, frame), x, y);
  }

  /** Shows what is known of frames that are too narrow to be drawn. */
  showGap(model, gap, x, y) {
    const count = gap.frames.length;
    const title = count === 1 ? "A narrow frame" : `${grouped.format(count)} narrow frames`;
    const total = formatWeight(model, gap.total) + ", " + formatShare(gap.total, model.total[0]);
    this.show(title, [["Total", total], ["", "Zoom to the frame above to see them"]], x, y);
  }

  show(name, facts, x, y) {
    const title = document.createElement("strong");
    title.textContent = name;
    const list = document.createElement("dl");
    for (const [key, text] of facts) {
      const dt = document.createElement("dt");
      dt.textContent = key;
      const dd = document.createElement("dd");
      dd.textContent = text;
      list.append(dt, dd);
    }
    this.element.replaceChildren(title, list);
    this.element.hidden = false;
    const box = this.element.getBoundingClientRect();
    const left = x + 14 + box.width > innerWidth ? Math.min(x - 14 - box.width, innerWidth - box.width - 4) : x + 14;
    const top = y + 20 + box.height > innerHeight ? y - 14 - box.height : y + 20;
    this.element.style.left = Math.max(4, left) + "px";
    this.element.style.top = Math.max(4, top) + "px";
  }
}
