// The decoder step by step: labels if it stopped there, token colors, movement, coding rate.

import { lineChart } from "./charts.js";
import { drawScale, paintLabels, paintTokenColors, paintTokenValues, SCALES } from "./paint.js";
import { chip, look, opacity, percent } from "./view-classes.js";

const $ = (id) => document.getElementById(id);
const mode = () => document.querySelector("input[name=step-mode]:checked").value;
const WHY = {
  labels: "The labels that the decoder would give without the later steps.",
  tokens: "The three principal directions of the tokens as red, green and blue: similar tokens, similar colors.",
  movement: "How far each token moved in this step, as a share of its length before.",
};

export const runs = (app) => [app.run];
const depth = () => Number($("step").value);
const isCross = (operator) => operator.startsWith("msca");
export const operatorName = (operator) => operator.replace(/^[a-z]+/, (word) => word.toUpperCase()).replace("_", ", ");
const signed = (value) => `${value < 0 ? "−" : "+"}${Math.abs(value).toFixed(2)}`;

export function start(app) {
  const go = (by) => () => {
    $("step").value = depth() + by;
    changed(app);
  };
  $("step").addEventListener("input", () => changed(app));
  $("step-back").addEventListener("click", go(-1));
  $("step-on").addEventListener("click", go(1));
  for (const input of document.querySelectorAll("input[name=step-mode]")) input.addEventListener("change", () => changed(app));
}

export function update(app) {
  const { steps } = app.result();
  if (!steps) return;
  const last = steps.depths.length - 1;
  if ($("step").max !== String(last)) $("step").value = 0;
  $("step").max = last;
  changed(app);
}

function changed(app) {
  const { steps } = app.result();
  if (!steps) return;
  const index = depth(), { operator, step_size: size, moved, largest, rates } = steps.depths[index], last = steps.depths.length - 1;
  $("step-name").textContent = `${index} of ${last}`;
  $("step-back").disabled = index === 0;
  $("step-on").disabled = index === last;
  $("step-mode-why").textContent = WHY[mode()];
  $("movement-scale").hidden = mode() !== "movement";
  if (mode() === "movement") drawScale($("movement-scale"), SCALES.heat, "0 %", percent(largest));
  $("step-title").textContent = title(index, operator, size);
  $("step-facts").textContent = facts(app, index, operator, size, moved, rates);
  $("rate-chart").replaceChildren();
  if (rates) {
    const marks = rates[0].map((_, place) => (place ? String(place) : "start"));
    lineChart($("rate-chart"), {
      title: "Coding rate in the subspaces of this step",
      caption: "In nats, one line per head, before and after each step. The shaded part is this step.",
      lines: rates.map((values, head) => ({ name: `head ${head + 1}`, values })),
      marks, band: [index - 1, index], at: index,
    });
  }
  if (app.tab === "steps") app.draw();
}

function title(index, operator, size) {
  if (!index) return "Before the first step";
  const name = `Step ${index}: ${operatorName(operator)}`;
  return size === null ? name : `${name} ${size < 0 ? "compresses" : "expands"} (step size ${signed(size)})`;
}

function facts(app, index, operator, size, moved, rates) {
  if (!index) return `${app.result().steps.grid.join(" × ")} tokens, as the encoder made them (Z0).`;
  const who = !isCross(operator) ? "The tokens" : app.result().steps.queries ? "The queries" : "The class directions";
  const parts = [`${who} moved by ${percent(moved)} of their length.`];
  if (isCross(operator)) parts.push("The tokens of the picture stay where they are.");
  if (rates) {
    const mean = (place) => rates.reduce((sum, values) => sum + values[place], 0) / rates.length;
    const [before, after] = [mean(index - 1), mean(index)];
    const rises = after > before;
    const agrees = rises === size > 0;
    parts.push(`In its ${rates.length} subspaces the coding rate ${rises ? "rises" : "falls"} from ${before.toFixed(1)} to ${after.toFixed(1)} nats on average,`);
    parts.push(agrees ? "as the sign of the step says." : "against the sign of the step: the step is so long that it overshoots.");
  } else if (!isCross(operator)) {
    parts.push(operator === "cbsa" ? "It compresses a few representatives and passes the change on; each head has its own step."
      : "This step is not derived from a coding rate, so it has no step size and no subspaces.");
  }
  return parts.join(" ");
}

export function draw(app) {
  const [stage] = app.stages, { depths, steps } = app.result();
  if (!depths) {
    stage.context.clearRect(0, 0, stage.layer.width, stage.layer.height);
    stage.blend({});
    return;
  }
  const { labels, colors, movement } = depths[depth()];
  if (mode() === "labels") {
    paintLabels(stage.context, labels, look(app));
    stage.blend({ opacity: opacity() });
  } else if (mode() === "tokens") {
    paintTokenColors(stage.context, steps, colors);
    stage.blend({ opacity: 0.9 });
  } else {
    paintTokenValues(stage.context, steps, movement);
    stage.blend({ gray: true });
  }
}

export function read(app, index, x, y) {
  const { depths, steps } = app.result();
  if (!depths) return ["the steps are not known yet"];
  const at = depths[depth()], [row, column] = patchAt(steps, x, y);
  if (mode() === "movement") {
    const share = (at.movement[row * steps.grid[1] + column] / 255) * steps.depths[depth()].largest;
    return [`this token moved by ${percent(share)} of its length`];
  }
  const label = at.labels[index];
  return [chip(look(app)[label]), app.classesOf()[label].name, depth() < depths.length - 1 ? " if the decoder stopped here" : ""];
}

// Row and column of the patch at a position.
export function patchAt({ cells, grid }, x, y) {
  return [Math.min(Math.floor(y * cells[0]), grid[0] - 1), Math.min(Math.floor(x * cells[1]), grid[1] - 1)];
}
