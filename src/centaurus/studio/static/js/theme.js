// Runs before the first paint, so that a chosen theme does not flash. Not a module, for the same reason.
(() => {
  let chosen = null;
  try {
    chosen = localStorage.getItem("theme");
  } catch {
    // Storage is denied: the system's theme is used.
  }
  if (chosen === "dark" || chosen === "light") document.documentElement.dataset.theme = chosen;
})();
