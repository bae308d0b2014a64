// Colors: from labels, values and tokens to pixels.

const VIRIDIS = [[68, 1, 84], [72, 40, 120], [62, 74, 137], [49, 104, 142], [38, 130, 142], [31, 158, 137], [53, 183, 121],
  [109, 205, 89], [180, 222, 44], [253, 231, 37]];
const SIGNED = [[0, 92, 158], [86, 160, 211], [235, 235, 232], [240, 160, 90], [190, 74, 0]];
// Okabe and Ito's colors, which differ for all kinds of color vision; then the same with stripes, dots and checks.
const SAFE = [[0, 114, 178], [230, 159, 0], [0, 158, 115], [204, 121, 167], [86, 180, 233], [213, 94, 0], [240, 228, 66], [120, 120, 120]];
const PATTERNS = [
  () => false,
  (x, y) => (x + y) % 10 < 3,
  (x, y) => x % 8 < 3 && y % 8 < 3,
  (x, y) => (x - y + 100000) % 10 < 3,
  (x, y) => y % 8 < 2,
];

function mix(stops, share) {
  const place = Math.min(Math.max(share, 0), 1) * (stops.length - 1);
  const low = Math.min(Math.floor(place), stops.length - 2), rest = place - low;
  return stops[low].map((value, channel) => value + rest * (stops[low + 1][channel] - value));
}
const table = (stops) => Array.from({ length: 256 }, (_, index) => mix(stops, index / 255));
export const SCALES = { heat: table(VIRIDIS), signed: table(SIGNED) };

// A style per class: its color, and a pattern if colors alone are not enough.
export function styles(classes, shares, safe) {
  if (!safe) return classes.map(({ color }) => ({ color, pattern: PATTERNS[0] }));
  const rank = new Map(shares.map(({ label }, index) => [label, index]));
  let next = shares.length;
  return classes.map((_, label) => {
    const index = rank.get(label) ?? next++;
    const pattern = PATTERNS[Math.floor(index / SAFE.length) % PATTERNS.length];
    return { color: SAFE[index % SAFE.length], pattern };
  });
}

// Labels in color with dark borders. With `only`, other classes are faint; with `keep`, only those pixels are shown.
export function paintLabels(context, labels, look, { only = null, keep = null } = {}) {
  const { width, height } = context.canvas;
  const image = context.createImageData(width, height);
  const pixels = image.data;
  for (let y = 0, index = 0; y < height; y++) {
    for (let x = 0; x < width; x++, index++) {
      if (keep && !keep[index]) continue;
      const label = labels[index], { color, pattern } = look[label];
      const border = (x > 0 && labels[index - 1] !== label) || (y > 0 && labels[index - width] !== label);
      const faint = only !== null && label !== only;
      const shade = border ? 0.25 : pattern(x, y) ? 0.45 : 1;
      const target = 4 * index;
      for (let channel = 0; channel < 3; channel++) pixels[target + channel] = faint ? 128 : shade * color[channel];
      pixels[target + 3] = faint ? 40 : 255;
    }
  }
  context.putImageData(image, 0, 0);
}

// Bytes 0..255 of each pixel on a color scale.
export function paintValues(context, values, scale, alpha = 205) {
  const { width, height } = context.canvas;
  const image = context.createImageData(width, height);
  for (let index = 0; index < values.length; index++) {
    image.data.set(scale[values[index]], 4 * index);
    image.data[4 * index + 3] = alpha;
  }
  context.putImageData(image, 0, 0);
}

// A value per token, drawn as patches. The picture covers `cells` rows and columns of the grid.
function paintTokens(context, { grid: [rows, columns], cells }, put) {
  const small = new OffscreenCanvas(columns, rows);
  const inner = small.getContext("2d");
  const image = inner.createImageData(columns, rows);
  for (let token = 0; token < rows * columns; token++) put(image.data, 4 * token, token);
  inner.putImageData(image, 0, 0);
  const { width, height } = context.canvas;
  context.clearRect(0, 0, width, height);
  context.imageSmoothingEnabled = false;
  context.drawImage(small, 0, 0, cells[1], cells[0], 0, 0, width, height);
}

export const paintTokenColors = (context, steps, colors) =>
  paintTokens(context, steps, (pixels, target, token) => {
    for (let channel = 0; channel < 3; channel++) pixels[target + channel] = colors[3 * token + channel];
    pixels[target + 3] = 255;
  });

export const paintTokenValues = (context, steps, values, alpha = 225) =>
  paintTokens(context, steps, (pixels, target, token) => {
    pixels.set(SCALES.heat[values[token]], target);
    pixels[target + 3] = alpha;
  });

// Influence: bytes around 128. Strong ones cover the picture, weak ones let it through.
export const paintInfluence = (context, steps, values, signed) =>
  paintTokens(context, steps, (pixels, target, token) => {
    const share = (values[token] - 128) / 127, strength = Math.min(1, Math.abs(share));
    pixels.set(signed ? SCALES.signed[Math.round(127.5 + 127.5 * share)] : SCALES.heat[Math.round(255 * strength)], target);
    pixels[target + 3] = 255 * (0.3 + 0.65 * strength);
  });

// A bar of a color scale between two words.
export function drawScale(root, scale, low, high) {
  const canvas = Object.assign(document.createElement("canvas"), { width: 256, height: 1 });
  canvas.setAttribute("aria-hidden", "true");
  paintValues(canvas.getContext("2d"), Uint8Array.from({ length: 256 }, (_, index) => index), scale, 255);
  root.replaceChildren(Object.assign(document.createElement("span"), { textContent: low }), canvas,
    Object.assign(document.createElement("span"), { textContent: high }));
  root.hidden = false;
}

// A small square in the style of a class.
export function drawSwatch({ color, pattern }) {
  const canvas = Object.assign(document.createElement("canvas"), { width: 20, height: 20 });
  canvas.setAttribute("aria-hidden", "true");
  paintLabels(canvas.getContext("2d"), new Uint8Array(400), [{ color, pattern }]);
  return canvas;
}
