// Two runs on one picture: linked crosshairs, and where they disagree.

import { makeTable } from "./charts.js";
import { paintLabels } from "./paint.js";
import { look, mostProbable, opacity, percent } from "./view-classes.js";

const $ = (id) => document.getElementById(id);
const PAIRS = 8;
let different = null;

const other = () => Number($("other").value);
export const runs = (app) => (app.info.runs.length > 1 && app.result(other()) ? [app.run, other()] : [app.run]);

export function start(app, arrange) {
  const several = app.info.runs.length > 1;
  $("compare-note").hidden = several;
  $("compare-body").hidden = !several;
  $("other").append(...app.info.runs.map(({ name }, index) => new Option(name, index)));
  $("other").value = several ? 1 : 0;
  $("other").addEventListener("change", () => (update(app), arrange()));
  $("only-different").addEventListener("change", () => app.draw());
}

// Classes are compared by name, because each run has its own list.
export function update(app) {
  different = null;
  if (app.info.runs.length < 2) return;
  if (other() === app.run) $("other").value = (app.run + 1) % app.info.runs.length;
  const [one, two] = [app.result(), app.result(other())];
  if (!one || !two) return;
  const names = [app.run, other()].map((run) => app.classesOf(run).map(({ name }) => name));
  const [first, second] = [one.maps.classes[0], two.maps.classes[0]];
  different = new Uint8Array(first.length);
  const pairs = new Map();
  let count = 0;
  for (let index = 0; index < first.length; index++) {
    const a = names[0][first[index]], b = names[1][second[index]];
    if (a === b) continue;
    different[index] = 1;
    count++;
    const pair = JSON.stringify([a, b]);
    pairs.set(pair, (pairs.get(pair) ?? 0) + 1);
  }
  $("disagreement").textContent = `They disagree on ${percent(count / first.length)} of the picture.`;
  const largest = [...pairs].sort((a, b) => b[1] - a[1]).slice(0, PAIRS);
  const rows = largest.map(([pair, pixels]) => [...JSON.parse(pair), percent(pixels / first.length)]);
  const runNames = [app.run, other()].map((run) => app.info.runs[run].name);
  $("pairs").replaceChildren(...(rows.length ? [makeTable([...runNames, "share"], rows)] : []));
}

export function draw(app) {
  runs(app).forEach((run, index) => {
    const stage = app.stages[index], keep = $("only-different").checked ? different : null;
    paintLabels(stage.context, app.result(run).maps.classes[0], look(app, run), { keep });
    stage.blend({ opacity: keep ? 0.95 : opacity(), gray: Boolean(keep) });
  });
}

export function read(app, index) {
  return runs(app).flatMap((run) => {
    const line = document.createElement("span");
    line.append(document.createElement("br"), `${app.info.runs[run].name}: `, ...mostProbable(app, run, index));
    return [line];
  });
}
