// A box that ticks all others of its form, and a button that copies a text.
export function prepareSelections(part) {
  for (const box of part.querySelectorAll("[data-tick-all]")) {
    box.hidden = false;
    box.addEventListener("change", () => {
      for (const other of box.closest("table").querySelectorAll("tbody input[type=checkbox]")) {
        other.checked = box.checked;
      }
    });
  }
  for (const button of part.querySelectorAll("[data-copy]")) {
    if (!navigator.clipboard) continue; // only where the page is secure
    button.hidden = false;
    button.addEventListener("click", async () => {
      await navigator.clipboard.writeText(button.dataset.copy);
      button.textContent = "Copied";
    });
  }
}
