// Before anything is drawn, so that a dark page does not begin as a light one.
(() => {
  try {
    const chosen = localStorage.getItem("brim-theme");
    if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
  } catch {
    // Where nothing may be kept, the system's choice holds.
  }
})();
