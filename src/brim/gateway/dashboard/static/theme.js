// Runs before the first paint, so that a dark page does not flash in light colours.
(() => {
  try {
    const chosen = localStorage.getItem("brim-theme");
    if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
  } catch {
    // Without storage, the theme of the system applies.
  }
})();
