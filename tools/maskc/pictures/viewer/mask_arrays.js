// The compiled mask: the arrays of a SegmentMask (formats/include/fdma/formats/segment_mask.hpp), and what they say
// about tile rows, tiles and cells. A query visits only the cells that it asks for.
"use strict";

const FULL = 0, BITMAP = 1, ROWS = 2, COLUMNS = 3, PATTERN = 4;  // kinds of segments
const RUN = 5, SEGMENT = 6;  // integers of a run and of a segment

// The bytes of a base64 text, which are little-endian as all of today's browsers are.
function decodeBytes(text) {
  const letters = atob(text);
  const bytes = new Uint8Array(letters.length);
  for (let i = 0; i < letters.length; ++i) bytes[i] = letters.charCodeAt(i);
  return bytes;
}

function greatestCommonDivisor(a, b) {
  while (b !== 0) [a, b] = [b, a % b];
  return a;
}

// The first index in [begin, end) for which isPast(index) holds, else end; isPast never goes back to false.
function firstIndex(begin, end, isPast) {
  while (begin < end) {
    const middle = Math.floor((begin + end) / 2);
    if (isPast(middle)) end = middle;
    else begin = middle + 1;
  }
  return begin;
}

class MaskArrays {
  // header: {q_len, kv_len, block_q, block_kv}; textOf(name): the base64 text of an array.
  constructor(header, textOf) {
    this.qLen = header.q_len;
    this.kvLen = header.kv_len;
    this.blockQ = header.block_q;
    this.blockKv = header.block_kv;
    this.tileRows = Math.ceil(this.qLen / this.blockQ);
    this.tileCols = Math.ceil(this.kvLen / this.blockKv);
    const integers = (name) => new Int32Array(decodeBytes(textOf(name)).buffer);
    this.runs = integers("runs");          // first_row, row_stride, num_rows, num_segments, first_segment
    this.segments = integers("segments");  // first_tile, end_tile, step_first, step_end, kind, payload
    this.bitmaps = decodeBytes(textOf("bitmaps"));
    this.bitmapBytes = this.blockQ * this.blockKv / 8;
    this.rowOffsets = integers("row_offsets");
    this.rowIntervals = integers("row_intervals");
    this.columnOffsets = integers("column_offsets");
    this.columnIntervals = integers("column_intervals");
    this.patterns = integers("patterns");  // num_rows, num_cols, skew, first_row
    this.patternOffsets = integers("pattern_offsets");
    this.patternTiles = integers("pattern_tiles");  // column, bitmap (-1: full)
    this.indexRuns();
  }

  // Runs interleave where the block sides differ: the runs of one residue class of tile rows ascend without gaps.
  indexRuns() {
    this.period = this.blockKv / greatestCommonDivisor(this.blockQ, this.blockKv);
    this.runsByResidue = Array.from({ length: this.period }, () => []);
    for (let at = 0; at < this.runs.length; at += RUN) {
      this.runsByResidue[this.runs[at] % this.period].push(at);
    }
  }

  // Calls visit(firstTile, endTile, kind, payload) for the segments of a tile row that touch tiles
  // [begin, end), by ascending tiles. A segment is passed whole, but of a pattern only its tiles there are, as full and
  // bitmap segments.
  eachSegment(row, begin, end, visit) {
    const { runs, segments } = this;
    const candidates = this.runsByResidue[row % this.period];
    const run = candidates[firstIndex(0, candidates.length, (i) => runs[candidates[i]] > row) - 1];
    const step = (row - runs[run]) / runs[run + 1];
    const first = runs[run + 4];
    const last = first + runs[run + 3];
    const endOf = (s) => segments[SEGMENT * s + 1] + step * segments[SEGMENT * s + 3];
    for (let s = firstIndex(first, last, (i) => endOf(i) > begin); s < last; ++s) {
      const at = SEGMENT * s;
      const firstTile = segments[at] + step * segments[at + 2];
      if (firstTile >= end) return;
      const endTile = endOf(s), kind = segments[at + 4], payload = segments[at + 5];
      if (kind === PATTERN) {
        this.eachPatternTile(payload, row, Math.max(begin, firstTile), Math.min(end, endTile), visit);
      } else {
        visit(firstTile, endTile, kind, payload);
      }
    }
  }

  // Calls visit for the tiles [begin, end) of a pattern in a tile row that are not empty, equal neighbours joined. The
  // tile in column c of the mask is the one in pattern column (c - skew * row) mod numCols.
  eachPatternTile(pattern, row, begin, end, visit) {
    const [numRows, numCols, skew, firstRow] = this.patterns.subarray(4 * pattern, 4 * pattern + 4);
    const tiles = this.patternTiles;
    const first = this.patternOffsets[firstRow + row % numRows];
    const last = this.patternOffsets[firstRow + row % numRows + 1];
    if (first === last) return;
    let turn = Math.floor((begin - skew * row) / numCols);
    const column = begin - skew * row - turn * numCols;
    let from = 0, to = 0, bitmap = 0;  // the tiles that are not passed yet
    for (let i = firstIndex(first, last, (at) => tiles[2 * at] >= column); ; ++i) {
      if (i === last) {
        i = first;
        ++turn;
      }
      const tile = turn * numCols + skew * row + tiles[2 * i];
      if (tile < end && tile === to && tiles[2 * i + 1] === bitmap) {
        ++to;
        continue;
      }
      if (from < to) visit(from, to, bitmap < 0 ? FULL : BITMAP, Math.max(bitmap, 0));
      if (tile >= end) return;
      from = tile;
      to = tile + 1;
      bitmap = tiles[2 * i + 1];
    }
  }

  // Cell (r, c) of a bitmap.
  bit(bitmap, r, c) {
    const index = r * this.blockKv + c;
    return (this.bitmaps[bitmap * this.bitmapBytes + (index >> 3)] >> (index & 7) & 1) === 1;
  }

  // The first interval of key k that ends after query q; an index into columnIntervals' pairs.
  columnInterval(k, q) {
    const intervals = this.columnIntervals;
    return firstIndex(this.columnOffsets[k], this.columnOffsets[k + 1], (i) => intervals[2 * i + 1] > q);
  }

  // The facts about a cell: {row, col} of its tile, {name} of the tile's class and {kind} of its segment, {isLive}.
  cell(q, k) {
    const row = Math.floor(q / this.blockQ), col = Math.floor(k / this.blockKv);
    const found = { row, col, name: "empty", kind: "", isLive: false };
    this.eachSegment(row, col, col + 1, (firstTile, endTile, kind, payload) => {
      found.name = kind === FULL ? "full" : "partial";
      found.kind = ["", "bitmap", "row intervals", "column intervals"][kind];
      const r = q - row * this.blockQ;
      if (kind === FULL) {
        found.isLive = true;
      } else if (kind === BITMAP) {
        found.isLive = this.bit(payload, r, k - col * this.blockKv);
      } else if (kind === ROWS) {
        const key = k - firstTile * this.blockKv;
        const panelRow = payload * this.blockQ + r;
        const end = this.rowOffsets[panelRow + 1];
        const i = firstIndex(this.rowOffsets[panelRow], end, (j) => this.rowIntervals[2 * j + 1] > key);
        found.isLive = i < end && this.rowIntervals[2 * i] <= key;
      } else {
        const i = this.columnInterval(k, q);
        found.isLive = i < this.columnOffsets[k + 1] && this.columnIntervals[2 * i] <= q;
      }
    });
    return found;
  }
}
