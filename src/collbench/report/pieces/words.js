// Numbers and sizes as people read them. All values come from the page's data.

const NONE = "–";

// Four digits at most, and of small figures two, so that 0.0043 does not print as 0.00.
function figureText(value) {
  if (value === null || value === undefined) return NONE;
  if (value >= 9999.5) return value.toFixed(0);
  if (value >= 9.95) return value.toFixed(1);
  if (value >= 0.995) return value.toFixed(2);
  return value > 0 ? String(Number(value.toPrecision(2))) : "0";
}

function intervalText(low, high) {
  if (low === null || high === null) return "";
  return `${figureText(low)}–${figureText(high)}`;
}

const RELATIONS = {
  t: "tied with the best",
  d: "different from the best",
  u: "undecided against the best",
  f: "failed",
  i: "impossible",
};

function tierText(entry) {
  return entry && entry.length ? `${entry[0]}, ${RELATIONS[entry[1]]}` : "";
}
