// One patch: where each head of each step looks from there, and its cosine to each class over the steps.

import { askPatch } from "./api.js";
import { lineChart } from "./charts.js";
import { drawScale, paintInfluence, SCALES } from "./paint.js";
import { mostProbable, percent } from "./view-classes.js";
import { operatorName, patchAt } from "./view-steps.js";

const $ = (id) => document.getElementById(id);
const SHOWN = 5, THUMB = 150;
let answer = null, chosen = [0, 0], asking = null;

export const runs = (app) => [app.run];
export const start = () => {};

export function update(app) {
  answer = null;
  $("heads").replaceChildren();
  $("closeness-chart").replaceChildren();
  $("heads-scale").hidden = true;
  $("patch-title").textContent = "No patch chosen yet";
  $("patch-time").textContent = "";
  if (app.pin) ask(app);
}

export async function ask(app) {
  const { steps } = app.result();
  if (!steps) return;
  asking?.abort();
  asking = new AbortController();
  const [row, column] = patchAt(steps, ...app.pin), started = performance.now();
  try {
    const found = await askPatch(app.picture.id, app.run, row, column, asking.signal);
    answer = { ...found, steps: found.steps.map(({ step, heads }) => ({ step, heads: heads.map(unpack) })) };
  } catch (error) {
    app.fail(error);
    return;
  }
  show(app);
  const milliseconds = Math.round(performance.now() - started);
  document.body.dataset.patchAnswer = milliseconds;
  $("patch-title").textContent = `Patch in row ${row + 1}, column ${column + 1}`;
  $("patch-time").textContent = `Answered in ${milliseconds} ms. Choose a map to see it large.`;
  if (app.tab === "patch") app.draw();
}

const unpack = ({ scale, values }) => ({ scale, values: Uint8Array.from(atob(values), (letter) => letter.charCodeAt(0)) });
const isSigned = ({ values }) => values.some((value) => value < 127);

function show(app) {
  const { steps } = app.result();
  chosen = [Math.min(chosen[0], answer.steps.length - 1), chosen[1]];
  $("heads").replaceChildren(...answer.steps.map(({ step, heads }, place) => {
    const row = Object.assign(document.createElement("div"), { className: "head-row" });
    row.append(Object.assign(document.createElement("h4"), { textContent: `Step ${step + 1}: ${operatorName(steps.depths[step + 1].operator)}` }));
    row.append(...heads.map((head, index) => headButton(app, head, place, index)));
    return row;
  }));
  if (!answer.steps.length) $("heads").textContent = "No step of this decoder has attention among patches.";
  else if (answer.steps.some(({ heads }) => heads.some(isSigned))) drawScale($("heads-scale"), SCALES.signed, "negative weight", "positive weight");
  else drawScale($("heads-scale"), SCALES.heat, "0", "the largest weight of the map");
  showCloseness(app);
}

function headButton(app, head, place, index) {
  const { step } = answer.steps[place];
  const button = Object.assign(document.createElement("button"), { type: "button" });
  button.setAttribute("aria-pressed", chosen[0] === place && chosen[1] === index);
  const text = `head ${index + 1}, up to ${percent(head.scale)}`;
  button.append(thumbnail(app, head), text);
  button.setAttribute("aria-label", `Step ${step + 1}, ${text}`);
  button.addEventListener("click", () => {
    chosen = [place, index];
    for (const each of $("heads").querySelectorAll("button")) each.setAttribute("aria-pressed", each === button);
    app.draw();
  });
  return button;
}

function thumbnail(app, head) {
  const [height, width] = app.result().view, factor = THUMB / Math.max(height, width);
  const size = { width: Math.max(1, Math.round(factor * width)), height: Math.max(1, Math.round(factor * height)) };
  const canvas = Object.assign(document.createElement("canvas"), size);
  const layer = Object.assign(document.createElement("canvas"), size).getContext("2d");
  const context = canvas.getContext("2d");
  context.filter = "grayscale(1)";
  context.drawImage(app.stages[0].picture, 0, 0, size.width, size.height);
  context.filter = "none";
  paintInfluence(layer, app.result().steps, head.values, isSigned(head));
  context.drawImage(layer.canvas, 0, 0);
  return canvas;
}

const CLOSENESS = {
  cosine: ["Cosine with the class directions", "1 is the direction of the class itself. The class with the largest cosine after the last step usually wins."],
  logit: ["Score of the classes", "The logit of each class if the decoder stopped there. This decoder has no class directions that move."],
};

function showCloseness(app) {
  const { steps } = app.result(), classes = app.classesOf(), final = answer.closeness.at(-1);
  const best = final.map((_, label) => label).sort((a, b) => final[b] - final[a]).slice(0, SHOWN);
  const [title, caption] = CLOSENESS[steps.closeness];
  lineChart($("closeness-chart"), {
    title, caption,
    lines: best.map((label) => ({ name: classes[label].name, values: answer.closeness.map((row) => row[label]) })),
    marks: steps.depths.map((_, index) => (index ? String(index) : "start")),
  });
}

export function draw(app) {
  const [stage] = app.stages, head = answer?.steps[chosen[0]]?.heads[chosen[1]];
  if (!head) {
    stage.context.clearRect(0, 0, stage.layer.width, stage.layer.height);
    stage.blend({});
    return;
  }
  paintInfluence(stage.context, app.result().steps, head.values, isSigned(head));
  stage.blend({ gray: true });
}

export function read(app, index, x, y) {
  const head = answer?.steps[chosen[0]]?.heads[chosen[1]], { steps } = app.result();
  if (!head) return mostProbable(app, app.run, index);
  const [row, column] = patchAt(steps, x, y), { step } = answer.steps[chosen[0]];
  const share = ((head.values[row * steps.grid[1] + column] - 128) / 127) * head.scale;
  return [`step ${step + 1}, head ${chosen[1] + 1} draws ${percent(share)} from this patch`];
}
