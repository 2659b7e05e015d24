// Tables that are whole on their page are sorted here; longer lists are sorted by the broker, with links.
export function prepareTables(part) {
  for (const table of part.querySelectorAll("table[data-sortable]")) {
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, index) => {
      if (!head.textContent.trim() || head.dataset.unsorted !== undefined) return;
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      const arrow = document.createElement("span");
      arrow.className = "arrow";
      arrow.setAttribute("aria-hidden", "true");
      button.append(arrow);
      head.append(button);
      button.addEventListener("click", () => sort(table, heads, index));
    });
  }
}

function sort(table, heads, index) {
  const head = heads[index];
  const isUp = head.getAttribute("aria-sort") !== "ascending";
  for (const each of heads) {
    each.removeAttribute("aria-sort");
    const arrow = each.querySelector(".arrow");
    if (arrow) arrow.textContent = "";
  }
  head.setAttribute("aria-sort", isUp ? "ascending" : "descending");
  head.querySelector(".arrow").textContent = isUp ? "↑" : "↓";
  const rows = [...table.tBodies[0].rows];
  rows.sort((one, other) => (isUp ? 1 : -1) * compare(value(one, index), value(other, index)));
  table.tBodies[0].append(...rows);
}

function value(row, index) {
  const cell = row.cells[index];
  return cell.dataset.value ?? cell.textContent.trim();
}

function compare(one, other) {
  const numbers = [one, other].map((each) => Number(each.replaceAll(",", "")));
  if (numbers.every((each) => !Number.isNaN(each))) return numbers[0] - numbers[1];
  return one.localeCompare(other, "en", { numeric: true });
}
