// What the cells of a map mean: colors, names and filters, from the table that Python also reads.

import {mix} from './dom.js';
import {TABLE} from './table.js';

export const COLOURS = TABLE.colours;

// By code, in Python's order: key and name; color and mark in hex; `dead` says how the answers agreed.
/** @type {{key: string, name: string, colour: ?string, mark: ?string, dead: ?string, replaced: boolean}[]} */
export const CELLS = TABLE.cells.map(o => ({key: o.key, name: o.name, colour: COLOURS[o.colour] ?? null,
  mark: COLOURS[o.mark] ?? null, dead: o.dead ?? null, replaced: 'mark' in o}));
export const CODES = Object.fromEntries(CELLS.map((o, code) => [o.key, code]));

// Opacity by how often the stored group has been replayed: the more often, the stronger.
export const REPLACED = Array.from({length: 17},
  (_, n) => mix(COLOURS.stored_once, COLOURS.stored, Math.log2(Math.max(n, 1)) / 4));

// Filters, which decide what cells are highlighted: (cell, are all its answers one text?) -> boolean.
/** @type {[string, (cell: any, same?: any) => any][]} */
export const FILTERS = [['all groups', () => true], ['living', o => o.key == 'living'], ['dead', o => o.dead],
  ['dead: all right', o => o.dead == 'right'], ['dead: all wrong', o => o.dead == 'wrong'],
  ['dead: all alike', o => o.dead == 'alike'], ['replaced', o => o.replaced || o.key == 'stored'],
  ['dead and left', o => o.dead && !o.replaced], ['dead: one text (collapse)', (o, same) => o.dead && same],
  ['dead: different texts (cliff)', (o, same) => o.dead && !same]];

export const why = reason => reason in TABLE.why ? `dead: ${TABLE.why[reason]}` : 'dead';

// Sets the colors as CSS custom properties, `--living` and so on.
export function setColours(root) {
  for (const [k, hex] of Object.entries(COLOURS)) root.style.setProperty('--' + k.replace('_', '-'), hex);
}
