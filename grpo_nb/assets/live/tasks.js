// What the page says of each task, and how it reads a problem of the reader's own: [question, answer].

export const TASKS = {
  sums: {
    title: 'Watch a language model learn to add',
    asks: 'Ask it a sum of your own', first: '3 + 7 + 2 + 1', unseen: 'sums it has never seen',
    axis: {of: o => o.batch, to: 40, ticks: [10, 20, 30, 40], unit: 'batch'},
    arms: [{name: '', kind: 'held', columns: 40, rows: 16}],
    read(text) {
      const sum = text.replace(/[−–]/g, '-').replace(/[=?\s]/g, '');
      if (!/^-?\d([+-]\d){1,5}$/.test(sum))
        throw new Error('Two to six digits with + or − between them, such as 8 − 2 + 5.');
      const answer = sum.match(/[+-]?\d/g).reduce((a, b) => a + Number(b), 0);
      return [sum.replace(/(?<=\d)[+-]/g, ' $& '), String(answer)];
    },
  },
  words: {
    title: 'Watch it learn to spell backward, two ways',
    asks: 'Ask it a word of your own', first: 'notebook', unseen: 'words it has never seen',
    axis: {of: o => o.tokens, to: 16000, ticks: [4000, 8000, 12000, 16000], unit: 'tokens sampled'},
    arms: [
      {name: 'plain', says: 'Plain: 16 fresh words a batch', kind: 'held plain', columns: 30, rows: 16},
      {name: 'with stored groups', says: 'With stored groups: 8 fresh words a batch, and 16 stored ones',
        kind: 'held stored', columns: 60, rows: 24},
    ],
    read(text) {
      const word = text.trim().toLowerCase();
      if (!/^[a-z]{3,9}$/.test(word)) throw new Error('One word of three to nine letters, a to z.');
      return [word, [...word].reverse().join('')];
    },
  },
};
