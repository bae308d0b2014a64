// What the page asks the server. Addresses are relative, so that any prefix works.

export class Problem extends Error {
  constructor(status, detail, retryAfter = 0) {
    super(detail);
    this.status = status;
    this.retryAfter = retryAfter;
  }
}

async function call(path, options) {
  let answer;
  try {
    answer = await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(0, "The server does not answer. Is it still running?");
  }
  if (answer.ok) return answer;
  const { detail } = await answer.json().catch(() => ({ detail: answer.statusText }));
  throw new Problem(answer.status, detail, Number(answer.headers.get("Retry-After")));
}

const json = async (path, options) => (await call(path, options)).json();
const bytes = async (path, options) => (await call(path, options)).arrayBuffer();
const at = (id, run) => `pictures/${id}/runs/${run}`;

export const getRuns = () => json("runs");
export const getExample = async (number) => (await call(`examples/${number}`)).blob();
export const getResult = (id, run, signal) => json(at(id, run), { signal });
export const getFile = async (id, run, name) => (await call(`${at(id, run)}/files/${name}`)).blob();
export const forget = (id) => fetch(`pictures/${id}`, { method: "DELETE", keepalive: true }).catch(() => {});
export const askPatch = (id, run, row, column, signal) =>
  json(`${at(id, run)}/patch?row=${row}&column=${column}`, { signal });

// Labels take one byte each, two if there are more than 256 classes.
const labelArray = (buffer, offset, count, wide) =>
  wide ? new Uint16Array(buffer.slice(offset, offset + 2 * count)) : new Uint8Array(buffer, offset, count);

// The three most probable classes of each pixel and their probabilities in 255ths: three arrays each.
export async function getMaps(id, run, [height, width], wide, signal) {
  const buffer = await bytes(`${at(id, run)}/maps`, { signal });
  const count = height * width, size = wide ? 2 : 1;
  const ranks = [0, 1, 2];
  return {
    classes: ranks.map((rank) => labelArray(buffer, rank * count * size, count, wide)),
    scores: ranks.map((rank) => new Uint8Array(buffer, 3 * count * size + rank * count, count)),
  };
}

// For every depth: labels of each pixel, colors and movement of each token.
export async function getSteps(id, run, [height, width], { grid, depths }, wide, signal) {
  const buffer = await bytes(`${at(id, run)}/steps`, { signal });
  const count = height * width, tokens = grid[0] * grid[1];
  let offset = 0;
  return depths.map(() => {
    const labels = labelArray(buffer, offset, count, wide);
    offset += count * (wide ? 2 : 1);
    const colors = new Uint8Array(buffer, offset, 3 * tokens);
    const movement = new Uint8Array(buffer, offset + 3 * tokens, tokens);
    offset += 4 * tokens;
    return { labels, colors, movement };
  });
}

const pause = (seconds, signal) =>
  new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, 1000 * seconds);
    signal.addEventListener("abort", () => (clearTimeout(timer), reject(signal.reason)), { once: true });
  });

// Sends a picture and yields its state until it is analyzed. If the server is busy, it retries when the server says.
export async function* analyze(blob, signal) {
  let state;
  while (!state) {
    try {
      state = await json("pictures", { method: "POST", body: blob, signal });
    } catch (problem) {
      if (problem.status !== 503) throw problem;
      const seconds = problem.retryAfter || 5;
      yield { state: "refused", seconds };
      await pause(seconds, signal);
    }
  }
  for (let wait = 0.1; ; wait = Math.min(0.5, 1.3 * wait)) {
    yield state;
    if (state.state === "done" || state.state === "failed") return;
    await pause(wait, signal);
    state = await json(`pictures/${state.id}`, { signal });
  }
}
