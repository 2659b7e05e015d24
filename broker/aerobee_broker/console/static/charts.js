// The figures of a chart under the pointer. The server has drawn the chart and written the figures.
const SVG = "http://www.w3.org/2000/svg";

export function prepareCharts(part) {
  for (const figure of part.querySelectorAll("figure[data-chart]")) {
    const data = JSON.parse(figure.dataset.chart);
    const picture = figure.querySelector("svg");
    const line = document.createElementNS(SVG, "line");
    line.setAttribute("class", "pointer");
    line.setAttribute("y1", data.top);
    line.setAttribute("y2", data.top + data.height);
    const box = document.createElement("div");
    box.className = "hover";
    box.hidden = true;
    figure.append(box);
    figure.addEventListener("pointermove", (event) => show(event, figure, picture, data, line, box));
    figure.addEventListener("pointerleave", () => {
      box.hidden = true;
      line.remove();
    });
  }
}

function show(event, figure, picture, data, line, box) {
  const place = picture.getBoundingClientRect();
  const unit = place.width / picture.viewBox.baseVal.width;
  const share = ((event.clientX - place.left) / unit - data.left) / data.width;
  if (share < 0 || share > 1) return;
  const index = Math.round(share * (data.times.length - 1));
  const x = data.left + (index / Math.max(data.times.length - 1, 1)) * data.width;
  line.setAttribute("x1", x);
  line.setAttribute("x2", x);
  picture.append(line);
  const rows = data.lines.map((each) => {
    const row = document.createElement("div");
    const key = document.createElement("span");
    key.className = `key line-${each.kind}`;
    key.textContent = each.label;
    const value = document.createElement("b");
    value.textContent = each.texts[index];
    row.append(key, value);
    return row;
  });
  const time = document.createElement("div");
  time.textContent = new Date(data.times[index]).toLocaleTimeString();
  box.replaceChildren(time, ...rows);
  box.hidden = false;
  const left = place.left - figure.getBoundingClientRect().left + x * unit;
  const isRight = left > figure.clientWidth / 2;
  box.style.left = isRight ? "auto" : `${left + 10}px`;
  box.style.right = isRight ? `${figure.clientWidth - left + 10}px` : "auto";
  box.style.top = "34px";
}
