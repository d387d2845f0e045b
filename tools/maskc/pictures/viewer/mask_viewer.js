// The page: the visible part and zoom of the mask, the input that changes them, and the text about the cell under the
// pointer.
"use strict";

const MAX_SLICE_MS = 12;   // painting continues in the next frame after so many milliseconds
const MIN_BORDER_PX = 12;  // tiles with shorter sides have no border lines

const count = (value) => value.toLocaleString("en-US");

// The zoom levels from near to far: pairs {cells, pixels}. Where the tile sides allow it, a pixel divides the tile or
// consists of whole tiles, so that no pixel straddles a tile border.
function zoomLevels(arrays) {
  const { blockQ, blockKv } = arrays;
  const levels = [48, 32, 24, 16, 12, 8, 6, 4, 3, 2, 1].map((pixels) => ({ cells: 1, pixels }));
  const largest = Math.max(blockQ, blockKv);
  const fits = (cells, block) => block % cells === 0 || cells % block === 0;
  const isPower = (cells) => Number.isInteger(Math.log2(cells));
  let cells = 1;
  for (let next = 2; next <= largest; ++next) {
    const isEven = fits(next, blockQ) && fits(next, blockKv);
    if (next >= 1.3 * cells && (isEven || (blockQ !== blockKv && isPower(next)))) {
      levels.push({ cells: cells = next, pixels: 1 });
    }
  }
  const common = blockQ * blockKv / greatestCommonDivisor(blockQ, blockKv);
  const unit = common <= 4 * largest ? common : largest;
  const farthest = Math.max(arrays.qLen, arrays.kvLen) / 64;
  for (let times = 1; unit * times < 2 * farthest; times = Math.max(times + 1, Math.round(times * 1.3))) {
    if (unit * times > cells) levels.push({ cells: unit * times, pixels: 1 });
  }
  return levels;
}

// "q0:q1,k0:k1" as [q0, q1, k0, k1], clipped to the mask. A bound left out is the mask's; null if the text has another
// form.
function parseRange(text, arrays) {
  const match = /^\s*(\d*):(\d*)\s*,\s*(\d*):(\d*)\s*$/.exec(text);
  if (match === null) return null;
  const end = (word, fallback, limit) => Math.min(word === "" ? fallback : Number(word), limit);
  const { qLen, kvLen } = arrays;
  const [q0, q1] = [end(match[1], 0, qLen), end(match[2], qLen, qLen)];
  const [k0, k1] = [end(match[3], 0, kvLen), end(match[4], kvLen, kvLen)];
  return q0 < q1 && k0 < k1 ? [q0, q1, k0, k1] : null;
}

class MaskViewer {
  constructor(arrays) {
    this.take(arrays);
    this.canvas = document.getElementById("picture");
    this.overlay = document.getElementById("overlay");
    this.field = document.getElementById("range");
    this.context = this.canvas.getContext("2d", { alpha: false });
    this.view = { cells: 1, pixels: 1, left: 0, top: 0 };
    this.level = 0;
    this.range = null;    // the range that was asked for, until the view moves
    this.pointer = null;  // in pixels of the canvas
    this.job = 0;
    this.painter = new MaskPainter(arrays, this.colours());
    this.listen();
    this.resize();
    this.showFragment();
  }

  take(arrays) {
    this.arrays = arrays;
    this.levels = zoomLevels(arrays);
  }

  // Shows another mask: the same part of it if it has the same lengths, else the whole.
  replace(arrays) {
    const { qLen, kvLen } = this.arrays;
    const middle = this.positionOf(...this.centre());
    this.take(arrays);
    this.painter = new MaskPainter(arrays, this.colours());
    if (arrays.qLen === qLen && arrays.kvLen === kvLen) this.place(this.level, ...middle, ...this.centre());
    else this.showAll();
    this.paint(null);
  }

  colours() {
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => [1, 3, 5].map((i) => parseInt(style.getPropertyValue(name).trim().slice(i, i + 2), 16));
    this.gridColour = style.getPropertyValue("--grid");
    this.markColour = style.getPropertyValue("--mark");
    return { outside: colour("--outside"), empty: colour("--empty"), full: colour("--full"),
      low: colour("--partial-low"), high: colour("--partial-high") };
  }

  // ---- Where the view is.

  // The cell at pixel (x, y) of the canvas; it may lie outside the mask.
  cellAt(x, y) {
    const { cells, pixels, left, top } = this.view;
    return [Math.floor((top + y) * cells / pixels), Math.floor((left + x) * cells / pixels)];
  }

  // Shows level `level` with cell position (q, k), which need not be whole, in pixel (x, y).
  place(level, q, k, x, y) {
    const { cells, pixels } = this.levels[this.level = level];
    const settle = (start, length, room) => {
      const extent = Math.ceil(length / cells) * pixels;
      return extent <= room ? -Math.floor((room - extent) / 2) : Math.min(Math.max(start, 0), extent - room);
    };
    const left = settle(Math.floor(k * pixels / cells) - x, this.arrays.kvLen, this.canvas.width);
    const top = settle(Math.floor(q * pixels / cells) - y, this.arrays.qLen, this.canvas.height);
    const before = this.view;
    this.range = null;
    this.view = { cells, pixels, left, top };
    this.paint(before);
    this.tell();
  }

  // The nearest level at which the range fits, with the range at the centre.
  show(range) {
    const [q0, q1, k0, k1] = range;
    const { width, height } = this.canvas;
    let level = this.levels.findIndex(({ cells, pixels }) =>
      Math.ceil((k1 - k0) / cells) * pixels <= width && Math.ceil((q1 - q0) / cells) * pixels <= height);
    if (level < 0) level = this.levels.length - 1;
    this.place(level, (q0 + q1) / 2, (k0 + k1) / 2, ...this.centre());
    this.range = range;
  }

  showAll() {
    this.show([0, this.arrays.qLen, 0, this.arrays.kvLen]);
  }

  showFragment() {
    const range = parseRange(decodeURIComponent(location.hash.slice(1)), this.arrays);
    if (range === null) this.showAll();
    else this.show(range);
  }

  // The pixel at the centre.
  centre() {
    return [Math.floor(this.canvas.width / 2), Math.floor(this.canvas.height / 2)];
  }

  // The cell position in the middle of pixel (x, y). Rounding does not matter: the same pixel holds that position at
  // this level.
  positionOf(x, y) {
    const { cells, pixels, left, top } = this.view;
    return [(top + y + 0.5) * cells / pixels, (left + x + 0.5) * cells / pixels];
  }

  // Zooms. The position at pixel (x, y) stays there.
  zoom(steps, [x, y] = this.centre()) {
    const level = Math.min(Math.max(this.level - steps, 0), this.levels.length - 1);
    this.place(level, ...this.positionOf(x, y), x, y);
  }

  move(dx, dy) {
    this.place(this.level, ...this.positionOf(dx, dy), 0, 0);
  }

  // ---- Painting.

  // Gives the canvases as many pixels as the device has in their place, so that no pixel of theirs covers two.
  resize() {
    const scale = window.devicePixelRatio || 1;
    const { left, top, right, bottom } = document.getElementById("stage").getBoundingClientRect();
    const [x, y] = [left, top].map((side) => Math.ceil(side * scale - 0.01));
    const [width, height] = [right * scale - x, bottom * scale - y].map((size) => Math.max(1, Math.floor(size + 0.01)));
    for (const canvas of [this.canvas, this.overlay]) {
      Object.assign(canvas, { width, height });
      const place = { left: x / scale - left, top: y / scale - top, width: width / scale, height: height / scale };
      for (const [name, value] of Object.entries(place)) canvas.style[name] = `${value}px`;
    }
    this.image = this.context.createImageData(this.canvas.width, this.canvas.height);
    this.pixels = new Uint32Array(this.image.data.buffer);
  }

  // Paints in slices, so that the page stays responsive. Until it is done, the old picture, moved and stretched, shows
  // the parts that are not painted yet.
  paint(before) {
    const job = ++this.job;
    const { width, height } = this.canvas;
    const painter = this.painter.begin(this.view, width);
    const root = document.documentElement;
    root.dataset.painted = "no";
    let y = 0;
    const slice = () => {
      if (job !== this.job) return;
      const start = y, deadline = performance.now() + MAX_SLICE_MS;
      while (y < height && (y === start || performance.now() < deadline)) {
        painter.paint(y, this.pixels.subarray(y * width, (y + 1) * width));
        ++y;
      }
      if (start === 0 && y < height && before) this.stretch(before);
      this.context.putImageData(this.image, 0, 0, 0, start, width, y - start);
      if (y < height) requestAnimationFrame(slice);
      else root.dataset.painted = "yes";
    };
    slice();
    this.drawOverlay();
  }

  stretch(before) {
    const { cells, pixels, left, top } = this.view;
    const ratio = before.cells / before.pixels * pixels / cells;
    const { width, height } = this.canvas;
    this.context.imageSmoothingEnabled = false;
    this.context.drawImage(this.canvas, before.left * ratio - left, before.top * ratio - top,
      width * ratio, height * ratio);
  }

  drawOverlay() {
    const context = this.overlay.getContext("2d");
    const { width, height } = this.overlay;
    context.clearRect(0, 0, width, height);
    if (document.getElementById("grid").checked) this.drawBorders(context, width, height);
    const [x, y] = this.pointer ?? this.centre();
    const isKeyboard = this.pointer === null && document.activeElement === this.canvas;
    const { cells, pixels, left, top } = this.view;
    const [q, k] = this.cellAt(x, y);
    if (pixels >= 4 && (this.pointer !== null || isKeyboard)) {
      context.strokeStyle = this.markColour;
      context.lineWidth = 2;
      context.strokeRect(k * pixels / cells - left, q * pixels / cells - top, pixels, pixels);
    } else if (isKeyboard) {
      context.fillStyle = this.markColour;
      context.fillRect(x - 8, y, 17, 1);
      context.fillRect(x, y - 8, 1, 17);
    }
  }

  // Draws lines on the first pixels of tiles, where tiles have many pixels and the lines hide no cell.
  drawBorders(context, width, height) {
    const { cells, pixels, left, top } = this.view;
    const { qLen, kvLen, blockQ, blockKv } = this.arrays;
    if (cells === 1 && pixels < 4) return;
    const lines = (block, length, start, room, draw) => {
      const pitch = block * pixels / cells;
      if (pitch < MIN_BORDER_PX) return;
      const last = Math.min(Math.floor(length / block), Math.floor((start + room) / pitch));
      for (let tile = Math.max(0, Math.ceil(start / pitch)); tile <= last; ++tile) draw(Math.round(tile * pitch) - start);
    };
    const extent = (length, start, room) =>
      [Math.max(0, -start), Math.min(room, Math.ceil(length / cells) * pixels - start)];
    const [x0, x1] = extent(kvLen, left, width), [y0, y1] = extent(qLen, top, height);
    context.fillStyle = this.gridColour;
    lines(blockKv, kvLen, left, width, (x) => context.fillRect(x, y0, 1, y1 - y0));
    lines(blockQ, qLen, top, height, (y) => context.fillRect(x0, y, x1 - x0, 1));
  }

  // ---- Words.

  // Writes the description of the view to the page's footer and address.
  tell() {
    const { cells, pixels, left, top } = this.view;
    const { qLen, kvLen } = this.arrays;
    const { width, height } = this.canvas;
    const clip = (value, limit) => Math.min(Math.max(value, 0), limit);
    const [q0, k0] = this.cellAt(0, 0);
    const [q1, k1] = this.cellAt(width - 1, height - 1).map((last) => last + cells);
    const range = [clip(q0, qLen), clip(q1, qLen), clip(k0, kvLen), clip(k1, kvLen)];
    const scale = cells > 1 ? `1 pixel = ${count(cells)} x ${count(cells)} cells`
      : `1 cell = ${pixels} x ${pixels} pixels`;
    document.getElementById("view").textContent =
      `rows ${count(range[0])} to ${count(range[1])}, keys ${count(range[2])} to ${count(range[3])}; ${scale}`;
    const fragment = `${range[0]}:${range[1]},${range[2]}:${range[3]}`;
    if (document.activeElement !== this.field) this.field.value = fragment;
    this.canvas.dataset.view = [cells, pixels, left, top].join(" ");
    this.tellCell();
  }

  tellCell() {
    const [x, y] = this.pointer ?? this.centre();
    const [q, k] = this.cellAt(x, y);
    const { qLen, kvLen } = this.arrays;
    const line = document.getElementById("cell");
    if (q < 0 || q >= qLen || k < 0 || k >= kvLen) {
      line.textContent = "outside the mask";
      return;
    }
    const { row, col, name, kind, isLive } = this.arrays.cell(q, k);
    line.textContent = `q ${count(q)}, k ${count(k)}: ${isLive}; tile (${count(row)}, ${count(col)}) is ${name}` +
      (kind === "" ? "" : `, stored as ${kind}`);
  }

  // ---- Events.

  listen() {
    const { canvas } = this;
    const on = (id, action) => document.getElementById(id).addEventListener("click", action);
    on("zoom-in", () => this.zoom(1));
    on("zoom-out", () => this.zoom(-1));
    on("fit", () => this.showAll());
    on("cells", () => this.showCells());
    document.getElementById("grid").addEventListener("change", () => this.drawOverlay());
    document.getElementById("go").addEventListener("submit", (event) => {
      event.preventDefault();
      const range = parseRange(this.field.value, this.arrays);
      this.field.setCustomValidity(range === null ? "Expected q0:q1,k0:k1 inside the mask" : "");
      if (range === null) this.field.reportValidity();
      else this.show(range);
    });
    this.field.addEventListener("input", () => this.field.setCustomValidity(""));
    window.addEventListener("hashchange", () => this.showFragment());
    new ResizeObserver(() => this.follow()).observe(document.getElementById("stage"));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
      this.painter.setColours(this.colours());
      this.paint(null);
    });
    canvas.addEventListener("keydown", (event) => this.key(event));
    for (const name of ["focus", "blur"]) canvas.addEventListener(name, () => this.drawOverlay());
    this.listenToPointer();
  }

  listenToPointer() {
    const { canvas } = this;
    const at = (event) => {
      const box = canvas.getBoundingClientRect();
      return [Math.floor((event.clientX - box.left) * canvas.width / box.width),
        Math.floor((event.clientY - box.top) * canvas.height / box.height)];
    };
    let dragged = null;
    canvas.addEventListener("pointerdown", (event) => {
      dragged = at(event);
      canvas.setPointerCapture(event.pointerId);
    });
    for (const name of ["pointerup", "pointercancel"]) canvas.addEventListener(name, () => { dragged = null; });
    canvas.addEventListener("pointermove", (event) => {
      document.getElementById("cell").setAttribute("aria-live", "off");
      this.pointer = at(event);
      if (dragged !== null) {
        const [x, y] = dragged;
        dragged = this.pointer;
        this.move(x - dragged[0], y - dragged[1]);
      } else {
        this.drawOverlay();
        this.tellCell();
      }
    });
    canvas.addEventListener("pointerleave", () => {
      this.pointer = null;
      this.drawOverlay();
    });
    canvas.addEventListener("dblclick", (event) => this.zoom(2, at(event)));
    let turned = 0;
    canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      turned += event.deltaY * (event.deltaMode === WheelEvent.DOM_DELTA_PIXEL ? 1 : 30);
      const steps = Math.trunc(turned / 50);
      turned -= 50 * steps;
      if (steps !== 0) this.zoom(-steps, at(event));
    }, { passive: false });
  }

  key(event) {
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    const { cells, pixels } = this.view;
    const stepOf = (block, room) => event.shiftKey ? Math.max(1, Math.round(block * pixels / cells)) : Math.ceil(room / 8);
    const dx = stepOf(this.arrays.blockKv, this.canvas.width), dy = stepOf(this.arrays.blockQ, this.canvas.height);
    const actions = {
      ArrowLeft: () => this.move(-dx, 0), ArrowRight: () => this.move(dx, 0),
      ArrowUp: () => this.move(0, -dy), ArrowDown: () => this.move(0, dy),
      "+": () => this.zoom(1), "=": () => this.zoom(1), "-": () => this.zoom(-1),
      0: () => this.showAll(), Home: () => this.showAll(), 1: () => this.showCells(),
    };
    if (!(event.key in actions)) return;
    event.preventDefault();
    this.pointer = null;
    document.getElementById("cell").setAttribute("aria-live", "polite");
    actions[event.key]();
  }

  // Single cells, around the centre.
  showCells() {
    this.zoom(this.level - this.levels.findIndex(({ pixels }) => pixels === 8));
  }

  // Follows a change of the window: the requested range still fits, or the centre stays.
  follow() {
    const middle = this.positionOf(...this.centre());
    this.resize();
    if (this.range !== null) this.show(this.range);
    else this.place(this.level, ...middle, ...this.centre());
  }
}

// The arrays of a mask, whose elements have ids that end in `suffix`.
function arraysOf(header, suffix) {
  return new MaskArrays(header, (name) => document.getElementById(name + suffix).textContent);
}

// Shows the mask of the batch element and the head that the fields name.
function listenToChoice(viewer, choice) {
  const [batch, head] = ["batch", "head"].map((id) => document.getElementById(id));
  const change = () => {
    if (!batch.reportValidity() || !head.reportValidity()) return;
    const group = choice.groups[Number(batch.value) * choice.num_heads + Number(head.value)];
    const mask = choice.masks[group];
    viewer.replace(arraysOf(mask, `-${group}`));
    const heading = document.querySelector("h1");
    heading.textContent = heading.textContent.replace(/batch element \d+, head \d+$/,
      `batch element ${batch.value}, head ${head.value}`);
    const facts = [...mask.facts, ["Batch element", batch.value], ["Head", head.value]];
    document.getElementById("facts").replaceChildren(...facts.flatMap(([name, value]) =>
      [["dt", name], ["dd", value]].map(([tag, text]) => Object.assign(document.createElement(tag), { textContent: text }))));
  };
  for (const field of [batch, head]) field.addEventListener("change", change);
}

const viewerHeader = JSON.parse(document.getElementById("header").textContent);
const maskViewer = new MaskViewer(arraysOf(viewerHeader, ""));
if (viewerHeader.choice) listenToChoice(maskViewer, viewerHeader.choice);
