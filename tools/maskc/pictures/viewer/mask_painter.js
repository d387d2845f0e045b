// Computes the pixels of a view of the mask.
//
// A view is {cells, pixels, left, top}. A pixel is `cells` x `cells` cells, or a cell is `pixels` x `pixels` pixels (one
// of the two is 1). The canvas shows the pixels from (left, top) of that picture. All four are whole numbers, so the
// cells of a pixel are exact:
// - with at least 1 pixel a cell, each pixel belongs to one cell and has its colour;
// - with less, a pixel is full (empty) iff every tile that it touches is full (empty). Any other pixel lies over a partial
//   tile or over several classes. Its shade is between the two partial colours, by the share of live area, where a
//   partial tile counts as half. No class thus hides behind another.
// The painter visits only tile rows and segments that touch the view.
"use strict";

const OUTSIDE = 0, EMPTY_CELL = 1, FULL_CELL = 2, MASKED_CELL = 3, LIVE_CELL = 4;

class MaskPainter {
  // colours: {outside, empty, full, low, high}, each [red, green, blue].
  constructor(arrays, colours) {
    this.arrays = arrays;
    this.setColours(colours);
  }

  setColours(colours) {
    const packed = ([r, g, b]) => (255 << 24 | b << 16 | g << 8 | r) >>> 0;
    this.cellColours = Uint32Array.from(
      [colours.outside, colours.empty, colours.full, colours.low, colours.high].map(packed));
    this.shades = Uint32Array.from({ length: 256 }, (_, i) =>
      packed(colours.low.map((low, channel) => Math.round(low + (colours.high[channel] - low) * i / 255))));
  }

  // A painter of one view: an object whose paint(y, out) writes pixel row y of the canvas to out (a Uint32Array).
  begin(view, width) {
    return view.cells === 1 ? this.beginCells(view, width) : this.beginAreas(view, width);
  }

  beginAreas(view, width) {
    const { arrays, cellColours, shades } = this;
    const { qLen, kvLen, blockQ, blockKv } = arrays;
    const size = view.cells;
    // Pixels [from, to) of the canvas lie over keys [firstKey, endKey) of the mask.
    const from = Math.max(0, -view.left);
    const to = Math.max(from, Math.min(width, Math.ceil(kvLen / size) - view.left));
    const firstKey = (view.left + from) * size;
    const endKey = Math.min(kvLen, (view.left + to) * size);
    // The area of live cells, and the area of cells of any segment that is not full. An interval of whole pixels is
    // added at its ends and summed up along the row.
    const full = new Float64Array(width + 2), partial = new Float64Array(width + 2);
    const fullSteps = new Float64Array(width + 2), partialSteps = new Float64Array(width + 2);
    const add = (edges, steps, begin, end, rows) => {
      begin = Math.max(begin, firstKey) - firstKey;
      end = Math.min(end, endKey) - firstKey;
      if (begin >= end) return;
      const first = Math.floor(begin / size), last = Math.floor((end - 1) / size);
      if (first === last) {
        edges[first] += (end - begin) * rows;
        return;
      }
      edges[first] += ((first + 1) * size - begin) * rows;
      edges[last] += (end - last * size) * rows;
      steps[first + 1] += size * rows;
      steps[last] -= size * rows;
    };
    const line = new Uint32Array(width);
    let painted = "";
    const paint = (y, out) => {
      const begin = (view.top + y) * size, end = Math.min(begin + size, qLen);
      if (begin < 0 || begin >= qLen || from === to) {
        out.fill(cellColours[OUTSIDE]);
        return;
      }
      // The pixel rows inside one tile row are equal, except for the last one of the mask.
      const firstRow = Math.floor(begin / blockQ), lastRow = Math.floor((end - 1) / blockQ);
      const key = firstRow === lastRow ? firstRow + ":" + (end - begin) : "";
      if (key === "" || key !== painted) {
        painted = key;
        for (const sums of [full, partial, fullSteps, partialSteps]) sums.fill(0);
        const firstTile = Math.floor(firstKey / blockKv), endTile = Math.ceil(endKey / blockKv);
        for (let row = firstRow; row <= lastRow; ++row) {
          const rows = Math.min(end, (row + 1) * blockQ) - Math.max(begin, row * blockQ);
          arrays.eachSegment(row, firstTile, endTile, (first, last, kind) => {
            if (kind === FULL) add(full, fullSteps, first * blockKv, Math.min(last * blockKv, kvLen), rows);
            else add(partial, partialSteps, first * blockKv, Math.min(last * blockKv, kvLen), rows);
          });
        }
        line.fill(cellColours[OUTSIDE]);
        let fullSum = 0, partialSum = 0;
        for (let x = from; x < to; ++x) {
          const i = x - from;
          fullSum += fullSteps[i];
          partialSum += partialSteps[i];
          const isFull = full[i] + fullSum, isPartial = partial[i] + partialSum;
          const area = (Math.min(firstKey + (i + 1) * size, kvLen) - firstKey - i * size) * (end - begin);
          if (isFull === area) line[x] = cellColours[FULL_CELL];
          else if (isFull === 0 && isPartial === 0) line[x] = cellColours[EMPTY_CELL];
          else line[x] = shades[Math.round(255 * (isFull + isPartial / 2) / area)];
        }
      }
      out.set(line);
    };
    return { paint };
  }

  beginCells(view, width) {
    const { arrays, cellColours } = this;
    const { qLen, kvLen, blockQ, blockKv } = arrays;
    const side = view.pixels;
    const firstKey = Math.max(0, Math.floor(view.left / side));
    const endKey = Math.min(kvLen, Math.ceil((view.left + width) / side));
    const kinds = new Uint8Array(Math.max(0, endKey - firstKey));
    const line = new Uint32Array(width);
    let painted = -1;
    // For each visible key, the interval that the last painted query has reached.
    let cursors = null;
    const columnCells = (q, begin, end) => {
      const offsets = arrays.columnOffsets, intervals = arrays.columnIntervals;
      if (cursors === null) cursors = Int32Array.from(kinds, (_, i) => arrays.columnInterval(firstKey + i, q));
      for (let k = begin; k < end; ++k) {
        const last = offsets[k + 1];
        let i = cursors[k - firstKey];
        while (i < last && intervals[2 * i + 1] <= q) ++i;
        cursors[k - firstKey] = i;
        kinds[k - firstKey] = i < last && intervals[2 * i] <= q ? LIVE_CELL : MASKED_CELL;
      }
    };
    const paintSegment = (q, first, last, kind, payload) => {
      const begin = Math.max(first * blockKv, firstKey), end = Math.min(last * blockKv, endKey);
      const r = q % blockQ;
      if (kind === FULL) {
        kinds.fill(FULL_CELL, begin - firstKey, end - firstKey);
      } else if (kind === BITMAP) {
        for (let k = begin; k < end; ++k) {
          kinds[k - firstKey] = arrays.bit(payload, r, k % blockKv) ? LIVE_CELL : MASKED_CELL;
        }
      } else if (kind === ROWS) {
        kinds.fill(MASKED_CELL, begin - firstKey, end - firstKey);
        const panelRow = payload * blockQ + r;
        for (let i = arrays.rowOffsets[panelRow]; i < arrays.rowOffsets[panelRow + 1]; ++i) {
          const from = Math.max(begin, first * blockKv + arrays.rowIntervals[2 * i]);
          const to = Math.min(end, first * blockKv + arrays.rowIntervals[2 * i + 1]);
          if (from < to) kinds.fill(LIVE_CELL, from - firstKey, to - firstKey);
        }
      } else {
        columnCells(q, begin, end);
      }
    };
    const paint = (y, out) => {
      const q = Math.floor((view.top + y) / side);
      if (q < 0 || q >= qLen || kinds.length === 0) {
        out.fill(cellColours[OUTSIDE]);
        return;
      }
      if (q !== painted) {
        painted = q;
        kinds.fill(EMPTY_CELL);
        arrays.eachSegment(Math.floor(q / blockQ), Math.floor(firstKey / blockKv), Math.ceil(endKey / blockKv),
          (first, last, kind, payload) => paintSegment(q, first, last, kind, payload));
        for (let x = 0; x < width; ++x) {
          const k = Math.floor((view.left + x) / side);
          line[x] = cellColours[k < 0 || k >= kvLen ? OUTSIDE : kinds[k - firstKey]];
        }
      }
      out.set(line);
    };
    return { paint };
  }
}
