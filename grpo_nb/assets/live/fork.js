// A second future of the run: the changes on offer, and how far it has moved from the first.

import {many} from './dom.js';

// The changes that a fork at this batch offers; `r` is the index of the group on display.
export function choices({rate, size, pays, groups}, r) {
  const to = x => Number(x.toPrecision(12)), list = [];   // without the last bits' noise
  if (groups[r].by) list.push({named: `group ${r + 1} is not replaced`, instead: {group: r}});
  if (size) list.push({named: 'no replay', instead: {set: {buffer: 0}}});
  for (const times of [.5, 2]) {
    const words = times < 1 ? 'half' : 'twice';
    list.push({named: `${words} the learning rate, ${to(rate * times)}`, instead: {set: {rate: rate * times}}});
  }
  if (pays == 'right') list.push({named: 'length is paid', instead: {set: {reward: 'length'}}});
  list.push({named: 'nothing is changed', instead: {}});
  return list;
}

const key = g => JSON.stringify([g.question, g.texts, g.rewards, g.stored, g.by?.id]);
export const sameGroup = (a, b) => !!b && key(a) == key(b);

// A sentence that says where the two futures began to differ.
export function whereApart({apart}) {
  const found = [...apart].sort((a, b) => a.batch - b.batch), [first] = found, last = found.at(-1);
  if (!first) return '';
  const start = first.batch ? `After ${many(first.batch, 'batch', 'batches')}` : 'Before any training';
  const equal = o => o.same ? 'the two are equal to the last bit: weights, optimizer state, stored groups and '
    + 'random numbers' : far(o);
  const far = ({differ, most, all}) => `${differ.toLocaleString('en')} of ${all.toLocaleString('en')} weights `
    + `differ, the largest by ${most.toPrecision(2)}`;
  const more = found.find(o => !o.same);
  if (last == first) return `${start} ${equal(first)}.`;
  if (!more) return `${start} and after each batch up to ${last.batch} ${equal(last)}.`;
  const then = more == last ? '' : ` After batch ${last.batch}: ${far(last)}.`;
  return `${start} ${equal(first)}. After batch ${more.batch}, ${far(more)}.${then}`;
}
