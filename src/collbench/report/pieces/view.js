// One run's map and curves: what is chosen, and the parts that show it.

const DIRECTIONS = ["row sends to column", "row receives from column", "the slower direction"];
const [SENDS, RECEIVES] = [0, 1];
const MOST_BESIDE = 9; // columns of a map that fits next to its curves
// Squares without a number: text and shade.
const FAILED = { text: "✕", shade: "0" };
const MISSING = { text: NONE, shade: "-" };
const SAME = { text: "", shade: "1" };
const SCALES = ["logarithmic", "linear"];
const COVERS = "95% interval"; // of the median
const SHADES = { A: "0%", E: "25%", I: "50%", M: "75%", Q: "90%", U: "95%", X: "98%", Y: "of the best" };

class View {
  constructor(section, data) {
    this.data = data;
    this.now = { series: firstSeries(data.series), size: 0, figure: 0, direction: SENDS, scale: 0, set: 0 };
    this.now.size = this.series.sizes.length - 1;
    this.now.set = this.#best();
    this.grid = new Grid({
      took: (cell) => this.#take(cell),
      passed: (cell) => this.#tell(cell ?? this.now),
      turned: (step) => this.#choose("size", this.now.size + step),
    });
    this.chart = new Chart({ passed: (point) => this.#tell(point ?? this.now), took: (point) => this.#take(point, true) });
    this.form = make("form", { class: "controls", "aria-label": "What the map shows" });
    this.form.addEventListener("submit", (event) => event.preventDefault());
    this.choosers = {
      series: chooser(this.form, "Operation", (at) => this.#chooseSeries(at)),
      size: chooser(this.form, "Size", (at) => this.#choose("size", at)),
      figure: chooser(this.form, "Figure", (at) => this.#choose("figure", at)),
      direction: chooser(this.form, "Direction", (at) => this.#choose("direction", at)),
      scale: chooser(this.form, "Scale of the curves", (at) => this.#choose("scale", at)),
    };
    this.readout = make("div", { class: "readout", role: "status" });
    this.sentence = make("p", { class: "sentence" });
    this.legend = make("p", { class: "legend", "aria-hidden": "true" });
    this.curves = make("figcaption");
    this.table = make("tbody");
    section.querySelector(".written").before(this.form, (this.panes = this.#makePanes()));
    new ResizeObserver(() => this.#curves()).observe(this.chart.svg.parentElement);
    this.#show();
  }

  get series() {
    return this.data.series[this.now.series];
  }

  get figure() {
    return this.series.figures[this.now.figure];
  }

  // A matrix of devices; else sets of devices down and sizes across.
  get square() {
    return this.series.kind === "link" || this.series.kind === "pair";
  }

  #makePanes() {
    const box = scrolling(make("div", { class: "box" }, this.grid.table));
    const heads = ["size", "value", COVERS].map((text) => make("th", { scope: "col" }, text));
    const head = make("tr", {}, ...heads);
    const table = make("table", { class: "list" }, make("thead", {}, head), this.table);
    const details = make("details", {}, make("summary", {}, "The figures of this curve"), table);
    return make(
      "div",
      { class: "panes" },
      make("div", { class: "pane" }, this.grid.title, ...box, this.legend, this.sentence, this.readout),
      make("figure", { class: "pane" }, this.curves, make("div", {}, this.chart.svg), details),
    );
  }

  #chooseSeries(at) {
    const size = this.series.sizes[this.now.size];
    const title = this.figure.title;
    this.now.series = at;
    const same = this.series.sizes.indexOf(size);
    this.now.size = same < 0 ? this.series.sizes.length - 1 : same;
    this.now.figure = Math.max(0, this.series.figures.findIndex((figure) => figure.title === title));
    if (this.now.set >= this.series.sets.length) this.now.set = this.#best();
    this.#show();
  }

  // The set to begin with: the best at this size, as the first answer of the page has it.
  #best() {
    const values = this.series.figures[0].value[this.now.size];
    const known = values.filter((value) => value !== null);
    const best = this.series.figures[0].least ? Math.min(...known) : Math.max(...known);
    return Math.max(0, values.indexOf(best));
  }

  #choose(what, at) {
    const most = what === "size" ? this.series.sizes.length - 1 : at;
    this.now[what] = Math.max(0, Math.min(most, at));
    this.#show();
  }

  // A cell or a point of a curve was chosen; the map need not be drawn anew unless another size was.
  #take(cell, fromCurve = false) {
    if (cell === null || cell.set === null) return;
    const other = cell.size !== this.now.size || fromCurve;
    this.now.set = cell.set;
    this.now.size = cell.size;
    if (other && (this.square || fromCurve)) this.#show();
    else {
      this.#choices();
      this.#tell(this.now);
      this.#curves();
    }
  }

  #show() {
    const focused = this.grid.focused;
    this.#choices();
    this.#map();
    this.#tell(this.now);
    this.#curves();
    if (focused) this.grid.refocus();
  }

  #choices() {
    const { series, now } = this;
    this.choosers.series.show(this.data.series.map((one) => one.name), now.series);
    this.choosers.size.show(series.size_names, now.size);
    this.choosers.figure.show(series.figures.map((one) => `${one.title}, ${one.unit}`), now.figure);
    this.choosers.direction.show(series.kind === "link" ? DIRECTIONS : [series.about], series.kind === "link" ? now.direction : 0);
    this.choosers.scale.show(SCALES, now.scale);
  }

  #map() {
    const { series, figure, now, data } = this;
    const about = series.kind === "link" ? DIRECTIONS[now.direction] : series.about;
    const at = this.square ? ` at ${series.size_names[now.size]}` : "";
    const title = `${series.name}${at}: ${figure.title}, ${figure.unit} (${about})`;
    this.grid.title.replaceChildren(title, ...simWord(data.sim));
    const rows = this.square ? this.#matrix() : this.#list();
    let home = [0, this.square ? 1 : 0];
    rows.forEach((row, r) => {
      const column = row.cells.findIndex((cell) => cell.set === now.set && cell.size === now.size);
      if (column >= 0 && (home[2] === undefined || r === this.grid.home[0])) home = [r, column, true];
    });
    const heads = this.square ? data.tags : series.size_names;
    this.panes.classList.toggle("wide", heads.length > MOST_BESIDE);
    this.grid.show(heads, rows, home.slice(0, 2));
    this.sentence.textContent = now.figure === 0 ? sentence(series.verdicts[now.size]) : "";
    this.#legend();
  }

  #matrix() {
    const { series, data } = this;
    const sets = new Map(series.sets.map((devices, at) => [devices.join(), at]));
    const find = (a, b) => sets.get(`${a},${b}`) ?? (series.kind === "pair" ? sets.get(`${b},${a}`) : undefined);
    return data.tags.map((tag, row) => ({
      head: tag,
      cells: data.tags.map((_, column) =>
        row === column ? this.#empty(SAME, `${tag}: the same device`) : this.#measured(find, row, column),
      ),
    }));
  }

  #measured(find, row, column) {
    const set = this.#directed(find, row, column);
    const joint = this.series.kind === "link" ? " → " : ", ";
    const [tag, other] = [this.data.tags[row], this.data.tags[column]];
    return set === undefined ? this.#empty(MISSING, `${tag}${joint}${other}: not measured`) : this.#cell(set, this.now.size);
  }

  // A square without a data point.
  #empty({ text, shade }, says) {
    return { text, shade, says, set: null, size: this.now.size };
  }

  #directed(find, row, column) {
    const [there, back] = [find(row, column), find(column, row)];
    if (this.series.kind === "pair" || this.now.direction === SENDS) return there;
    if (this.now.direction === RECEIVES || there === undefined) return back;
    if (this.#failed(there, this.now.size)) return there;
    if (back === undefined || this.#failed(back, this.now.size)) return back ?? there;
    const [mine, other] = [this.#bounds(there, this.now.size)[1], this.#bounds(back, this.now.size)[1]];
    return other !== null && (mine === null || other > mine === this.figure.least) ? back : there;
  }

  #list() {
    return this.series.names.map((name, set) => ({
      head: name,
      cells: this.series.sizes.map((_, size) => this.#cell(set, size)),
    }));
  }

  #cell(set, size) {
    const [, value] = this.#bounds(set, size);
    const failed = value === null && this.#failed(set, size);
    const text = failed ? FAILED.text : figureText(value);
    const says = `${this.series.names[set]}: ${value === null ? this.#missing(set, size) : `${text} ${this.figure.unit}`}`;
    return { text, shade: failed ? FAILED.shade : this.figure.shades[size][set], says, set, size };
  }

  #failed(set, size) {
    return this.series.failed[size]?.includes(set) ?? false;
  }

  #missing(set, size) {
    return this.#failed(set, size) ? "failed" : "not measured";
  }

  // The low end, the value and the high end of a figure.
  #bounds(set, size, figure = this.figure) {
    return ["low", "value", "high"].map((end) => figure[end][size][set]);
  }

  #tell({ set, size }) {
    if (set === null) return;
    const { series, figure } = this;
    const [low, value, high] = this.#bounds(set, size);
    const theory = series.theory[set];
    const facts = [
      [COVERS, intervalText(low, high) || (value === null ? "" : "too few trials for one")],
      ["size", series.size_names[size]],
      ["label", series.labels[set]],
      ["tier", tierText(series.tiers[size]?.[set])],
      ["theory", theory === null ? "" : `${figureText(theory)} GB/s ${series.ways}`],
      ["note", series.words[series.notes[size][set]]],
    ];
    const text = value === null ? this.#missing(set, size) : `${figureText(value)} ${figure.unit}`;
    const list = facts.filter(([, told]) => told).map(([name, told]) => make("div", {}, make("dt", {}, name), make("dd", {}, told)));
    this.readout.replaceChildren(
      make("p", { class: "devices" }, series.names[set]),
      make("p", { class: "value" }, text),
      make("dl", { class: "facts" }, ...list),
    );
  }

  #curves() {
    const { series, figure, now, data } = this;
    const lines = series.sets.map((_, set) => {
      const [low, value, high] = ["low", "value", "high"].map((end) => figure[end].map((row) => row[set]));
      return { set, group: series.labels[set], low, value, high };
    });
    const title = `${series.name}: ${figure.title} of ${series.names[now.set]}, and of the others`;
    this.curves.replaceChildren(title, ...simWord(data.sim));
    this.chart.show({
      width: this.chart.svg.parentElement.clientWidth,
      sizes: series.sizes,
      names: series.size_names,
      lines,
      chosen: lines[now.set],
      theory: figure.unit === "GB/s" ? this.#limits() : [],
      size: now.size,
      unit: figure.unit,
      log: now.scale === 0,
      says: `${title}, ${figure.unit} over message size`,
    });
    this.#figures(figure);
  }

  // A level for each label and limit; `own` is that of the chosen link or pair.
  #limits() {
    const { series, now } = this;
    const limits = new Map();
    series.theory.forEach((level, set) => {
      if (level === null) return;
      const label = series.labels[set];
      const own = level === series.theory[now.set] && label === series.labels[now.set];
      limits.set(`${level} ${label}`, { level, label, own, name: ["theory", label, figureText(level), "GB/s"].filter(Boolean).join(" ") });
    });
    return [...limits.values()].sort((a, b) => b.level - a.level || (a.label < b.label ? -1 : 1));
  }

  #figures(figure) {
    const rows = this.series.size_names.map((name, size) => {
      const [low, value, high] = this.#bounds(this.now.set, size, figure);
      const texts = [`${figureText(value)} ${figure.unit}`, intervalText(low, high) || NONE];
      return make("tr", {}, make("th", { scope: "row" }, name), ...texts.map((text) => make("td", {}, text)));
    });
    this.table.replaceChildren(...rows);
  }

  #legend() {
    const swatches = Object.entries(SHADES).map(([letter, name]) => make("span", { class: `swatch s${letter}` }, name));
    const shown = new Set(this.grid.rows.flatMap((row) => row.cells.map((cell) => cell.shade)));
    const empty = [[FAILED, "failed"], [MISSING, "not measured"], [SAME, "same device"]].filter(([one]) => shown.has(one.shade));
    const entries = empty.map(([{ text, shade }, meaning]) => make("span", { class: `swatch s${shade}` }, `${text} ${meaning}`.trim()));
    this.legend.replaceChildren(...swatches, ...entries);
  }
}

function sentence(text) {
  return text ? `${text[0].toUpperCase()}${text.slice(1)}.` : "";
}

// What a reader asks first is what training runs: an all-reduce, else the first there is.
function firstSeries(all) {
  return Math.max(0, all.findIndex((one) => one.name.startsWith("allreduce")));
}
