"use strict";
// Tells the values at the pointer. All of them are in the page already; nothing is fetched.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const tip = document.getElementById("tip");
  const number = (value) => value.toLocaleString("en", { maximumSignificantDigits: 5 });
  // The step of a series at a time: the last one that begins before it, if it has not ended.
  const at = (steps, time) => {
    let low = 0, high = steps.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (steps[middle][0] <= time) low = middle + 1; else high = middle;
    }
    const step = steps[low - 1];
    return step && time <= step[1] ? step[2] : null;
  };
  for (const element of document.querySelectorAll("figure[data-figure]")) {
    const figure = data.figures[Number(element.dataset.figure)];
    const svg = element.querySelector("svg");
    const [left, right, top, bottom] = figure.place;
    const cursor = document.createElementNS(svg.namespaceURI, "line");
    cursor.setAttribute("class", "cursor");
    cursor.setAttribute("y1", top);
    cursor.setAttribute("y2", bottom);
    cursor.setAttribute("visibility", "hidden");
    svg.append(cursor);
    const leave = () => { tip.hidden = true; cursor.setAttribute("visibility", "hidden"); };
    element.addEventListener("pointerleave", leave);
    element.addEventListener("pointermove", (event) => {
      const box = svg.getBoundingClientRect();
      const x = (event.clientX - box.left) * svg.viewBox.baseVal.width / box.width;
      if (x < left || x > right) return leave();
      const time = (x - left) / (right - left) * data.end;
      tip.replaceChildren(`${time.toFixed(3)} s`);
      figure.steps.forEach((steps, series) => {
        const line = document.createElement("div");
        const mark = document.createElement("span");
        mark.textContent = "\u25a0 ";
        mark.style.color = `var(--s${series % 8})`;
        const value = document.createElement("b");
        const found = at(steps, time);
        value.textContent = found === null ? "\u2013" : number(found);
        line.append(mark, data.series[series].name, value);
        tip.append(line);
      });
      cursor.setAttribute("x1", x);
      cursor.setAttribute("x2", x);
      cursor.setAttribute("visibility", "visible");
      tip.hidden = false;
      const over = event.pageX + tip.offsetWidth + 24 > document.documentElement.clientWidth;
      tip.style.left = `${over ? event.pageX - tip.offsetWidth - 14 : event.pageX + 14}px`;
      tip.style.top = `${event.pageY + 12}px`;
    });
  }
})();
