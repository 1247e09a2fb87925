// The filter: by process and thread, by the name of threads, and by labels.
// What is selected of one dimension is shown together; of several dimensions,
// what is selected in each.

const LIST_LIMIT = 300; // entries shown at once

/** The key of what is without a label; those of texts have no blanks. */
const WITHOUT = " ";

/**
 * An entry of the list. Its key names it in links: of processes "name",
 * "name/pid" or "name/pid/tid", else the text.
 */
class FilterEntry {
  constructor(key, label, level) {
    this.key = key;
    this.label = label;
    this.level = level;
    this.note = "";
    this.threads = [];
    this.weight = 0;
    this.children = new Map();
  }

  child(part, label) {
    return this.childOf(this.key + (this.key ? "/" : "") + encodeURIComponent(part), label);
  }

  childOf(key, label) {
    let c = this.children.get(key);
    if (!c) {
      c = new FilterEntry(key, label, this.level + 1);
      this.children.set(key, c);
    }
    return c;
  }

  sorted() {
    return [...this.children.values()].sort((a, b) => b.weight - a.weight || (a.key < b.key ? -1 : 1));
  }
}

/** What threads can be told apart by. The name is that of a label, or one of processes and comm. */
class FilterDimension {
  constructor(name, title, model) {
    this.name = name;
    this.title = title;
    this.model = model;
    this.root = new FilterEntry("", "", 0);
    this.entries = new Map(); // by key
    this.selected = new Set(); // keys; none selects all
  }

  /** Counts a thread for entries of which each is above the next. */
  add(thread, entries) {
    for (const entry of entries) {
      entry.threads.push(thread);
      this.entries.set(entry.key, entry);
    }
  }

  weigh() {
    for (const entry of this.entries.values()) {
      entry.weight = entry.threads.reduce((sum, thread) => sum + this.model.threadWeight[thread], 0);
    }
  }

  /** Marks the threads that are selected: a list by thread, or null for all. */
  shown() {
    if (this.selected.size === 0) return null;
    const shown = new Uint8Array(this.model.threadWeight.length);
    for (const key of this.selected) for (const thread of this.entries.get(key).threads) shown[thread] = 1;
    return shown;
  }

  select(keys) {
    this.selected = new Set(keys.filter((key) => key !== "" && this.entries.has(key)));
  }
}

function processDimension(model) {
  const t = model.tables;
  const d = new FilterDimension("process", "Process", model);
  t.threadPID.forEach((pid, thread) => {
    const name = t.processes[t.threadProcess[thread]];
    const process = d.root.child(name, name);
    const id = process.child(String(pid), t.diff ? SIDES[pid - 1] : pid > 0 ? "pid " + pid : "");
    const leaf = id.child(String(t.threadTID[thread]), t.diff ? SIDES[pid - 1] : "tid " + t.threadTID[thread]);
    if (!t.diff && !leaf.label.includes(t.threadComm[thread])) leaf.label += " " + t.threadComm[thread];
    d.add(thread, [process, id, leaf]);
  });
  for (const process of d.root.children.values()) {
    const ids = [...process.children.values()];
    if (ids.length === 1) process.note = ids[0].label;
    else if (!t.diff) process.note = grouped.format(ids.length) + " processes";
  }
  return d;
}

/** Threads by texts, of which each thread may have several, or none. */
function textDimension(name, title, model, textsOf) {
  const d = new FilterDimension(name, title, model);
  model.tables.threadPID.forEach((_, thread) => {
    const texts = textsOf(thread);
    for (const text of texts) d.add(thread, [d.root.child(text, text)]);
    if (texts.length === 0) d.add(thread, [d.root.childOf(WITHOUT, "without")]);
  });
  return d;
}

/** All dimensions in which there is something to choose. */
function filterDimensions(model) {
  const t = model.tables;
  const dimensions = [processDimension(model)];
  if (!t.diff) dimensions.push(textDimension("comm", "Thread name", model, (thread) => [t.threadComm[thread]]));
  for (const key of [...new Set(t.labelKeys)].sort()) {
    const textsOf = (thread) => t.labelSets[t.threadLabels[thread]].filter((l) => t.labelKeys[l] === key).map((l) => t.labelValues[l]);
    dimensions.push(textDimension("label." + key, key, model, textsOf));
  }
  return dimensions;
}

class Filter {
  constructor(model, elements, changed) {
    this.model = model;
    this.button = elements.button;
    this.panel = elements.panel;
    this.list = elements.list;
    this.input = elements.input;
    this.tabs = elements.tabs;
    this.changed = changed;
    this.open = new Set(); // entries whose children are shown
    this.dimensions = filterDimensions(model);
    this.dimension = this.dimensions[0]; // that is listed
    this.weigh();

    this.button.addEventListener("click", () => this.toggle());
    this.input.addEventListener("input", () => this.show());
    elements.clear.addEventListener("click", () => {
      for (const d of this.dimensions) d.select([]);
      this.change();
    });
    document.addEventListener("pointerdown", (e) => {
      if (!this.panel.hidden && !this.panel.contains(e.target) && !this.button.contains(e.target)) this.toggle(false);
    });
  }

  /** Takes the threads' weights, which depend on what widths show. */
  weigh() {
    for (const d of this.dimensions) d.weigh();
    if (!this.panel.hidden) this.show();
  }

  /** The threads to count: a list by thread, or null for all. */
  shown() {
    const parts = this.dimensions.map((d) => d.shown()).filter(Boolean);
    if (parts.length === 0) return null;
    return parts.reduce((all, part) => all.map((is, thread) => is & part[thread]));
  }

  /** What is selected, by names of dimensions, for links. */
  selection() {
    return Object.fromEntries(this.dimensions.filter((d) => d.selected.size > 0).map((d) => [d.name, [...d.selected]]));
  }

  /** Selects without telling. What there is not is dropped. */
  restore(selection) {
    for (const d of this.dimensions) d.select(selection[d.name] || []);
    this.label();
    if (!this.panel.hidden) this.show();
  }

  change() {
    this.label();
    if (!this.panel.hidden) this.show();
    this.changed();
  }

  label() {
    const names = [];
    for (const d of this.dimensions) {
      for (const key of d.selected) {
        const parts = key.split("/").map(decodeURIComponent);
        if (d.name !== "process") names.push(`${d.title} ${d.entries.get(key).label}`);
        else names.push(parts.length === 1 ? parts[0] : parts.length === 2 ? "pid " + parts[1] : "tid " + parts[2]);
      }
    }
    let text = "Filter";
    if (names.length > 0) text = names.length > 2 ? `${names.length} selected` : names.join(", ");
    this.button.querySelector("span").textContent = text;
    this.button.classList.toggle("active", names.length > 0);
  }

  toggle(open = this.panel.hidden) {
    this.panel.hidden = !open;
    this.button.setAttribute("aria-expanded", String(open));
    if (open) {
      this.show();
      this.input.focus();
    }
  }

  show() {
    this.showTabs();
    const wanted = this.input.value.trim().toLowerCase();
    const rows = [];
    const walk = (entry) => {
      for (const child of entry.sorted()) {
        // A process with one ID needs no row for that.
        if (child.level === 2 && entry.children.size === 1) {
          if (wanted !== "" || this.open.has(entry)) walk(child);
          continue;
        }
        if (wanted === "" || `${child.label} ${child.note}`.toLowerCase().includes(wanted)) rows.push(child);
        if (wanted !== "" || this.open.has(child)) walk(child);
      }
    };
    walk(this.dimension.root);
    this.list.replaceChildren(...rows.slice(0, LIST_LIMIT).map((entry) => this.row(entry)));
    if (rows.length > LIST_LIMIT || rows.length === 0) {
      const more = document.createElement("li");
      more.className = "more";
      more.textContent = rows.length === 0 ? "nothing by that name" : `${grouped.format(rows.length - LIST_LIMIT)} more: type to find them`;
      this.list.append(more);
    }
  }

  showTabs() {
    this.tabs.hidden = this.dimensions.length < 2;
    this.tabs.replaceChildren(
      ...this.dimensions.map((d) => {
        const tab = document.createElement("button");
        tab.textContent = d.title;
        tab.setAttribute("role", "tab");
        tab.setAttribute("aria-selected", String(d === this.dimension));
        tab.classList.toggle("active", d.selected.size > 0);
        tab.addEventListener("click", () => {
          this.dimension = d;
          this.show();
        });
        return tab;
      }),
    );
  }

  row(entry) {
    const li = document.createElement("li");
    li.style.setProperty("--part", (100 * entry.weight) / (this.model.wholeWeight || 1) + "%");
    li.dataset.level = entry.level;

    const more = document.createElement("button");
    const only = entry.level === 1 && entry.children.size === 1 ? [...entry.children.values()][0] : entry;
    more.className = "expand";
    if (only.children.size > 1) {
      const open = this.open.has(entry);
      more.textContent = open ? "▾" : "▸";
      more.setAttribute("aria-expanded", String(open));
      more.setAttribute("aria-label", "parts of " + entry.label);
      more.addEventListener("click", () => {
        if (!this.open.delete(entry)) this.open.add(entry);
        this.show();
      });
    } else {
      more.disabled = true;
    }

    const label = document.createElement("label");
    const { selected } = this.dimension;
    const box = document.createElement("input");
    box.type = "checkbox";
    box.checked = selected.has(entry.key);
    box.addEventListener("change", () => {
      if (!selected.delete(entry.key)) selected.add(entry.key);
      this.change();
    });
    const span = (name, text) => {
      const s = document.createElement("span");
      s.className = name;
      s.textContent = text;
      return s;
    };
    const share = span("share", formatShare(entry.weight, this.model.wholeWeight));
    share.title = formatWeight(this.model, entry.weight);
    const name = span("name", entry.label);
    name.title = entry.label;
    label.append(box, name, span("note", entry.note), share);
    li.append(more, label);
    return li;
  }
}
