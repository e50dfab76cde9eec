// Curves over message size, as SVG: sharp on paper, styled by the page, and of a few kilobytes.

const MARGIN = { left: 52, right: 64, top: 14, bottom: 38 };
const HEIGHT = 340;
const NEAR = 24; // px from the pointer to a point that it means
const DASH = [7, 5]; // px of a theory line, and of its gap
const NAME = { width: 165, height: 14 }; // px that the name of a theory line takes
const GROUPS = 7; // colours; more labels share them

class Chart {
  // `passed(set, size)` hears of the point under the pointer, null when there is none; `took` of one that was clicked.
  constructor({ passed, took }) {
    this.svg = draw("svg", { class: "chart", role: "img" });
    this.points = [];
    this.svg.addEventListener("pointermove", (event) => passed(this.#nearest(event)));
    this.svg.addEventListener("pointerleave", () => passed(null));
    this.svg.addEventListener("click", (event) => {
      const point = this.#nearest(event);
      if (point) took(point);
    });
  }

  // `lines` are {set, group, value, low, high}, the last three by size; `theory` are {level, label, name, own}, highest first.
  show({ width, sizes, names, lines, chosen, theory, size, unit, log, says }) {
    this.width = Math.max(260, width);
    this.svg.setAttribute("viewBox", `0 0 ${this.width} ${HEIGHT}`);
    this.svg.setAttribute("aria-label", says);
    const levels = lines.flatMap((line) => line.value).filter((value) => value !== null && value > 0);
    if (!levels.length) {
      this.svg.replaceChildren(draw("text", { x: 20, y: 40, class: "tick" }, "nothing was measured"));
      return;
    }
    this.x = axisOfSizes(sizes, this.width);
    this.y = axisOfValues([...levels, ...theory.map(({ level }) => level)], log);
    this.points = lines.flatMap((line) => line.value.map((value, at) => this.#point(line.set, at, value)));
    this.points = this.points.filter((point) => point !== null);
    const groups = [...new Set(lines.map((line) => line.group))];
    this.svg.replaceChildren(
      this.#scales(names, unit),
      draw("line", { class: "cursor", x1: this.x(size), x2: this.x(size), y1: MARGIN.top, y2: HEIGHT - MARGIN.bottom }),
      ...lines.filter((line) => line !== chosen).map((line) => this.#curve(line, groups)),
      ...this.#theory(theory, groups),
      ...(chosen ? this.#chosen(chosen, groups) : []),
      ...this.#ends(lines, groups),
    );
  }

  #point(set, at, value) {
    return value === null ? null : { set, size: at, x: this.x(at), y: this.y(value) };
  }

  // Grid lines and their figures: sizes below, as many as fit; values at the left.
  #scales(names, unit) {
    const group = draw("g");
    const right = this.width - MARGIN.right;
    for (const tick of this.y.ticks) {
      const y = this.y(tick);
      group.append(draw("line", { class: "grid", x1: MARGIN.left, x2: right, y1: y, y2: y }));
      group.append(draw("text", { class: "tick", x: MARGIN.left - 8, y: y + 4, "text-anchor": "end" }, tickText(tick)));
    }
    const every = Math.ceil(names.length / Math.max(2, Math.floor((right - MARGIN.left) / 44)));
    names.forEach((name, at) => {
      if ((names.length - 1 - at) % every) return;
      group.append(
        draw("text", { class: "tick", x: this.x(at), y: HEIGHT - MARGIN.bottom + 18, "text-anchor": "middle" }, name),
      );
    });
    group.append(draw("text", { class: "tick", x: MARGIN.left, y: HEIGHT - 4 }, `${unit} over message size in bytes`));
    return group;
  }

  #path(values) {
    let path = "";
    let pen = "M";
    values.forEach((value, at) => {
      if (value === null || value <= 0) {
        pen = "M";
        return;
      }
      path += `${pen}${this.x(at).toFixed(1)} ${this.y(value).toFixed(1)}`;
      pen = "L";
    });
    return path;
  }

  #curve(line, groups) {
    return draw("path", { class: `curve g${groups.indexOf(line.group) % GROUPS}`, d: this.#path(line.value) });
  }

  #chosen(line, groups) {
    const shade = `g${groups.indexOf(line.group) % GROUPS}`;
    const dots = line.value.flatMap((value, at) => {
      if (value === null || value <= 0) return [];
      const [x, y] = [this.x(at), this.y(value)];
      const dot = draw("circle", { class: `dot ${shade}`, cx: x, cy: y, r: 3.5 });
      if (line.low[at] === null) return [dot];
      const whisker = `M${x} ${this.y(line.low[at])}V${this.y(line.high[at])}`;
      return [draw("path", { class: `whisker ${shade}`, d: whisker }), dot];
    });
    return [this.#band(line, shade), draw("path", { class: `curve chosen ${shade}`, d: this.#path(line.value) }), ...dots];
  }

  #band(line, shade) {
    const known = line.value.map((_, at) => at).filter((at) => line.low[at] !== null);
    const there = known.map((at) => `${this.x(at)} ${this.y(line.high[at])}`);
    const back = known.reverse().map((at) => `${this.x(at)} ${this.y(line.low[at])}`);
    return draw("path", { class: `band ${shade}`, d: there.length > 1 ? `M${[...there, ...back].join("L")}Z` : "" });
  }

  // A line for each label's limit in the label's colour; the chosen link's is the strong one. Labels with the same limit
  // take turns along the line. Names that would overlap stand below their line, or beside each other, or nowhere.
  #theory(levels, groups) {
    const taken = [];
    const right = this.width - MARGIN.right;
    return levels.flatMap(({ level, label, name, own }) => {
      const y = this.y(level);
      const equal = levels.filter((one) => one.level === level);
      const turn = equal.findIndex((one) => one.label === label) * (DASH[0] + DASH[1]);
      const gap = DASH[1] + (equal.length - 1) * (DASH[0] + DASH[1]);
      const colour = groups.includes(label) ? ` g${groups.indexOf(label) % GROUPS}` : "";
      const look = `${own === false ? " other" : ""}${colour}`;
      const line = draw("line", {
        class: `theory${look}`, x1: MARGIN.left, x2: right, y1: y, y2: y,
        "stroke-dasharray": `${DASH[0]} ${gap}`, "stroke-dashoffset": -turn,
      });
      const columns = Math.max(1, Math.floor((right - MARGIN.left) / NAME.width));
      const spots = Array.from({ length: columns }, (_, column) => MARGIN.left + 6 + column * NAME.width).flatMap((x) => [
        [x, y - 5],
        [x, y + 13],
      ]);
      const free = spots.find(([x, base]) => taken.every((one) => one[0] !== x || Math.abs(one[1] - base) >= NAME.height));
      if (free === undefined) return [line];
      taken.push(free);
      return [line, draw("text", { class: `theory-name${look}`, x: free[0], y: free[1] }, name)];
    });
  }

  // Each label's name where its curves end; names that would overlap move apart.
  #ends(lines, groups) {
    const ends = groups.filter(Boolean).map((group) => {
      const own = lines.filter((line) => line.group === group);
      const last = own.map((line) => line.value.findLast((value) => value !== null)).filter((value) => value > 0);
      last.sort((a, b) => a - b);
      return { group, y: last.length ? this.y(last[Math.floor(last.length / 2)]) : null };
    });
    const shown = ends.filter((end) => end.y !== null).sort((a, b) => a.y - b.y);
    shown.forEach((end, at) => {
      if (at) end.y = Math.max(end.y, shown[at - 1].y + 15);
    });
    return shown.map(({ group, y }) => {
      const shade = `g${groups.indexOf(group) % GROUPS}`;
      return draw("text", { class: `end ${shade}`, x: this.width - MARGIN.right + 8, y: y + 4 }, group);
    });
  }

  #nearest(event) {
    const box = this.svg.getBoundingClientRect();
    const scale = this.width / box.width;
    const [x, y] = [(event.clientX - box.left) * scale, (event.clientY - box.top) * scale];
    let best = null;
    let least = NEAR;
    for (const point of this.points) {
      const far = Math.hypot(point.x - x, point.y - y);
      if (far < least) [best, least] = [point, far];
    }
    return best;
  }
}

// Sizes stand at even distances when they double or quadruple: their logarithms do.
function axisOfSizes(sizes, width) {
  const logs = sizes.map((size) => Math.log2(size));
  const span = logs[logs.length - 1] - logs[0] || 1;
  const room = width - MARGIN.left - MARGIN.right;
  return (at) => MARGIN.left + (sizes.length === 1 ? room / 2 : ((logs[at] - logs[0]) / span) * room);
}

// Logarithmic, or even from 0.
function axisOfValues(levels, log) {
  const [least, most] = [Math.min(...levels), Math.max(...levels)];
  const ticks = log ? decades(least, most) : evenly(0, most * 1.06);
  const [low, high] = log ? [Math.min(least, ticks[0]), Math.max(most, ticks[ticks.length - 1])] : [0, most * 1.06];
  const [bottom, room] = [HEIGHT - MARGIN.bottom, HEIGHT - MARGIN.bottom - MARGIN.top];
  const scaled = (value) => {
    const share = log
      ? (Math.log(value) - Math.log(low)) / (Math.log(high) - Math.log(low) || 1)
      : (value - low) / (high - low || 1);
    return bottom - Math.max(-0.02, Math.min(1.02, share)) * room;
  };
  scaled.ticks = ticks;
  return scaled;
}

// 1, 10, 100, …; 1, 2, 5 between them where the span is small.
function decades(least, most) {
  const [from, to] = [Math.floor(Math.log10(least)), Math.ceil(Math.log10(most))];
  const steps = to - from > 2 ? [1] : [1, 2, 5];
  const all = [];
  for (let power = from; power <= to; power += 1) for (const step of steps) all.push(step * 10 ** power);
  const first = all.findLastIndex((tick) => tick <= least);
  const last = all.findIndex((tick) => tick >= most);
  return all.slice(Math.max(0, first), last < 0 ? all.length : last + 1);
}

function evenly(least, most) {
  const rough = (most - least) / 5;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough);
  const [first, last] = [Math.ceil(least / step - 1e-9), Math.floor(most / step + 1e-9)];
  return Array.from({ length: last - first + 1 }, (_, at) => (first + at) * step);
}

function tickText(value) {
  return String(Number(value.toPrecision(3)));
}
