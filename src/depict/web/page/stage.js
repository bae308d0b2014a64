// One picture with a layer of color, a crosshair that the pointer or the arrow keys move, and a pin.

const STEP = 0.02, FINE = 0.004;
const make = (tag, className) => Object.assign(document.createElement(tag), { className });

export class Stage {
  // `on.move(x, y)` and `on.pick(x, y)` get positions as shares of width and height; `on.leave()` ends a move.
  constructor(root, on) {
    this.on = on;
    this.x = this.y = 0.5;
    this.root = make("figure", "stage");
    this.caption = document.createElement("figcaption");
    this.frame = make("div", "frame");
    this.frame.tabIndex = 0;
    this.frame.setAttribute("role", "application");
    this.frame.setAttribute("aria-describedby", "readout");
    this.picture = document.createElement("img");
    this.picture.alt = "";
    this.picture.draggable = false;
    this.layer = document.createElement("canvas");
    this.line = make("div", "swipe-line");
    this.cross = make("div", "crosshair");
    this.pin = make("div", "pin");
    this.frame.append(this.picture, this.layer, this.line, this.pin, this.cross);
    this.root.append(this.caption, this.frame);
    root.append(this.root);
    this.context = this.layer.getContext("2d");
    this.line.hidden = this.cross.hidden = this.pin.hidden = true;
    this.frame.addEventListener("pointermove", (event) => this.moved(event));
    this.frame.addEventListener("pointerdown", (event) => this.moved(event));
    this.frame.addEventListener("pointerleave", () => this.left());
    this.frame.addEventListener("click", (event) => (this.moved(event), on.pick(this.x, this.y)));
    this.frame.addEventListener("keydown", (event) => this.key(event));
    this.frame.addEventListener("blur", () => this.left());
  }

  show(url, [height, width], caption, name) {
    this.picture.src = url;
    this.frame.style.setProperty("--ratio", width / height);
    this.layer.width = width;
    this.layer.height = height;
    this.caption.textContent = caption;
    this.caption.hidden = !caption;
    const hint = "Arrow keys move the crosshair, with Shift in small steps. Enter asks the patch.";
    this.frame.setAttribute("aria-label", `Picture ${name}${caption ? `, ${caption}` : ""}. ${hint}`);
  }

  // How the layer lies over the picture: opacity 0..1, and a swipe from 0..1 or null.
  blend({ opacity = 1, swipe = null, gray = false }) {
    this.layer.style.opacity = opacity;
    this.layer.style.clipPath = swipe === null ? "" : `inset(0 0 0 ${100 * swipe}%)`;
    this.line.hidden = swipe === null;
    this.line.style.left = `${100 * (swipe ?? 0)}%`;
    this.frame.classList.toggle("gray", gray);
  }

  place(node, x, y) {
    node.hidden = false;
    node.style.left = `${100 * x}%`;
    node.style.top = `${100 * y}%`;
  }

  point(x, y) {
    [this.x, this.y] = [x, y];
    this.place(this.cross, x, y);
  }

  moved(event) {
    const box = this.frame.getBoundingClientRect();
    const inside = (value) => Math.min(Math.max(value, 0), 0.9999);
    this.on.move(inside((event.clientX - box.left) / box.width), inside((event.clientY - box.top) / box.height));
  }

  left() {
    this.cross.hidden = true;
    this.on.leave();
  }

  key(event) {
    const direction = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (direction) {
      event.preventDefault();
      const size = event.shiftKey ? FINE : STEP;
      const next = (value, sign) => Math.min(Math.max(value + sign * size, 0), 0.9999);
      this.on.move(next(this.x, direction[0]), next(this.y, direction[1]));
    } else if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      this.on.pick(this.x, this.y);
    }
  }
}
