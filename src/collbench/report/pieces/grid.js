// A heat map as a table that a keyboard walks: arrow keys, Home, End; Page Up and Page Down are the owner's.

const STEPS = {
  ArrowRight: [0, 1],
  ArrowLeft: [0, -1],
  ArrowDown: [1, 0],
  ArrowUp: [-1, 0],
};

let grids = 0;

class Grid {
  // `took(cell)` hears of a cell that has the focus, `passed(cell)` of one under the pointer, null when it has left;
  // `turned(step)` of Page Up and Page Down.
  constructor({ took, passed, turned }) {
    grids += 1;
    this.title = make("h3", { class: "title", id: `map-title-${grids}` });
    this.head = make("thead");
    this.body = make("tbody");
    this.table = make("table", { class: "heat", role: "grid", "aria-labelledby": this.title.id }, this.head, this.body);
    this.took = took;
    this.passed = passed;
    this.turned = turned;
    this.home = [0, 0];
    this.table.addEventListener("keydown", (event) => this.#key(event));
    this.table.addEventListener("focusin", (event) => this.#focused(event.target));
    this.table.addEventListener("pointerover", (event) => passed(this.#cellOf(event.target)));
    this.table.addEventListener("pointerleave", () => passed(null));
  }

  // `rows` are {head, cells}; a cell is {text, shade, says, …} and comes back as it is. `chosen` says where the focus is.
  show(heads, rows, chosen) {
    this.rows = rows;
    this.home = chosen;
    const named = heads.map((text) => make("th", { scope: "col", role: "columnheader", title: text }, text));
    this.head.replaceChildren(make("tr", { role: "row" }, make("td", { role: "presentation" }), ...named));
    this.body.replaceChildren(...rows.map((row, at) => this.#row(row, at)));
    this.#mark();
  }

  // The focus goes where it was before the table was drawn anew.
  refocus() {
    this.#element(...this.home)?.focus();
  }

  get focused() {
    return this.table.contains(document.activeElement);
  }

  #row(row, at) {
    const cells = row.cells.map((cell, column) =>
      make(
        "td",
        { role: "gridcell", class: `s${cell.shade}`, tabindex: "-1", "aria-label": cell.says, "data-at": `${at},${column}` },
        cell.text,
      ),
    );
    return make("tr", { role: "row" }, make("th", { scope: "row", role: "rowheader", title: row.head }, row.head), ...cells);
  }

  #element(row, column) {
    return this.body.rows[row]?.cells[column + 1];
  }

  #cellOf(target) {
    const [row, column] = (target.closest("td[data-at]")?.dataset.at ?? ",").split(",").map(Number);
    return this.rows[row]?.cells[column] ?? null;
  }

  #focused(target) {
    const at = target.dataset.at;
    if (at === undefined) return;
    this.home = at.split(",").map(Number);
    this.#mark();
    this.took(this.#cellOf(target));
  }

  // One cell is in the tab order: the one that was last chosen.
  #mark() {
    for (const cell of this.body.querySelectorAll('[tabindex="0"]')) cell.tabIndex = -1;
    for (const cell of this.body.querySelectorAll("[aria-selected]")) cell.removeAttribute("aria-selected");
    const cell = this.#element(...this.home);
    if (cell) {
      cell.tabIndex = 0;
      cell.setAttribute("aria-selected", "true");
    }
  }

  #key(event) {
    if (event.altKey || event.metaKey) return;
    const turn = { PageUp: 1, PageDown: -1 }[event.key];
    const to = turn ? null : this.#target(event);
    if (!turn && !to) return;
    event.preventDefault();
    if (turn) this.turned(turn);
    else this.#element(...to)?.focus();
  }

  #target(event) {
    const [row, column] = this.home;
    const [lastRow, lastColumn] = [this.rows.length - 1, this.rows[0].cells.length - 1];
    if (event.key === "Home") return [event.ctrlKey ? 0 : row, 0];
    if (event.key === "End") return [event.ctrlKey ? lastRow : row, lastColumn];
    const step = STEPS[event.key];
    if (!step) return null;
    const clamp = (value, most) => Math.max(0, Math.min(most, value));
    return [clamp(row + step[0], lastRow), clamp(column + step[1], lastColumn)];
  }
}
