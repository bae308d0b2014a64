// The page: one picture, its results by run, and the view that is open.

import * as api from "./api.js";
import { listen, prepare } from "./intake.js";
import { Stage } from "./stage.js";
import * as classes from "./view-classes.js";
import * as steps from "./view-steps.js";
import * as patch from "./view-patch.js";
import * as compare from "./view-compare.js";

const $ = (id) => document.getElementById(id);
const VIEWS = { classes, steps, patch, compare };

const app = {
  info: null, // runs, limits and examples of the server
  run: 0,
  tab: "classes",
  picture: null, // { blob, name, url, id, results: by run }
  pin: null, // [x, y] as shares of width and height
  stages: [],
  work: null, // aborts what is under way for the picture

  // The result of a run; null until it is known.
  result: (run = app.run) => app.picture?.results[run] ?? null,
  classesOf: (run = app.run) => app.info.runs[run].classes,
  wide: (run) => app.classesOf(run).length > 256,

  // Repaint the open view.
  draw() {
    if (app.result()) VIEWS[app.tab].draw(app);
  },

  say(text, busy = false) {
    $("status").replaceChildren(...(busy ? [document.createElement("progress")] : []), text);
    $("status").querySelector("progress")?.setAttribute("aria-label", "Working");
  },

  // A failure: shown until the next picture. A picture that the server has forgotten is sent again.
  fail(error) {
    if (error.name === "AbortError") return;
    if (error.status === 404 && app.picture) {
      app.analyze();
      return;
    }
    app.say("");
    $("problem").textContent = error.message;
  },

  async open(blob, name) {
    $("problem").textContent = "";
    try {
      app.say("Reading the picture …", true);
      const ready = await prepare(blob, app.info.limits);
      if (app.picture) {
        URL.revokeObjectURL(app.picture.url);
        if (app.picture.id) api.forget(app.picture.id);
      }
      app.picture = { blob: ready.blob, note: ready.note, name, url: URL.createObjectURL(ready.blob), id: null, results: {} };
      app.pin = null;
      await app.analyze();
    } catch (error) {
      app.fail(error);
    }
  },

  async analyze() {
    app.work?.abort();
    app.work = new AbortController();
    const { picture } = app, { signal } = app.work;
    const started = performance.now();
    picture.results = {};
    try {
      for await (const state of api.analyze(picture.blob, signal)) {
        picture.id = state.id ?? picture.id;
        if (state.state === "failed") throw new api.Problem(422, sentence(state.detail));
        app.say(progress(state), true);
        for (const run of state.segmented ?? []) {
          if (picture.results[run]) continue;
          picture.results[run] = await load(picture, run, signal);
          if (run === app.run) shown(performance.now() - started);
        }
        for (const run of state.unrolled ?? []) await loadSteps(picture, run, signal);
      }
      app.say(picture.note);
    } catch (error) {
      app.fail(error);
    }
  },
};

async function load(picture, run, signal) {
  const result = await api.getResult(picture.id, run, signal);
  return { ...result, maps: await api.getMaps(picture.id, run, result.view, app.wide(run), signal), depths: null };
}

async function loadSteps(picture, run, signal) {
  const result = picture.results[run];
  if (result.depths) return;
  result.steps = (await api.getResult(picture.id, run, signal)).steps;
  result.depths = await api.getSteps(picture.id, run, result.view, result.steps, app.wide(run), signal);
  if (run === app.run) for (const view of Object.values(VIEWS)) view.update(app);
  app.draw();
}

const sentence = (text) => text.charAt(0).toUpperCase() + text.slice(1);

function progress({ state, position, stage, seconds }) {
  if (state === "refused") return `The server is busy. Trying again in ${seconds} s …`;
  if (state === "waiting") return `Waiting: ${position === 1 ? "next in line" : `number ${position} in line`} …`;
  return `${sentence(stage)} …`;
}

// The first result of a picture: the workspace opens.
function shown(milliseconds) {
  const first = $("workspace").hidden;
  document.body.dataset.firstAnswer = Math.round(milliseconds);
  $("intake").classList.add("compact");
  $("pick").textContent = "Another picture";
  $("camera").textContent = "Camera";
  $("example").textContent = "Example";
  $("workspace").hidden = false;
  for (const view of Object.values(VIEWS)) view.update(app);
  arrange();
  if (first) app.stages[0].frame.focus({ preventScroll: true });
}

// Pictures and captions of the stages that the open view needs.
function arrange() {
  if (!app.result()) return;
  const runs = VIEWS[app.tab].runs(app);
  app.stages.forEach((stage, index) => {
    const run = runs[index];
    stage.root.hidden = run === undefined;
    if (run === undefined) return;
    const caption = runs.length > 1 ? app.info.runs[run].name : "";
    stage.show(app.picture.url, app.result().view, caption, app.picture.name);
    if (app.pin && app.tab !== "compare") stage.place(stage.pin, ...app.pin);
    else stage.pin.hidden = true;
  });
  $("stages").classList.toggle("two", runs.length > 1);
  $("readout").replaceChildren();
  app.draw();
}

const pointing = {
  move(x, y) {
    for (const stage of app.stages) stage.point(x, y);
    if (!app.result()) return;
    const { view: [height, width], width: full, height: tall } = app.result();
    const index = Math.floor(y * height) * width + Math.floor(x * width);
    const where = `x ${Math.floor(x * full)}, y ${Math.floor(y * tall)}: `;
    $("readout").replaceChildren(where, ...VIEWS[app.tab].read(app, index, x, y));
  },
  leave() {
    for (const stage of app.stages) stage.cross.hidden = true;
  },
  pick(x, y) {
    if (app.tab === "compare") return;
    app.pin = [x, y];
    app.stages[0].place(app.stages[0].pin, x, y);
    patch.ask(app);
  },
};

function select(tab, focus = false) {
  app.tab = tab;
  for (const name of Object.keys(VIEWS)) {
    const button = $(`tab-${name}`), chosen = name === tab;
    button.setAttribute("aria-selected", chosen);
    button.tabIndex = chosen ? 0 : -1;
    $(`view-${name}`).hidden = !chosen;
    if (chosen && focus) button.focus();
  }
  arrange();
}

function listenToTabs() {
  const names = Object.keys(VIEWS);
  for (const name of names) $(`tab-${name}`).addEventListener("click", () => select(name));
  $("tabs").addEventListener("keydown", (event) => {
    const place = names.indexOf(app.tab);
    const next = { ArrowRight: place + 1, ArrowLeft: place - 1, Home: 0, End: names.length - 1 }[event.key];
    if (next === undefined) return;
    event.preventDefault();
    select(names[(next + names.length) % names.length], true);
  });
}

function describeRun() {
  const { about, note } = app.info.runs[app.run];
  $("about").textContent = `${about}, ${app.classesOf().length} classes`;
  for (const id of ["steps", "patch"]) {
    $(`${id}-note`).textContent = note ?? "";
    $(`${id}-note`).hidden = !note;
    $(`${id}-body`).hidden = Boolean(note);
  }
}

async function start() {
  try {
    app.info = await api.getRuns();
  } catch (error) {
    app.fail(error);
    return;
  }
  const names = app.info.runs.map(({ name }) => name);
  document.title = `${names.join(", ")} – depict explorer`;
  $("run").append(...names.map((name, index) => new Option(name, index)));
  $("run-choice").hidden = false;
  $("run").addEventListener("change", () => {
    app.run = Number($("run").value);
    describeRun();
    if (app.result()) for (const view of Object.values(VIEWS)) view.update(app);
    arrange();
    if (app.pin) patch.ask(app);
  });
  app.stages = [new Stage($("stages"), pointing), new Stage($("stages"), pointing)];
  for (const stage of app.stages) {
    // Read the text under the crosshair aloud only while the keys move it.
    stage.frame.addEventListener("keydown", () => $("readout").setAttribute("aria-live", "polite"));
    stage.frame.addEventListener("blur", () => $("readout").removeAttribute("aria-live"));
  }
  listenToTabs();
  for (const view of Object.values(VIEWS)) view.start(app, arrange);
  describeRun();
  listen({ open: app.open, problem: (text) => app.fail(new Error(text)) });
  $("example").hidden = !app.info.examples;
  let example = 3;
  $("example").addEventListener("click", async () => {
    const number = example++ % app.info.examples;
    try {
      app.open(await api.getExample(number), `scene ${number}.png`);
    } catch (error) {
      app.fail(error);
    }
  });
  window.addEventListener("pagehide", () => app.picture?.id && api.forget(app.picture.id));
}

start();
