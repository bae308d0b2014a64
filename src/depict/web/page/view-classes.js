// The result: classes over the picture, legend, swipe, confidence, downloads.

import { getFile } from "./api.js";
import { drawScale, drawSwatch, paintLabels, paintValues, SCALES, styles } from "./paint.js";

const $ = (id) => document.getElementById(id);
let isolated = null, hovered = null;
const mode = () => document.querySelector("input[name=mode]:checked").value;

export const runs = (app) => [app.run];
export const look = (app, run = app.run) => styles(app.classesOf(run), app.result(run)?.classes ?? [], $("safe").checked);
export const opacity = () => Number($("opacity").value) / 100;
export const percent = (share) => `${(100 * share).toFixed(share < 0.0995 ? 1 : 0)} %`;

export function start(app) {
  for (const input of document.querySelectorAll("input[name=mode]")) {
    input.addEventListener("change", () => {
      $("opacity-row").hidden = mode() !== "labels";
      $("swipe-row").hidden = mode() !== "swipe";
      $("confidence-scale").hidden = mode() !== "confidence";
      app.draw();
    });
  }
  for (const id of ["opacity", "swipe"]) {
    $(id).addEventListener("input", () => {
      $(`${id}-row`).querySelector("output").textContent = `${$(id).value} %`;
      app.draw();
    });
  }
  $("safe").addEventListener("change", () => (update(app), app.draw()));
  drawScale($("confidence-scale"), SCALES.heat, "0 % sure", "100 % sure");
  $("confidence-scale").hidden = true;
  for (const button of document.querySelectorAll("#downloads button")) {
    button.addEventListener("click", () => download(app, button));
  }
}

export function update(app) {
  isolated = hovered = null;
  const looks = look(app);
  $("legend").replaceChildren(...app.result().classes.map(({ label, name, share }) => {
    const button = Object.assign(document.createElement("button"), { type: "button", title: `Show only ${name}` });
    button.setAttribute("aria-pressed", "false");
    const text = Object.assign(document.createElement("span"), { className: "name", textContent: name });
    const part = Object.assign(document.createElement("span"), { className: "share", textContent: percent(share) });
    button.append(drawSwatch(looks[label]), text, part);
    const hover = (value) => () => ((hovered = value), app.draw());
    button.addEventListener("pointerenter", hover(label));
    button.addEventListener("pointerleave", hover(null));
    button.addEventListener("focus", hover(label));
    button.addEventListener("blur", hover(null));
    button.addEventListener("click", () => {
      isolated = isolated === label ? null : label;
      for (const each of $("legend").querySelectorAll("button")) each.setAttribute("aria-pressed", each === button && isolated !== null);
      app.draw();
    });
    const item = document.createElement("li");
    item.append(button);
    return item;
  }));
}

export function draw(app) {
  const [stage] = app.stages, { maps } = app.result();
  if (mode() === "confidence") {
    paintValues(stage.context, maps.scores[0], SCALES.heat);
    stage.blend({ gray: true });
    return;
  }
  paintLabels(stage.context, maps.classes[0], look(app), { only: isolated ?? hovered });
  stage.blend(mode() === "swipe" ? { swipe: Number($("swipe").value) / 100 } : { opacity: opacity() });
}

export const read = (app, index) => mostProbable(app, app.run, index);

// The three most probable classes of a pixel, as nodes.
export function mostProbable(app, run, index) {
  const { maps } = app.result(run), classes = app.classesOf(run), looks = look(app, run);
  const count = Math.min(3, classes.length);
  return Array.from({ length: count }, (_, rank) => {
    const label = maps.classes[rank][index];
    const node = document.createElement(rank ? "span" : "b");
    node.append(chip(looks[label]), `${classes[label].name} ${percent(maps.scores[rank][index] / 255)}`);
    return rank ? [", ", node] : [node];
  }).flat();
}

export function chip({ color }) {
  const node = Object.assign(document.createElement("span"), { className: "chip" });
  node.style.background = `rgb(${color.join()})`;
  return node;
}

async function download(app, button) {
  const name = button.dataset.file, { picture } = app;
  button.disabled = true;
  app.say(`Preparing ${name} …`, true);
  try {
    const blob = await getFile(picture.id, app.run, name);
    const link = document.createElement("a");
    link.href = URL.createObjectURL(blob);
    link.download = `${picture.name.replace(/\.[^.]*$/, "")}-${name}`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
    app.say("");
  } catch (error) {
    app.fail(error);
  } finally {
    button.disabled = false;
  }
}
