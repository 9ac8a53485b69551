// Each task: the settings of its arms, its words on the page, and how it parses a problem that the reader types.

// The demo's settings, and those of two arms of `demo --compare`. At most `tokens` are sampled. Held-out problems are
// measured every `every` batches, or, where tokens are the budget, tokens: the batches of two arms differ in size.
const SUMS = {B: 16, G: 8, T: 48, minis: 4, batches: 40, rate: 2e-4, scale: 'none', reward: 'right', buffer: 64,
  beside: 0, cap: 0, width: 28, every: 8};
const PLAIN = {...SUMS, G: 4, rate: 4e-4, buffer: 0, tokens: 16000, width: 20, every: 2000};
const STORED = {...PLAIN, B: 24, buffer: 64, beside: 2, cap: 2};   // 8 of 24 sampled

export const UNSEEN = 192, CHUNK = 96; // problems to measure, and how many at a time: a batch size of sampling
export const spent = o => o.set.tokens ? o.tokens : o.done;
export const over = o => spent(o) >= (o.set.tokens || o.set.batches);

// An arm's settings with the page's knobs {rate, buffer, …}. An arm without a buffer stays without one.
export const turned = (set, knobs) => ({...set, ...knobs, buffer: set.buffer ? knobs.buffer : 0});

// `read` returns [question, answer, remark]; the remark says if the model was never trained on such problems.
export const TASKS = {
  sums: {
    title: 'Watch a language model learn to add',
    asks: 'Ask it a sum of your own', first: '3 + 7 + 2 + 1', unseen: 'sums it has never seen',
    axis: {of: o => o.batch, to: 40, ticks: [10, 20, 30, 40], unit: 'batch'},
    sets: [SUMS], arms: [{name: '', kind: 'held', columns: 40, rows: 16}],
    read(text) {
      const sum = text.replace(/[−–]/g, '-').replace(/[=?\s]/g, '');
      if (!/^-?\d\d?([+-]\d\d?){1,5}$/.test(sum))
        throw new Error('Two to six numbers below 100 with + or − between them, such as 8 − 2 + 5.');
      const answer = sum.match(/[+-]?\d+/g).reduce((a, b) => a + Number(b), 0);
      const strange = /\d\d/.test(sum) ? 'It is trained on numbers of one digit only.' : '';
      return [sum.replace(/(?<=\d)[+-]/g, ' $& '), String(answer), strange];
    },
  },
  words: {
    title: 'Watch it learn to spell backward, two ways',
    asks: 'Ask it a word of your own', first: 'notebook', unseen: 'words it has never seen',
    axis: {of: o => o.tokens, to: 16000, ticks: [4000, 8000, 12000, 16000], unit: 'tokens sampled'},
    sets: [PLAIN, STORED], arms: [
      {name: 'plain', says: 'Plain: 16 fresh words a batch', kind: 'held plain', columns: 14, rows: 16},
      {name: 'with stored groups', says: 'With stored groups: 8 fresh words a batch, and 16 stored ones',
        kind: 'held stored', columns: 24, rows: 24},
    ],
    read(text) {
      const word = text.trim().toLowerCase();
      if (!/^[a-z]{3,9}$/.test(word)) throw new Error('One word of three to nine letters, a to z.');
      return [word, [...word].reverse().join(''), ''];
    },
  },
};
