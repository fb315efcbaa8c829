// Before the first paint: the theme that was chosen here, if any.
(() => {
  const chosen = localStorage.getItem("headrace-theme");
  if (chosen === "dark" || chosen === "light") document.documentElement.dataset.theme = chosen;
})();
