// The page comes alive: tabs for its runs, the theme, printing, and each run's map when it is first seen.

const root = document.documentElement;
const pages = [...document.querySelectorAll("article.page")];
const views = new Map();
root.classList.add("js");

function wake(page) {
  const section = page.querySelector(".maps");
  if (!section || views.has(page)) return; // what compare finds has no map
  const data = JSON.parse(document.getElementById(`${section.dataset.key}-data`).textContent);
  views.set(page, data.series.length ? new View(section, data) : null);
  section.classList.toggle("alive", data.series.length > 0);
}

// Show the page that holds what is named after "#", else the first one.
function turn() {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  const page = target?.closest("article.page") ?? pages[0];
  for (const other of pages) other.hidden = other !== page;
  for (const link of document.querySelectorAll(".tabs a")) {
    if (link.hash === `#${page.id}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  wake(page);
  if (target && target !== page) target.scrollIntoView();
}

function themeButton() {
  const dark = () => (root.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  const button = make("button", { type: "button", class: "theme" });
  const show = () => (button.textContent = dark() ? "Light theme" : "Dark theme"); // what a click gives
  button.addEventListener("click", () => {
    root.dataset.theme = dark() ? "light" : "dark";
    show();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", show);
  show();
  return button;
}

// On paper nothing can be opened: what is worth a page is, and the rest only where the reader opened it.
function openForPaper() {
  const closed = [...document.querySelectorAll("article:not([hidden]) details[data-paper]:not([open])")];
  for (const details of closed) details.open = true;
  addEventListener("afterprint", () => closed.forEach((details) => (details.open = false)), { once: true });
}

for (const box of document.querySelectorAll("section .box")) if (!box.closest(".written")) box.after(scrolling(box)[1]);
document.querySelector(".top").append(themeButton());
addEventListener("hashchange", turn);
addEventListener("beforeprint", openForPaper);
turn();
