// Elements by name, attributes and children. Text goes in as text: nothing on this page is ever parsed as HTML, because
// names, paths and variables come from a machine that nobody has to trust.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null) element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

function make(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

function draw(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

// The word that no picture of a simulated run goes without.
function simWord(sim) {
  return sim ? [" ", make("span", { class: "sim" }, "sim")] : [];
}

// A box that may be narrower than what is in it, and the words that say so while there is more at its right.
function scrolling(box) {
  const hint = make("p", { class: "hint", "aria-hidden": "true" }, "more columns: scroll →");
  const look = () => {
    const more = box.scrollWidth - box.clientWidth - box.scrollLeft > 2;
    box.classList.toggle("cut", more);
    hint.hidden = !more;
  };
  box.addEventListener("scroll", look, { passive: true });
  const sizes = new ResizeObserver(look);
  for (const element of [box, ...box.children]) sizes.observe(element);
  look();
  return [box, hint];
}

// A labelled <select>; `options` are texts. `choose` gets the index of the one that was taken.
function chooser(form, title, choose) {
  const select = make("select");
  select.addEventListener("change", () => choose(select.selectedIndex));
  form.append(make("label", {}, make("span", {}, title), select));
  return {
    select,
    show(options, chosen) {
      select.replaceChildren(...options.map((text) => make("option", {}, text)));
      select.selectedIndex = chosen;
      select.disabled = options.length < 2;
    },
  };
}
