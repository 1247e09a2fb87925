// Where frames are on the screen.

const MIN_WIDTH = 0.3; // pixels; narrower frames are left out

/** Rows of frames from the root on, for a zoomed frame and a width. */
class Layout {
  constructor(tree, zoomed, width) {
    this.width = width;
    this.scale = zoomed.total > 0 ? width / zoomed.total : 0;
    this.rows = []; // frames by row, from left to right
    this.gaps = []; // by row, runs of frames that were left out: { left, width, total, frames }

    const above = [];
    for (let f = zoomed; f; f = f.parent) above.unshift(f);
    for (const frame of above) {
      frame.left = 0;
      frame.width = width;
      this.rows.push([frame]);
      this.gaps.push([]);
    }
    for (let row = [zoomed]; row.length > 0; ) {
      row = this.below(tree, row, zoomed.start);
    }
  }

  below(tree, row, origin) {
    const frames = [];
    const gaps = [];
    for (const parent of row) {
      let gap = null;
      for (const child of tree.children(parent)) {
        child.left = (child.start - origin) * this.scale;
        child.width = child.total * this.scale;
        if (child.width >= MIN_WIDTH) {
          frames.push(child);
          gap = null;
        } else if (gap) {
          gap.width = child.left + child.width - gap.left;
          gap.frames.push(child);
          gap.total += child.total;
        } else {
          gap = { left: child.left, width: child.width, total: child.total, frames: [child] };
          gaps.push(gap);
        }
      }
    }
    const wide = gaps.filter((g) => g.width >= MIN_WIDTH);
    if (frames.length > 0 || wide.length > 0) {
      this.rows.push(frames);
      this.gaps.push(wide);
    }
    return frames;
  }

  /** Returns the frame of a row at x, or null. */
  at(row, x) {
    const frames = this.rows[row] || [];
    let low = 0;
    let high = frames.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (frames[middle].left <= x) low = middle + 1;
      else high = middle;
    }
    const frame = frames[low - 1];
    // A narrow frame is hard to hit: give it the pixel that it is in.
    return frame && x < Math.max(frame.left + frame.width, frame.left + 1) ? frame : null;
  }

  /** Returns the left-out frames of a row at x, or null. */
  gapAt(row, x) {
    return (this.gaps[row] || []).find((g) => g.left <= x && x < g.left + Math.max(g.width, 1)) || null;
  }

  has(frame) {
    return (this.rows[frame.depth] || []).includes(frame);
  }

  /** Returns the frame's neighbour in its row: the next one to the right for step 1, to the left for -1. */
  neighbour(frame, step) {
    const row = this.rows[frame.depth] || [];
    return row[row.indexOf(frame) + step] || null;
  }

  /** Returns the widest shown child of a frame, or null. */
  widestChild(frame) {
    let widest = null;
    for (const f of this.rows[frame.depth + 1] || []) {
      if (f.parent === frame && (!widest || f.width > widest.width)) widest = f;
    }
    return widest;
  }
}
