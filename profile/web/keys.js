// What keys do.

class Keys {
  constructor(app) {
    this.app = app;
    document.addEventListener("keydown", (e) => this.key(e));
    const input = byID("search");
    input.addEventListener("keydown", (e) => {
      if (e.key === "Enter") app.nextHit(e.shiftKey ? -1 : 1);
      else if (e.key === "Escape") {
        app.find("");
        app.stage.graph.focus();
      } else return;
      e.preventDefault();
      e.stopPropagation();
    });
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || byID("help").open) return;
    const { target } = event;
    const typing = target instanceof HTMLInputElement && target.type !== "checkbox";
    if (event.key === "Escape") this.escape();
    else if (typing) return;
    else if (event.key === "Enter" && (target instanceof HTMLButtonElement || target instanceof HTMLAnchorElement)) return;
    else if (!this.shortcut(event.key)) return;
    event.preventDefault();
  }

  /** Does what a key stands for and reports whether it stands for something. */
  shortcut(key) {
    const { app } = this;
    switch (key) {
      case "/":
        byID("search").focus();
        byID("search").select();
        return true;
      case "n": app.nextHit(1); return true;
      case "N": app.nextHit(-1); return true;
      case "c": app.setView(!app.callers); return true;
      case "w": return app.nextWidths();
      case "f": app.setFlame(!app.flame); return true;
      case "p": app.filter.toggle(); return true;
      case "d": app.toggleDetails(); return true;
      case "t": app.toggleTheme(); return true;
      case "?": byID("help").showModal(); return true;
      case "Home": app.zoom(app.tree.root); return true;
      case "Backspace":
        if (app.zoomed.parent) app.zoom(app.zoomed.parent);
        return true;
      case "Enter":
        if (app.selected) app.zoom(app.selected);
        return true;
      case "ArrowUp": this.step(app.flame ? 1 : -1); return true;
      case "ArrowDown": this.step(app.flame ? -1 : 1); return true;
      case "ArrowLeft": this.sidestep(-1); return true;
      case "ArrowRight": this.sidestep(1); return true;
    }
    return false;
  }

  /** Closes or undoes what is uppermost. */
  escape() {
    const { app } = this;
    if (!app.filter.panel.hidden) app.filter.toggle(false);
    else if (document.body.classList.contains("details")) app.toggleDetails();
    else if (app.search.text) app.find("");
    else if (app.zoomed.parent) app.zoom(app.tree.root);
    else app.unhover();
  }

  step(down) {
    const from = this.current();
    this.app.choose(down > 0 ? this.app.stage.layout.widestChild(from) : from.parent);
  }

  sidestep(by) {
    this.app.choose(this.app.stage.layout.neighbour(this.current(), by));
  }

  /** The frame that keys start from. */
  current() {
    const { app } = this;
    const frame = app.selected || app.hovered;
    return frame && app.stage.layout.has(frame) ? frame : app.zoomed;
  }
}
