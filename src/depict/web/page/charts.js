// Line charts as SVG, with the same numbers as a table.

const SVG = "http://www.w3.org/2000/svg";
const COLORS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8a8a8a"];
const DASHES = ["", "7 3", "2 3", "9 3 2 3", "4 4", "12 4", "1 4"];
const WIDTH = 420, HEIGHT = 190, LEFT = 44, RIGHT = 96, TOP = 12, BOTTOM = 30;

function node(parent, tag, attributes, text) {
  const made = document.createElementNS(SVG, tag);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  parent.append(made);
  return made;
}

const round = (value) => (Math.abs(value) >= 100 ? value.toFixed(0) : value.toFixed(Math.abs(value) >= 10 ? 1 : 2));

// Labels at the end of the lines, moved apart where they would overlap.
function spread(places, gap) {
  const order = places.map((y, index) => ({ y, index })).sort((a, b) => a.y - b.y);
  for (let i = 1; i < order.length; i++) order[i].y = Math.max(order[i].y, order[i - 1].y + gap);
  const over = Math.max(0, (order.at(-1)?.y ?? 0) - (HEIGHT - BOTTOM));
  for (let i = order.length - 1, limit = Infinity; i >= 0; i--) {
    order[i].y = Math.min(order[i].y - (over && i === order.length - 1 ? over : 0), limit);
    limit = order[i].y - gap;
  }
  const moved = [];
  for (const { y, index } of order) moved[index] = y;
  return moved;
}

// lines: [{ name, values }]; marks: names along x; band: [from, to] on x that is highlighted; at: a position on x.
export function lineChart(root, { title, caption, lines, marks, band = null, at = null }) {
  const figure = Object.assign(document.createElement("figure"), { className: "chart" });
  const heading = Object.assign(document.createElement("h3"), { textContent: title });
  const values = lines.flatMap((line) => line.values);
  let low = Math.min(...values), high = Math.max(...values);
  if (high - low < 1e-9) [low, high] = [low - 0.5, high + 0.5];
  const margin = 0.06 * (high - low);
  [low, high] = [low - margin, high + margin];
  const x = (index) => LEFT + (index / Math.max(1, marks.length - 1)) * (WIDTH - LEFT - RIGHT);
  const y = (value) => TOP + ((high - value) / (high - low)) * (HEIGHT - TOP - BOTTOM);
  const svg = node(figure, "svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": `${title}. ${caption}` });
  if (band) node(svg, "rect", { class: "band", x: x(band[0]), width: x(band[1]) - x(band[0]), y: TOP, height: HEIGHT - TOP - BOTTOM });
  for (const share of [0, 0.5, 1]) {
    const value = low + share * (high - low);
    node(svg, "line", { class: "axis", x1: LEFT, x2: WIDTH - RIGHT, y1: y(value), y2: y(value) });
    node(svg, "text", { class: "tick", x: LEFT - 6, y: y(value) + 4, "text-anchor": "end" }, round(value));
  }
  marks.forEach((mark, index) => {
    const chosen = index === at;
    node(svg, "text", { class: chosen ? "" : "tick", "font-weight": chosen ? 700 : 400, x: x(index), y: HEIGHT - 10, "text-anchor": "middle" }, mark);
  });
  const ends = spread(lines.map((line) => y(line.values.at(-1))), 14);
  lines.forEach((line, index) => {
    const color = COLORS[index % COLORS.length];
    const points = line.values.map((value, place) => `${x(place)},${y(value)}`).join(" ");
    node(svg, "polyline", { class: "line", points, stroke: color, "stroke-dasharray": DASHES[index % DASHES.length] });
    line.values.forEach((value, place) => node(svg, "circle", { cx: x(place), cy: y(value), r: place === at ? 4.5 : 2.5, fill: color }));
    const last = line.values.length - 1;
    node(svg, "line", { x1: x(last) + 3, y1: y(line.values[last]), x2: WIDTH - RIGHT + 12, y2: ends[index], stroke: color });
    const short = line.name.length > 12 ? `${line.name.slice(0, 11)}…` : line.name;
    node(svg, "text", { x: WIDTH - RIGHT + 16, y: ends[index] + 4 }, short);
  });
  const text = Object.assign(document.createElement("figcaption"), { textContent: caption });
  figure.append(text, numbers(lines, marks));
  root.replaceChildren(heading, figure);
}

function numbers(lines, marks) {
  const details = document.createElement("details");
  details.append(Object.assign(document.createElement("summary"), { textContent: "Numbers" }));
  const rows = lines.map((line) => [line.name, ...line.values.map(round)]);
  details.append(makeTable(["", ...marks], rows));
  return details;
}

// A table whose first column names the row; the others are numbers.
export function makeTable(head, rows) {
  const table = document.createElement("table");
  const cell = (tag, text, index, scope) => {
    const made = document.createElement(tag);
    made.textContent = text;
    if (index && /^[−-]?\d/.test(text)) made.className = "number";
    if (scope) made.scope = scope;
    return made;
  };
  const top = document.createElement("tr");
  top.append(...head.map((text, index) => (text ? cell("th", text, index, "col") : cell("td", "", index))));
  // A heading stands like the values below it.
  [...top.cells].forEach((made, index) => made.classList.toggle("number", index > 0 && /^[−-]?\d/.test(rows[0]?.[index] ?? "")));
  table.createTHead().append(top);
  const body = table.createTBody();
  for (const row of rows) {
    const line = document.createElement("tr");
    line.append(...row.map((text, index) => cell(index ? "td" : "th", text, index, index ? "" : "row")));
    body.append(line);
  }
  const scroll = Object.assign(document.createElement("div"), { className: "scroll", tabIndex: 0 });
  scroll.setAttribute("role", "region");
  scroll.setAttribute("aria-label", "Numbers");
  scroll.append(table);
  return scroll;
}
