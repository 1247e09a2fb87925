// The filter by process and thread: a list of processes by name, below each
// its process IDs if there are several, and below these the threads.

const LIST_LIMIT = 300; // entries shown at once

/** An entry of the list. Its key names it in links: "name", "name/pid" or "name/pid/tid". */
class FilterEntry {
  constructor(key, label, level) {
    this.key = key;
    this.label = label;
    this.level = level;
    this.threads = [];
    this.weight = 0;
    this.children = new Map();
  }

  child(part, label) {
    let c = this.children.get(part);
    if (!c) {
      c = new FilterEntry(this.key + (this.key ? "/" : "") + encodeURIComponent(part), label, this.level + 1);
      this.children.set(part, c);
    }
    return c;
  }

  add(thread, weight) {
    this.threads.push(thread);
    this.weight += weight;
  }

  sorted() {
    return [...this.children.values()].sort((a, b) => b.weight - a.weight || (a.key < b.key ? -1 : 1));
  }
}

class ProcessFilter {
  constructor(model, elements, changed) {
    this.model = model;
    this.button = elements.button;
    this.panel = elements.panel;
    this.list = elements.list;
    this.input = elements.input;
    this.changed = changed;
    this.selected = new Set(); // keys; none selects all
    this.open = new Set(); // keys of entries whose children are shown
    this.root = this.group();

    this.button.addEventListener("click", () => this.toggle());
    this.input.addEventListener("input", () => this.show());
    elements.clear.addEventListener("click", () => this.select([]));
    document.addEventListener("pointerdown", (e) => {
      if (!this.panel.hidden && !this.panel.contains(e.target) && !this.button.contains(e.target)) this.toggle(false);
    });
  }

  group() {
    const t = this.model.tables;
    const root = new FilterEntry("", "", 0);
    this.entries = new Map();
    t.threadPID.forEach((pid, thread) => {
      const weight = this.model.threadWeight[thread];
      const name = t.processes[t.threadProcess[thread]];
      const process = root.child(name, name);
      const id = process.child(String(pid), t.diff ? SIDES[pid - 1] : pid > 0 ? "pid " + pid : "");
      const leaf = id.child(String(t.threadTID[thread]), t.diff ? SIDES[pid - 1] : "tid " + t.threadTID[thread]);
      if (!t.diff && !leaf.label.includes(t.threadComm[thread])) leaf.label += " " + t.threadComm[thread];
      for (const entry of [root, process, id, leaf]) {
        entry.add(thread, weight);
        this.entries.set(entry.key, entry);
      }
    });
    return root;
  }

  /** The threads to count: a list by thread, or null for all. */
  shown() {
    const entries = [...this.selected].map((key) => this.entries.get(key)).filter(Boolean);
    if (entries.length === 0) return null;
    const shown = new Uint8Array(this.model.threadWeight.length);
    for (const entry of entries) for (const thread of entry.threads) shown[thread] = 1;
    return shown;
  }

  select(keys) {
    this.restore(keys);
    this.changed();
  }

  /** Selects without telling. Keys of no entry are dropped. */
  restore(keys) {
    this.selected = new Set(keys.filter((key) => key !== "" && this.entries.has(key)));
    this.label();
    if (!this.panel.hidden) this.show();
  }

  label() {
    const names = [...this.selected].map((key) => {
      const parts = key.split("/").map(decodeURIComponent);
      return parts.length === 1 ? parts[0] : parts.length === 2 ? "pid " + parts[1] : "tid " + parts[2];
    });
    let text = "Processes";
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
    const wanted = this.input.value.trim().toLowerCase();
    const rows = [];
    const walk = (entry) => {
      for (const child of entry.sorted()) {
        // A process with one ID needs no row for that.
        if (child.level === 2 && entry.children.size === 1) {
          if (this.open.has(entry.key)) walk(child);
          continue;
        }
        if (wanted === "" || this.text(child).includes(wanted)) rows.push(child);
        if (wanted !== "" || this.open.has(child.key)) walk(child);
      }
    };
    walk(this.root);
    this.list.replaceChildren(...rows.slice(0, LIST_LIMIT).map((entry) => this.row(entry)));
    if (rows.length > LIST_LIMIT) {
      const more = document.createElement("li");
      more.className = "more";
      more.textContent = `${grouped.format(rows.length - LIST_LIMIT)} more: type to find them`;
      this.list.append(more);
    }
  }

  text(entry) {
    return (entry.label + " " + this.note(entry)).toLowerCase();
  }

  note(entry) {
    if (entry.level !== 1) return "";
    if (entry.children.size > 1) return this.model.tables.diff ? "" : grouped.format(entry.children.size) + " processes";
    return [...entry.children.values()][0].label;
  }

  row(entry) {
    const li = document.createElement("li");
    li.style.setProperty("--part", (100 * entry.weight) / (this.model.wholeWeight || 1) + "%");
    li.dataset.level = entry.level;

    const more = document.createElement("button");
    const only = entry.level === 1 && entry.children.size === 1 ? [...entry.children.values()][0] : entry;
    more.className = "expand";
    if (only.children.size > 1) {
      const open = this.open.has(entry.key);
      more.textContent = open ? "▾" : "▸";
      more.setAttribute("aria-expanded", String(open));
      more.setAttribute("aria-label", "parts of " + entry.label);
      more.addEventListener("click", () => {
        if (!this.open.delete(entry.key)) this.open.add(entry.key);
        this.show();
      });
    } else {
      more.disabled = true;
    }

    const label = document.createElement("label");
    const box = document.createElement("input");
    box.type = "checkbox";
    box.checked = this.selected.has(entry.key);
    box.addEventListener("change", () => {
      const keys = new Set(this.selected);
      if (box.checked) keys.add(entry.key);
      else keys.delete(entry.key);
      this.select([...keys]);
    });
    const name = document.createElement("span");
    name.className = "name";
    name.textContent = entry.label;
    const note = document.createElement("span");
    note.className = "note";
    note.textContent = this.note(entry);
    const share = document.createElement("span");
    share.className = "share";
    share.textContent = formatShare(entry.weight, this.model.wholeWeight);
    share.title = formatWeight(this.model, entry.weight);
    label.append(box, name, note, share);
    li.append(more, label);
    return li;
  }
}
