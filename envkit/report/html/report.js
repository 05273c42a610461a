"use strict";
(() => {
  const root = document.documentElement;
  const theme = document.getElementById("theme");
  const dark = () =>
    root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  const show = () => theme.setAttribute("aria-pressed", String(dark()));
  theme.addEventListener("click", () => {
    root.dataset.theme = dark() ? "light" : "dark";
    show();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", show);
  theme.hidden = false;
  show();

  const save = document.getElementById("save");
  save.addEventListener("click", () => {
    const file = new Blob([document.getElementById("raw").textContent, "\n"], { type: "application/json" });
    const link = document.createElement("a");
    link.href = URL.createObjectURL(file);
    link.download = "record.json";
    link.click();
    URL.revokeObjectURL(link.href);
  });
  save.hidden = false;

  // A link to a folded part opens it; printing opens all of them.
  const open = () => {
    const target = location.hash.length > 1 && document.getElementById(location.hash.slice(1));
    for (let at = target; at; at = at.parentElement) if (at.tagName === "DETAILS") at.open = true;
  };
  addEventListener("hashchange", open);
  addEventListener("beforeprint", () => document.querySelectorAll(".topic details, #thresholds details").forEach((details) => (details.open = true)));
  open();
})();
